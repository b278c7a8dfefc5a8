"""A picture of a classifier at work: its support images, what it decides, and where all lie beside each other."""

from nearshot.estimator.drawing.scene import Query, Scene, make_scene
from nearshot.estimator.drawing.writing import draw

__all__ = ["Query", "Scene", "draw", "make_scene"]
