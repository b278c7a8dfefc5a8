"""What statements compare: two measurements, each with its training, and what to call the difference."""

from __future__ import annotations

from nearshot.experiments.gaps import Side
from nearshot.experiments.results import Measurement
from nearshot.training import TrainConfig

__all__ = ["SHOTS", "Compared", "on_val"]

SHOTS = (1, 5)
Compared = tuple[str, Side, Side]


def on_val(config: TrainConfig, shot: int, classifier: str = "centroid") -> Side:
    """Return a training, measured on the validation split."""
    return config, Measurement("val", shot, classifier)
