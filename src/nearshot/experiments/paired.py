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

__all__ = ["MEASURED_OTHERWISE", "SAME", "Gap", "Side", "gap", "kind_of", "luck_in", "over_seeds", "pooled"]

SAME = 1.0  # differences within so many points are none, as the paper speaks of them
# How one training may be measured in two ways, and what is allowed for the chance in it: see `luck_in`.
MEASURED_OTHERWISE = {"classifier": 0.5, "treatment": 1.0, "adapted": 1.0, "layers": 1.5}

Side = tuple[TrainConfig, Measurement]


class Gap(NamedTuple):
    """One model minus another, in points.

    Attributes:
        what: which of which.
        difference: their mean difference.
        interval95: half its 95 % interval: over episodes for one training seed, otherwise between seeds.
        n_seeds: over how many training seeds.
        luck: a margin for what the interval does not know of, the chance in a training: see `luck_in`.
        kind: gaps of one kind are taken to have the same chance in them: see `kind_of`.
        spread: the standard deviation of the difference between seeds.
        freedom: how many degrees of freedom the spread has.
        over_episodes: half the 95 % interval over episodes alone, of several seeds.
        allowed: the margin that may take the place of an interval between seeds: see `pooled`.
        by_seed: the difference of each seed, where there are several.
    """

    what: str
    difference: float
    interval95: float
    n_seeds: int
    luck: float = 0.0
    kind: str = ""
    spread: float = 0.0
    freedom: float = 0.0
    over_episodes: float = 0.0
    allowed: float = 0.0
    by_seed: tuple[float, ...] = ()

    def __str__(self) -> str:
        return f"{self.what}: {self.in_points}"

    @property
    def in_points(self) -> str:
        """The difference with its sign and interval."""
        return f"{signed(self.difference)} ± {self.interval95:.2f}"

    @property
    def low(self) -> float:
        """The least that it may be."""
        return self.difference - self.interval95 - self.luck

    @property
    def high(self) -> float:
        """The most that it may be."""
        return self.difference + self.interval95 + self.luck

    def among(self, number: int) -> Gap:
        """Return it with the intervals of one among so many (Bonferroni): of many, one is far off by chance.

        >>> one = Gap("a minus b", -0.5, 0.3, 1)
        >>> one.high < 0, one.among(72).high < 0
        (True, False)
        """
        chance = scipy.stats.t(self.freedom) if self.freedom else scipy.stats.norm()
        wider = float(chance.isf(0.025 / number) / chance.isf(0.025))
        return self._replace(interval95=wider * self.interval95)


def luck_in(measured: Measurement, other: Measurement | None = None) -> float:
    """Return what is allowed for the chance in trainings, in points, where one seed does not tell it.

    It is a margin, no interval, and follows what three seeds on CIFAR-FS at 84×84 differ by.

    **Two trainings**, measured alike: NCA minus PN, nearest centroid. On the test split the standard deviation of the
    three paired differences is 1.16 points with 1 shot and 0.63 with 5, and the margin is two of them, rounded up. How
    much each method's accuracies vary says the same: the root of both variances' sum is 0.86 and 0.52, and times 2.78
    (Student's t for 95 %, four degrees of freedom) that is 2.4 and 1.4. On the validation split, by which the epoch is
    chosen, the standard deviation is 0.11 and 0.10. But three seeds leave open that it is as much as 0.7, and single
    trainings at 32×32 have been a point off their neighbours there (NCA is better with 80 % of its pairs than with
    all), so a point stays allowed.

    **One training, measured in two ways**: with another classifier or treatment, adapted to each episode or not, with
    other layers. The largest standard deviations of such differences over three seeds of NCA are 0.18, 0.26, 0.42 and
    0.69, and the margin is two of them, rounded up to half points (`MEASURED_OTHERWISE`).

    >>> [luck_in(Measurement(split, shot, "centroid")) for split in ("val", "test") for shot in (1, 5)]
    [1.0, 1.0, 2.5, 1.5]
    >>> luck_in(Measurement("test", 5, "centroid", layers=(2, 3, 4)), Measurement("test", 5, "centroid"))
    1.5
    """
    if other is not None:
        return max(
            (margin for what, margin in MEASURED_OTHERWISE.items() if getattr(measured, what) != getattr(other, what)),
            default=0.0,
        )
    if measured.split == "val":
        return 1.0
    return 2.5 if measured.n_shot < 5 else 1.5


