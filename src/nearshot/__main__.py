"""`python -m nearshot` is `nearshot`."""

from nearshot.cli import entry_point

entry_point()
