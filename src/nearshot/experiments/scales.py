"""How large an experiment is: the paper's own setting, or a smaller one that never passes for it."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass, replace

from nearshot.data.augment import Augmentation
from nearshot.errors import InputError
from nearshot.training import TrainConfig

__all__ = ["ADAPTED_EPISODES", "OWN", "PAPER", "QUICK", "Scale", "scale_named", "smaller"]

ADAPTED_EPISODES = 600  # adapting takes as long as hundreds of plain episodes


@dataclass(frozen=True)
class Scale:
    """A size of experiments.

    Attributes:
        name: the folder of its results.
        label: what every table and figure says about it.
        change: what it makes of the paper's settings.
        dataset: the only dataset it has; None for the paper's.
        is_papers: whether its numbers may be compared with the paper's as a reproduction.
        adapted_episodes: on how many episodes networks and features that adapt to each are measured.
        is_small: whether a training is so small that a core of a CPU is enough for it; as many run at once as there
            are cores.
    """

    name: str
    label: str
    change: Callable[[TrainConfig], TrainConfig]
    dataset: str | None = None
    is_papers: bool = False
    adapted_episodes: int = ADAPTED_EPISODES
    is_small: bool = False


def _quick(config: TrainConfig) -> TrainConfig:
    """A setting for letters on a CPU: method, loss, kind of batches and schedule stay, the rest is made small.

    A hundred steps for the paper's 120 epochs, and half its batch. In so few steps SGD does not get anywhere, so it is
    Adam; and letters are not mirrored. More steps are more epochs, since one has no more than the images fill.
    """
    n_steps = round(config.epochs * 100 / 120)
    n_epochs = math.ceil(n_steps / 100)
    n_way = None if config.n_way is None else min(config.n_way, 10)
    return replace(
        config,
        dataset="glyphs",
        backbone="conv4-32-dropblock" if config.backbone.endswith("-dropblock") else "conv4-32",
        input_size=28,
        epochs=n_epochs,
        steps_per_epoch=n_steps // n_epochs,
        warm_up=config.warm_up_epochs * n_epochs / config.epochs,
        batch_size=max(64, config.batch_size // 2),
        n_way=n_way,
        optimiser="adam",
        nesterov=False,
        learning_rate=1e-3,
        augmentation=Augmentation(crop="centre", flip=0.0),
        validate_every=n_epochs,
        validation_episodes=2000,
    )


PAPER_SIZE = 84
OWN = "own"  # the folder of runs that are of no scale, which are in no table of the paper
PAPER = Scale("paper", "the paper's setting", lambda config: config, is_papers=True)
"""The paper's own setting."""
QUICK = Scale(
    "quick",
    "QUICK: glyphs at 28×28, Conv-4 with 32 channels, 100 steps for 120 epochs, half the batch, 100 episodes where "
    "something adapts to each; not a reproduction",
    _quick,
    dataset="glyphs",
    adapted_episodes=100,
    is_small=True,
)
"""All of it in a small form, on a CPU."""


def smaller(input_size: int | None = None, steps: int | None = None, quick: bool = False) -> Scale:
    """Return the scale that options ask for: smaller inputs, or only so many steps a run, to try things out.

    Args:
        input_size: the side of the images, in the place of the paper's 84.
        steps: how many steps each training has.
        quick: whether it is the quick form: letters, a small network and a hundred steps, for a CPU.

    >>> smaller(input_size=32).label
    "32×32 inputs instead of the paper's 84×84; not a reproduction"
    """
    scale = QUICK if quick else PAPER
    if input_size is not None:
        if quick:
            raise InputError("The quick form has a size of its own; leave the input size out.")
        if input_size == PAPER_SIZE:
            return PAPER if steps is None else _few_steps(PAPER, steps)
        label = f"{input_size}×{input_size} inputs instead of the paper's 84×84; not a reproduction"
        scale = Scale(f"{input_size}px", label, lambda config: replace(config, input_size=input_size))
    if steps is not None:
        scale = _few_steps(scale, steps)
    return scale


def scale_named(name: str) -> Scale | None:
    """Return the scale of a folder's name, or None for one that `smaller` does not make.

    >>> scale_named("32px-20-steps").label
    "20 STEPS A RUN, a trial; 32×32 inputs instead of the paper's 84×84; not a reproduction"
    """
    parts = re.fullmatch(r"(?:paper|(?P<quick>quick)|(?P<size>\d+)px)(?:-(?P<steps>\d+)-steps)?", name)
    if parts is None:
        return None
    size, steps = (int(parts[key]) if parts[key] else None for key in ("size", "steps"))
    return smaller(size, steps, quick=parts["quick"] is not None)


def _few_steps(scale: Scale, steps: int) -> Scale:
    def change(config: TrainConfig) -> TrainConfig:
        return replace(
            scale.change(config), epochs=1, steps_per_epoch=steps, warm_up=0.0, validation_episodes=20, validate_every=1
        )

    name, label = f"{scale.name}-{steps}-steps", f"{steps} STEPS A RUN, a trial; {scale.label}"
    return replace(scale, name=name, label=label, change=change, is_papers=False)
