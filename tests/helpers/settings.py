"""What tests of training share: a small configuration, a method that stops a run, and labels."""

import os
import signal
from dataclasses import dataclass, fields, replace
from typing import Any

import torch
from torch import Tensor

from nearshot.data.augment import Augmentation
from nearshot.training import METHODS, Batch, TrainConfig
from nearshot.training.methods import NCA, change_method

TINY = TrainConfig(
    method=NCA(background=1e-10),
    dataset="tiny",
    backbone="conv4-32",
    epochs=3,
    batch_size=32,
    images_per_class=4,
    warm_up=0.0,
    learning_rate=0.02,
    augmentation=Augmentation(scale=(0.6, 1.0)),
    validate_every=2,
    validation_episodes=50,
    validation_n_way=2,
)


def change(config: TrainConfig, **settings: Any) -> TrainConfig:
    """Return a configuration with settings changed, those of its method among them.

    A method by its name keeps the settings that both have; its episodes are of two shots.
    """
    method = settings.pop("method", config.method)
    if isinstance(method, str):
        method = change_method(config.method, METHODS[method])
        if method.n_shot is not None:
            method = replace(method, n_shot=2)
    names = [item.name for item in fields(method)]
    of_method = {name: settings.pop(name) for name in names if name in settings}
    return replace(config, method=replace(method, **of_method), **settings)


n_losses = 0  # that `Stops` has computed since `stops`


@dataclass(frozen=True)
class Stops(NCA):
    """NCA, which sends its own process a signal while it computes some batch."""

    background: float = 1e-10
    stop_at: int = 1
    signal_number: int = signal.SIGTERM

    def loss(self, batch: Batch) -> Tensor:
        """Return NCA's loss."""
        global n_losses  # noqa: PLW0603 (settings do not change)
        n_losses += 1
        if n_losses == self.stop_at:
            os.kill(os.getpid(), self.signal_number)
        return super().loss(batch)


def stops(at: int, number: signal.Signals = signal.SIGTERM) -> Stops:
    """Return a method that sends a signal at its loss of this number, counted from now."""
    global n_losses  # noqa: PLW0603
    n_losses = 0
    return Stops(stop_at=at, signal_number=int(number))


def labels_of(*sizes: int) -> Tensor:
    """The labels of classes of so many images each."""
    return torch.arange(len(sizes)).repeat_interleave(torch.tensor(sizes))
