"""Training: one configuration, one loop, one folder a run."""

from nearshot.training.config import TrainConfig
from nearshot.training.hardware import Hardware
from nearshot.training.loop import TrainResult, train
from nearshot.training.methods import METHODS
from nearshot.training.presets import PRESETS
from nearshot.training.runs import RunFolder

__all__ = ["METHODS", "PRESETS", "Hardware", "RunFolder", "TrainConfig", "TrainResult", "train"]
