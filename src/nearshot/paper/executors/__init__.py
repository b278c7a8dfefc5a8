"""Where jobs run: in processes of this machine, or on a Ray cluster."""
