"""Training: one configuration, one loop, one folder per run."""

from nearshot.training.config import TrainConfig
from nearshot.training.hardware import Hardware
from nearshot.training.methods import METHODS, Batch, Method
from nearshot.training.presets import PRESETS
from nearshot.training.run_folder import RunFolder
from nearshot.training.trainer import TrainResult, train

__all__ = [
    "METHODS",
    "PRESETS",
    "Batch",
    "Hardware",
    "Method",
    "RunFolder",
    "TrainConfig",
    "TrainResult",
    "train",
]