def kind_of(measured: Measurement) -> str:
    """Return what has to be the same for two differences to have as much chance in them: the split and the shots."""
    return f"{measured.split}, {measured.n_shot}-shot"


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
        luck=luck_in(better[1], other[1] if better[0] == other[0] else None),
        kind=kind_of(better[1]),
    )


def over_seeds(what: str, comparisons: Sequence[Comparison], *, luck: float, kind: str) -> Gap | None:
    """Return the mean of comparisons, a training seed each, with the interval between seeds.

    Of a single one the interval is over episodes, and luck is allowed for.
    """
    if not comparisons:
        return None
    differences = torch.tensor([one.difference for one in comparisons], dtype=torch.float64)
    n_seeds, mean = len(comparisons), float(differences.mean())
    if n_seeds == 1:
        return Gap(what, mean, comparisons[0].interval95, 1, luck, kind)
    spread, freedom = float(differences.std()), n_seeds - 1
    over_episodes = math.sqrt(sum(one.interval95**2 for one in comparisons)) / n_seeds
    between = _interval95(spread, n_seeds, freedom)
    by_seed = tuple(differences.tolist())
    return Gap(what, mean, between, n_seeds, 0.0, kind, spread, freedom, over_episodes, luck, by_seed)


def pooled(gaps: Sequence[Gap]) -> list[Gap]:
    """Return gaps with the spread between seeds of all of their kind together: three seeds alone hardly tell it.

    Comparisons share trainings, so that many know less than as many of their own would. Degrees of freedom are counted
    as if all had one side in common, with as much chance in it as in the other (Satterthwaite): of k comparisons of n
    seeds they are 4k(n − 1) / (k + 3), which never comes to more than those of four.

    Two seeds leave an interval that is nearly thirteen times as wide as they differ. Where it is wider than what is
    allowed for the chance in a single training, and they differ by no more than that, the margin is taken instead: a
    second training is not to tell less. Three speak for themselves.

    >>> two = Gap("a", 1.0, 2.5, 3, 0.0, "5-shot", 1.0, 2), Gap("b", 2.0, 0.0, 3, 0.0, "5-shot", 0.0, 2)
    >>> [round(one.interval95, 2) for one in pooled(two)]  # of a spread of √½, with 3.2 degrees of freedom
    [1.25, 1.25]
    """
    return [_pooled(one, [other for other in gaps if other.kind == one.kind]) for one in gaps]


def _pooled(one: Gap, alike: Sequence[Gap]) -> Gap:
    if not one.freedom:
        return one
    total = sum(other.freedom for other in alike)
    spread = math.sqrt(sum(other.freedom * other.spread**2 for other in alike) / total)
    freedom = 4 * total / (sum(other.freedom > 0 for other in alike) + 3)
    between = _interval95(spread, one.n_seeds, freedom)
    if one.n_seeds == 2 and spread <= one.allowed and between > one.over_episodes + one.allowed:
        return one._replace(interval95=one.over_episodes, luck=one.allowed, freedom=0.0)
    return one._replace(interval95=between, spread=spread, freedom=freedom)


def _interval95(spread: float, n_seeds: int, freedom: float) -> float:
    """Return half the 95 % interval of a mean over seeds."""
    return float(scipy.stats.t.isf(0.025, freedom)) * spread / math.sqrt(n_seeds)


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
