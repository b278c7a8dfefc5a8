"""For people with a few photos a class: pictures and labels in, a classifier out."""

from nearshot.estimator.embedder import Embedder

__all__ = ["Embedder"]
