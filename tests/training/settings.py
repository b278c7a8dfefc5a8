"""What tests of training share: a configuration for all of it in a second, and labels."""

from __future__ import annotations

import torch
from torch import Tensor

from nearshot.data.augment import Augmentation
from nearshot.training import TrainConfig

TINY = TrainConfig(
    dataset="tiny",
    backbone="conv4-32",
    epochs=3,
    batch_size=32,
    n_shot=2,
    images_per_class=4,
    background=1e-10,
    warm_up=0.0,
    learning_rate=0.02,
    augmentation=Augmentation(scale=(0.6, 1.0)),
    validate_every=2,
    validation_episodes=50,
    validation_way=2,
)


def labels_of(*sizes: int) -> Tensor:
    """The labels of classes of so many images each."""
    return torch.arange(len(sizes)).repeat_interleave(torch.tensor(sizes))
