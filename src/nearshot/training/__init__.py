"""Training: one configuration, one loop, one folder per run."""

from nearshot.training.config import OwnLoss, TrainConfig
from nearshot.training.hardware import Hardware
from nearshot.training.methods import METHODS
from nearshot.training.presets import PRESETS
from nearshot.training.run_folder import RunFolder
from nearshot.training.trainer import TrainResult, train

__all__ = [
    "METHODS",
    "PRESETS",
    "Hardware",
    "OwnLoss",
    "RunFolder",
    "TrainConfig",
    "TrainResult",
    "train",
]
