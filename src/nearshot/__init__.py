"""Few-shot image classification: train embeddings, measure them honestly, put them to work."""

from nearshot._version import __version__

__all__ = ["__version__"]
