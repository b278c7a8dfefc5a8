"""Differences: one model minus another on the same episodes, for a training seed or between several."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import scipy.stats
import torch

from nearshot.evaluation import Accuracy, Comparison, compare
from nearshot.experiments.identity import run_id
from nearshot.experiments.recipe import Found
from nearshot.experiments.results import Measurement
from nearshot.experiments.tables import signed
from nearshot.training import TrainConfig

__all__ = ["SAME", "Gap", "Side", "gap", "over_seeds"]

SAME = 1.0  # differences within so many points are none, as the paper speaks of them

Side = tuple[TrainConfig, Measurement]


class Gap(NamedTuple):
    """One model minus another, in points, with half a 95 % interval, and over how many training seeds."""

    what: str
    difference: float
    interval95: float
    n_seeds: int

    def __str__(self) -> str:
        return f"{self.what}: {self.in_points}"

    @property
    def in_points(self) -> str:
        """The difference with its sign and interval."""
        return f"{signed(self.difference)} ± {self.interval95:.2f}"

    @property
    def is_positive(self) -> bool:
        """Whether it is more than chance."""
        return self.difference - self.interval95 > 0

    @property
    def is_negative(self) -> bool:
        """Whether it is the other way round, and more than chance."""
        return self.difference + self.interval95 < 0

    @property
    def is_none(self) -> bool:
        """Whether it is small enough to be none."""
        return abs(self.difference) + self.interval95 < SAME

    @property
    def is_some(self) -> bool:
        """Whether it is too large to be none."""
        return abs(self.difference) - self.interval95 > SAME


def gap(found: Found, what: str, better: Side, other: Side) -> Gap | None:
    """Return the paired difference of two trainings, seed by seed.

    None where either has not been run, or where a scale makes one training of the two, which says nothing.
    """
    if better[1] == other[1] and run_id(found.scale.change(better[0])) == run_id(found.scale.change(other[0])):
        return None
    return over_seeds(
        what,
        [
            compare(*_same_episodes(mine.accuracy(better[1]), yours.accuracy(other[1])))
            for mine in found.runs(better[0])
            for yours in found.runs(other[0])
            if mine.seed == yours.seed and mine.has(better[1]) and yours.has(other[1])
        ],
    )


def over_seeds(what: str, comparisons: Sequence[Comparison]) -> Gap | None:
    """Return the mean of comparisons, a training seed each, with the interval between seeds; of one, over episodes."""
    if not comparisons:
        return None
    differences = torch.tensor([one.difference for one in comparisons], dtype=torch.float64)
    n_seeds, interval = len(comparisons), comparisons[0].interval95
    if n_seeds > 1:
        interval = float(scipy.stats.t.ppf(0.975, n_seeds - 1)) * float(differences.std()) / math.sqrt(n_seeds)
    return Gap(what, float(differences.mean()), interval, n_seeds)


def _same_episodes(one: Accuracy, other: Accuracy) -> tuple[Accuracy, Accuracy]:
    """Cut two accuracies to the episodes that both have: fewer episodes of a seed are the first of more."""
    n_shared = min(len(one.per_episode), len(other.per_episode))
    if len(one.per_episode) == len(other.per_episode) or one.protocol.seed != other.protocol.seed:
        return one, other
    first, second = (
        Accuracy(it.per_episode[:n_shared], replace(it.protocol, n_episodes=n_shared, episodes="shared"))
        for it in (one, other)
    )
    return first, second
