"""The learning-rate schedule: steps, a cosine or a constant, after a warm-up."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

__all__ = ["learning_rate_factor"]


def learning_rate_factor(
    step: int,
    n_steps: int,
    *,
    schedule: Literal["steps", "cosine", "constant"],
    milestones: Sequence[float] = (),
    decay: float = 0.1,
    warm_up_steps: float = 0.0,
) -> float:
    """Return the factor of the learning rate at a step, counted from 0, of `n_steps`.

    Args:
        step: the step.
        n_steps: the number of steps of the run.
        schedule: "steps" multiplies by `decay` at each milestone; "cosine" falls from 1 to 0 along half a cosine after
            the warm-up; "constant" is 1.
        milestones: for "steps", fractions of the run.
        decay: for "steps".
        warm_up_steps: over how many steps the factor rises linearly to its full value.

    >>> [learning_rate_factor(step, 10, schedule="steps", milestones=(0.7,)) for step in (0, 6, 7, 9)]
    [1.0, 1.0, 0.1, 0.1]
    >>> [learning_rate_factor(step, 10, schedule="constant", warm_up_steps=4) for step in (0, 1, 3, 4)]
    [0.25, 0.5, 1.0, 1.0]
    """
    rise = min(1.0, (step + 1) / warm_up_steps) if warm_up_steps else 1.0
    if schedule == "steps":
        n_passed = sum(step >= round(fraction * n_steps) for fraction in milestones)
        return float(rise * decay**n_passed)
    if schedule == "cosine":
        done = max(0.0, step - warm_up_steps) / max(1.0, n_steps - warm_up_steps)
        return rise * 0.5 * (1 + math.cos(math.pi * done))
    return rise
