"""Trained runs: opening them, embedding with their weights and measuring them."""
