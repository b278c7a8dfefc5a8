"""A run before its end: its progress, and the best weights so far.

Both come from the checkpoint, from which the run resumes. The finished run will have the same weights, unless a later
epoch is better.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from nearshot.data import Store
from nearshot.errors import InputError
from nearshot.models import Backbone, build_backbone, load_backbone
from nearshot.training.checkpoint import read_checkpoint
from nearshot.training.config import TrainConfig
from nearshot.training.run_folder import RunFolder

__all__ = ["Snapshot", "Unfinished"]

ATTEMPTS = 5  # a running training removes weights at most once in some seconds
BACKBONE_PREFIX = "backbone."  # of the names of the backbone's tensors in a checkpoint


@dataclass(frozen=True)
class Unfinished:
    """The progress of a run that was measured before its end.

    Attributes:
        epochs_done: how many epochs were finished.
        epochs: how many epochs the run has.
    """

    epochs_done: int
    epochs: int

    def __str__(self) -> str:
        return f"{self.epochs_done} of {self.epochs} epochs"


@dataclass(frozen=True, eq=False)
class Snapshot:
    """An unfinished run at the moment when it was opened.

    Its weights are read at once, since a running training may remove their files at any time.

    Attributes:
        epochs_done: how many epochs were finished.
        best: the best epochs so far, as in a finished run's result.
        latest: the name of the checkpoint's weights; not a file.
        backbones: the best weights by their files; those of the checkpoint where no epoch has been validated.
    """

    epochs_done: int
    best: dict[str, dict[str, Any]]
    latest: Path
    backbones: dict[Path, Backbone]

    @classmethod
    def read(cls, run: RunFolder, config: TrainConfig, training: Callable[[], Store | None]) -> Snapshot:
        """Read the checkpoint of a run, and the weights that it calls the best.

        A training writes its next checkpoint before it removes weights. So if weights are missing, the checkpoint is
        read again. `training` opens the training split, which the checkpoint's own weights need.
        """
        missing: list[Path] = []
        for _ in range(ATTEMPTS):
            if not run.checkpoint.is_file():
                raise InputError(
                    f"{run.path} is not a finished run, and has nothing to measure yet: its first checkpoint comes at "
                    "the end of an epoch."
                )
            state = read_checkpoint(run.checkpoint)
            progress = state["progress"]
            files = sorted({run.weights_of(int(one["epoch"])) for one in progress["best"].values()})
            latest = Path(f"checkpoint-step-{progress['step']}")
            try:
                backbones = {file: load_backbone(file) for file in files}
            except (InputError, FileNotFoundError):
                missing = [file for file in files if not file.is_file()]
                if not missing:
                    raise
                continue
            if not files:
                backbones = {latest: _checkpoint_backbone(state, run, config, training())}
            return cls(int(progress["epoch"]) - 1, progress["best"], latest, backbones)
        raise InputError(
            f"{missing[0]}, the best weights so far by the run's checkpoint, is missing. To measure other weights, give "
            "their file."
        )


def _checkpoint_backbone(
    state: dict[str, Any], run: RunFolder, config: TrainConfig, training: Store | None
) -> Backbone:
    """Return the backbone with the weights of a checkpoint."""
    if training is None:
        raise InputError(
            f"No epoch of {run.path} has been validated yet. To measure its checkpoint, the training split of "
            f"{config.dataset} is needed, which is missing."
        )
    with torch.random.fork_rng(devices=[]):  # the initial weights are replaced
        backbone = build_backbone(config.backbone, input_size=config.input_size or training.images.shape[1])
    own = {name: tensor for name, tensor in state["learner"].items() if name.startswith(BACKBONE_PREFIX)}
    backbone.load_state_dict({name.removeprefix(BACKBONE_PREFIX): tensor for name, tensor in own.items()})
    return backbone.eval()
