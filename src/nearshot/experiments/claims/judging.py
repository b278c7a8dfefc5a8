"""Judging a statement by what was run: confirmed, contradicted, undecided or not yet run.

A difference counts if its 95 % interval leaves zero out: over episodes, paired, for a single training seed, and between
training seeds where there are several. "No difference" is confirmed if the interval lies within a point of zero. Where
neither a statement nor its opposite is more than chance, it is undecided.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

import scipy.stats
import torch

from nearshot.evaluation import Accuracy, Comparison, compare
from nearshot.experiments.identity import run_id
from nearshot.experiments.recipe import Found
from nearshot.experiments.results import Measurement
from nearshot.training import TrainConfig

__all__ = [
    "SAME",
    "Claim",
    "Gap",
    "Pairs",
    "Side",
    "Status",
    "Verdict",
    "above",
    "gap",
    "judged",
    "listed",
    "not_above",
    "over_seeds",
    "same",
    "signed",
]

Status = Literal["confirmed", "contradicted", "undecided", "not yet run"]
SAME = 1.0  # differences within so many points are none, as the paper speaks of them
LISTED = 6  # gaps that a verdict tells; more are counted


class Verdict(NamedTuple):
    """What has become of a statement, with the numbers."""

    status: Status
    text: str


@dataclass(frozen=True)
class Claim:
    """A statement of the paper.

    Attributes:
        name: a short name.
        statement: what it says.
        where: the paper's section.
        check: what the results say, on a dataset.
    """

    name: str
    statement: str
    where: str
    check: Callable[[Found, str], Verdict]


class Gap(NamedTuple):
    """One model minus another, in points, with half a 95 % interval, and over how many training seeds."""

    what: str
    difference: float
    interval95: float
    n_seeds: int

    def __str__(self) -> str:
        return f"{self.what}: {signed(self.difference)} ± {self.interval95:.2f}"

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


def signed(number: float) -> str:
    """Return a number with its sign.

    >>> signed(-0.5)
    '−0.50'
    """
    return f"{number:+.2f}".replace("-", "−")


Side = tuple[TrainConfig, Measurement]
Pairs = Callable[[str], Sequence[tuple[str, Side, Side]]]  # of a dataset: what is compared, one side, the other


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


def judged(
    gaps: Sequence[Gap | None], *, holds: Callable[[Gap], bool], fails: Callable[[Gap], bool] | None = None
) -> Verdict:
    """Confirm if all gaps that were run hold, contradict if one fails, and leave it open otherwise; say which."""
    there = [one for one in gaps if one is not None]
    if not there:
        return Verdict("not yet run", "")
    fails = fails or (lambda one: not holds(one))
    missing = f" {len(gaps) - len(there)} of {len(gaps)} comparisons are not run yet." if len(there) < len(gaps) else ""
    failing = [one for one in there if fails(one)]
    open_ones = [one for one in there if not holds(one) and one not in failing]
    if failing:
        return Verdict("contradicted", f"Not so for {len(failing)} of {len(there)}: {listed(failing)}.{missing}")
    if open_ones:
        return Verdict("undecided", f"Open for {len(open_ones)} of {len(there)}: {listed(open_ones)}.{missing}")
    # A statement about all of them is confirmed by all of them.
    return Verdict("undecided" if missing else "confirmed", f"{listed(there)}.{missing}")


def listed(gaps: Sequence[Gap]) -> str:
    """Tell the gaps, those that are least beyond doubt first, and over how many training seeds they are."""
    weakest = sorted(gaps, key=lambda one: abs(one.difference) - one.interval95)[:LISTED]
    more = f"; and {len(gaps) - LISTED} more" if len(gaps) > LISTED else ""
    n_seeds = sorted({one.n_seeds for one in gaps})
    seeds = "one seed, ± over episodes" if n_seeds == [1] else f"{' or '.join(map(str, n_seeds))} seeds"
    return f"{'; '.join(map(str, weakest))}{more} ({seeds})"


def above(pairs: Pairs) -> Callable[[Found, str], Verdict]:
    """Check that each first is above its second."""

    def check(found: Found, dataset: str) -> Verdict:
        gaps = [gap(found, what, better, other) for what, better, other in pairs(dataset)]
        return judged(gaps, holds=lambda one: one.is_positive, fails=lambda one: one.is_negative)

    return check


def same(pairs: Pairs) -> Callable[[Found, str], Verdict]:
    """Check that there is no difference to speak of."""

    def check(found: Found, dataset: str) -> Verdict:
        gaps = [gap(found, what, one, other) for what, one, other in pairs(dataset)]
        return judged(gaps, holds=lambda one: one.is_none, fails=lambda one: one.is_some)

    return check


def not_above(pairs: Pairs) -> Callable[[Found, str], Verdict]:
    """Check that no first is above its second by half a point; where that could still be, it is undecided."""

    def check(found: Found, dataset: str) -> Verdict:
        gaps = [gap(found, what, one, other) for what, one, other in pairs(dataset)]
        bound = SAME / 2
        return judged(
            gaps,
            holds=lambda one: one.difference + one.interval95 < bound,
            fails=lambda one: one.difference - one.interval95 > bound,
        )

    return check
