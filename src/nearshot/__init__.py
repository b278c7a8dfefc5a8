"""Few-shot image classification: train embeddings, measure them honestly, put them to work."""

from nearshot._version import __version__
from nearshot.models import load_backbone

__all__ = ["__version__", "load_backbone"]
