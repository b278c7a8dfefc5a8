"""A run before its end: how far it is, and the best that it has learnt so far.

All of it is told by the checkpoint, which is what the run goes on from. No epoch before it is trained again, so these
are the weights that the finished run will have, unless a later epoch is better.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from nearshot.errors import InputError
from nearshot.models import build_backbone
from nearshot.training.checkpoint import read_checkpoint
from nearshot.training.run_folder import best_epoch
from nearshot.runs.network import TrainedNetwork, TrainedRun, Unfinished, training_split

__all__ = ["UnfinishedRun"]

ATTEMPTS = 5  # a training that goes on removes weights at most once in some seconds
OF_BACKBONE = "backbone."  # begins the names of the backbone's tensors in a checkpoint


class UnfinishedRun(TrainedRun):
    """A run that was stopped or is still training, as it was when it was opened; the arguments are `TrainedRun`'s.

    Its weights are the best so far, or the last that were saved where no epoch has been validated. They are opened at
    once, since a training that goes on may remove them at any time.
    """

    def _begin(self) -> None:
        state = self._opened()
        progress = state["progress"]
        self.unfinished = Unfinished(epochs_done=int(progress["epoch"]) - 1, epochs=self.config.epochs)
        self._best: dict[str, dict[str, Any]] = progress["best"]
        self._latest = Path(f"checkpoint-step-{progress['step']}")  # not a file: what these weights are called
        if not self._best:
            self._networks[self._latest] = self._checkpointed(state)

    def best_weights(self, n_shot: int, classifier: str) -> Path:
        """Return the weights of the epoch that was best so far; the latest, where none has been validated."""
        epoch = best_epoch(self._best, n_shot, classifier)
        return self._latest if epoch is None else self.run.weights_of(epoch)

    def _opened(self) -> dict[str, Any]:
        """Open the weights that the checkpoint calls the best, and return the checkpoint.

        The next checkpoint is on the disk before weights that it does not want are removed: where some are gone, it is
        the one to read.
        """
        gone: list[Path] = []
        for _ in range(ATTEMPTS):
            state = self._read_checkpoint()
            files = {self.run.weights_of(int(one["epoch"])) for one in state["progress"]["best"].values()}
            self._networks.clear()
            try:
                for file in sorted(files):
                    self.network(file)
            except (InputError, FileNotFoundError):
                gone = sorted(file for file in files if not file.is_file())
                if not gone:
                    raise
                continue
            return state
        raise InputError(
            f"{gone[0]}, the best weights so far by the run's checkpoint, is not there; to measure other weights, name "
            "their file."
        )

    def _read_checkpoint(self) -> dict[str, Any]:
        if not self.run.checkpoint.is_file():
            raise InputError(
                f"{self.run.path} is not a finished run, and has nothing to measure yet: its first checkpoint comes at "
                "the end of an epoch."
            )
        return read_checkpoint(self.run.checkpoint)

    def _checkpointed(self, state: dict[str, Any]) -> TrainedNetwork:
        """Return the network as the checkpoint has it, with the mean that a validation would have saved."""
        training = training_split(self.config.dataset, self.data_dir, self.config.side)
        if training is None:
            raise InputError(
                f"No epoch of {self.run.path} has been validated yet, and to measure its checkpoint takes the training "
                f"split of {self.config.dataset}, which is not there."
            )
        with torch.random.fork_rng(devices=[]):  # the new weights are about to be replaced
            backbone = build_backbone(
                self.config.backbone, input_size=self.config.input_size or training.images.shape[1]
            )
        own = {name: tensor for name, tensor in state["learner"].items() if name.startswith(OF_BACKBONE)}
        backbone.load_state_dict({name.removeprefix(OF_BACKBONE): tensor for name, tensor in own.items()})
        network = TrainedNetwork(
            backbone.eval(), self._latest.name, device=self.device, precision=self.precision, training=training
        )
        backbone.spec = replace(backbone.spec, training_mean=network.features(training).mean(0))
        return network
