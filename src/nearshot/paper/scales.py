"""The size of an experiment: the paper's own setting, or a smaller one that is labelled as such."""

import math
import re
from collections.abc import Callable
from dataclasses import dataclass, replace

from nearshot.data.augment import Augmentation
from nearshot.errors import InputError
from nearshot.training import TrainConfig

__all__ = [
    "ADAPTED_EPISODES",
    "OWN",
    "PAPER",
    "PAPER_SIZE",
    "QUICK",
    "Scale",
    "scale_named",
    "smaller",
]

ADAPTED_EPISODES = 600  # adapting takes as long as hundreds of plain episodes
PAPER_SIZE = 84
OWN = "own"  # the folder of runs of no scale, which are in no table of the paper
OWN_LABEL = "runs of your own, each with its own settings; not a reproduction"


@dataclass(frozen=True)
class Scale:
    """A size of experiments.

    Attributes:
        label: what every table and figure says about it.
        change: returns the settings for the paper's ones.
        dataset: its only dataset; None for the paper's.
        is_papers: whether its numbers may be compared with the paper's as a reproduction.
        adapted_episodes: the number of episodes for networks and features that adapt to each.
        is_small: whether one CPU core is enough for a run.
        has_recipes: whether its runs are in tables; others are only listed.
    """

    name: str
    label: str
    change: Callable[[TrainConfig], TrainConfig]
    dataset: str | None = None
    is_papers: bool = False
    adapted_episodes: int = ADAPTED_EPISODES
    is_small: bool = False
    n_seeds: int = 3
    has_recipes: bool = True


def _quick(config: TrainConfig) -> TrainConfig:
    """Return settings for letters on a CPU: method, loss, kind of batches and schedule stay, the rest is small.

    120 epochs become a hundred steps, and batches are halved. SGD gets nowhere in so few steps, so
    Adam replaces it; letters are not mirrored. More steps are more epochs, since an epoch has no
    more than the images fill.
    """
    n_steps = round(config.epochs * 100 / 120)
    n_epochs = math.ceil(n_steps / 100)
    return replace(
        config,
        dataset="glyphs",
        backbone="conv4-32-dropblock" if config.backbone.endswith("-dropblock") else "conv4-32",
        input_size=28,
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


PAPER = Scale("paper", "84×84 inputs, as in the paper", lambda config: config, is_papers=True)
"""The paper's own setting."""
QUICK_LABEL = (
    "QUICK: glyphs at 28×28, Conv-4 with 32 channels, 100 steps for 120 epochs, half the batch, 100 episodes where "
    "something adapts to each; not a reproduction"
)
QUICK = Scale(
    "quick", QUICK_LABEL, _quick, dataset="glyphs", adapted_episodes=100, is_small=True, n_seeds=1
)
"""A small form of everything, for a CPU."""


def smaller(input_size: int | None = None, steps: int | None = None, quick: bool = False) -> Scale:
    """Return a scale with images of another side, with few steps per run for a trial, or of the quick form on a CPU.

    >>> smaller(input_size=32).label
    "32×32 inputs instead of the paper's 84×84; not a reproduction"
    """
    scale = QUICK if quick else PAPER
    if quick and input_size is not None:
        raise InputError(
            f"input_size must be left out in the quick form, which has its own (got {input_size})."
        )
    if input_size not in (None, PAPER_SIZE):
        label = f"{input_size}×{input_size} inputs instead of the paper's 84×84; not a reproduction"
        scale = Scale(
            f"{input_size}px", label, lambda config: replace(config, input_size=input_size)
        )
    if steps is None:
        return scale

    def few_steps(config: TrainConfig) -> TrainConfig:
        few = {
            "epochs": 1,
            "steps_per_epoch": steps,
            "warm_up": 0.0,
            "validation_episodes": 20,
            "validate_every": 1,
        }
        return replace(scale.change(config), **few)  # type: ignore[arg-type]

    name, label = f"{scale.name}-{steps}-steps", f"{steps} STEPS A RUN, a trial; {scale.label}"
    return replace(scale, name=name, label=label, change=few_steps, is_papers=False, n_seeds=1)


def scale_named(name: str) -> Scale:
    """Return the scale of a folder's name, such as 32px-20-steps; one that `smaller` does not make has no recipes."""
    parts = re.fullmatch(
        r"(?:paper|(?P<quick>quick)|(?P<size>\d+)px)(?:-(?P<steps>\d+)-steps)?", name
    )
    if parts is None:
        label = OWN_LABEL if name == OWN else f"{name}: an unknown scale; not a reproduction"
        return Scale(name, label, lambda config: config, has_recipes=False)
    size, steps = (int(parts[key]) if parts[key] else None for key in ("size", "steps"))
    return smaller(size, steps, quick=parts["quick"] is not None)
