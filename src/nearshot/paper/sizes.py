"""The size of an experiment: the paper's own setting, or a smaller one that is labelled as such."""

import math
from dataclasses import dataclass, replace

from nearshot.data.augment import Augmentation
from nearshot.errors import InputError
from nearshot.training import TrainConfig

__all__ = ["OWN_SIZES", "PAPER", "QUICK", "Size", "at_input_size", "usual_size"]

PAPER_INPUT_SIZE = 84


@dataclass(frozen=True)
class Size:
    """A size of experiments.

    Attributes:
        name: the name of its folder of results.
        label: what every table and figure says about it.
        input_size: the side of the images that networks see.
        dataset: its only dataset; None for the paper's.
        adapted_episodes: the number of episodes for networks and features that adapt to each, which
            takes as long as hundreds of plain ones.
        is_small: whether runs are changed to take minutes on one CPU core.
        n_seeds: the default number of training seeds.
        is_own: whether it is the size of a dataset's own images, on which the paper has no numbers.
    """

    name: str
    label: str
    input_size: int = PAPER_INPUT_SIZE
    dataset: str | None = None
    adapted_episodes: int = 600
    is_small: bool = False
    n_seeds: int = 3
    is_own: bool = False

    @property
    def is_papers(self) -> bool:
        """Whether its numbers may be compared with the paper's as a reproduction."""
        return self.name == "paper"

    def change(self, config: TrainConfig) -> TrainConfig:
        """Return the settings at this size, for the paper's ones."""
        if self.is_small:
            return _quick(config, self)
        return replace(config, input_size=self.input_size)


PAPER = Size("paper", "84×84 inputs, as in the paper")
"""The paper's own setting."""

QUICK = Size(
    name="quick",
    label=(
        "QUICK: glyphs at 28×28, Conv-4 with 32 channels, 100 steps for 120 epochs, half the "
        "batch, 100 episodes where something adapts to each; not a reproduction"
    ),
    input_size=28,
    dataset="glyphs",
    adapted_episodes=100,
    is_small=True,
    n_seeds=1,
)
"""A small form of everything, for a CPU."""


OWN_SIZES = {
    "tiny-tiered": Size(
        name="own",
        label="64×64 inputs, the size of the dataset's own images; the paper has other images",
        input_size=64,
        is_own=True,
    )
}
"""The sizes of datasets that the paper does not have."""


def usual_size(dataset: str | None) -> Size:
    """Return the size at which recipes run on a dataset: the paper's, or the dataset's own."""
    return PAPER if dataset is None else OWN_SIZES.get(dataset, PAPER)


def at_input_size(input_size: int) -> Size:
    """Return the paper's setting on images of another side.

    >>> at_input_size(32).label
    "32×32 inputs instead of the paper's 84×84; not a reproduction"
    """
    if input_size < 1:
        raise InputError(f"input_size must be at least 1 (got {input_size}).")
    if input_size == PAPER_INPUT_SIZE:
        return PAPER
    label = f"{input_size}×{input_size} inputs instead of the paper's 84×84; not a reproduction"
    return Size(f"{input_size}px", label, input_size)


def _quick(config: TrainConfig, size: Size) -> TrainConfig:
    """Return settings for glyphs on a CPU: method, batches and schedule stay, the rest is small.

    120 epochs become a hundred steps, and batches are halved. SGD gets nowhere in so few steps, so
    Adam replaces it; glyphs are not mirrored. More steps are more epochs, since an epoch has no
    more than the images fill.
    """
    n_steps = round(config.epochs * 100 / 120)
    n_epochs = math.ceil(n_steps / 100)
    return replace(
        config,
        dataset=size.dataset or config.dataset,
        backbone="conv4-32-dropblock" if config.backbone.endswith("-dropblock") else "conv4-32",
        input_size=size.input_size,
        epochs=n_epochs,
        steps_per_epoch=n_steps // n_epochs,
        warm_up=config.warm_up_epochs * n_epochs / config.epochs,
        batch_size=max(64, config.batch_size // 2),
        n_way=None if config.n_way is None else min(config.n_way, 10),
        optimiser="adam",
        nesterov=False,
        learning_rate=1e-3,
        augmentation=Augmentation(crop="centre", flip=0.0),
        validate_every=n_epochs,
        validation_episodes=2000,
    )
