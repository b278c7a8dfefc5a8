"""The settings of the paper's tables and figures."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from nearshot.training import PRESETS, TrainConfig

BATCH_SIZES = (128, 256, 512)
SHOTS = (1, 5)
TRAINING_CLASSES = dict.fromkeys(("cifar-fs", "mini-imagenet"), (64, 600))  # classes, and images of each
TITLES = {"centroid": "nearest centroid", "soft": "soft assignment", "knn": "k-NN"}


def figure_config(
    dataset: str, method: str, batch_size: int, *, shot: int = 5, images_per_class: int = 16
) -> TrainConfig:
    """Return the settings of Figures 2 to 4: 120 epochs, no projection, no temperature."""
    shape: dict[str, Any] = {"batch_size": batch_size, "n_shot": shot, "images_per_class": images_per_class}
    return replace(PRESETS[f"{dataset}-prototypical"], method=method, epochs=120, steps_per_epoch=None, **shape)
