"""A picture of a classifier at work: its support images, what it decides, and where all lie beside each other."""

from nearshot.estimator.plot.output import draw
from nearshot.estimator.plot.scene import Query, Scene, make_scene

__all__ = ["Query", "Scene", "draw", "make_scene"]
