"""Differences: one model minus another on the same episodes, for one training seed or between several.

One run that is measured in two ways is paired by seed: both sides have the same weights. Two runs
are not: the seed of one method draws other batches than the same seed of another, so their interval
is Welch's.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from statistics import fmean, variance
from typing import NamedTuple

import scipy.stats
import torch

from nearshot.evaluation import Accuracy, Comparison, compare
from nearshot.paper.identity import run_id
from nearshot.paper.recipe import Found, Side
from nearshot.paper.results import Measurement
from nearshot.paper.tables import Cell, cell, signed

SAME = 1.0  # the paper calls differences within this many points equal
# Margins for one run that is measured in two ways, by what differs: see `seed_margin`.
MEASURED_TWICE = {"classifier": 0.5, "how": 1.0, "layers": 1.5}


class Limits(NamedTuple):
    """The range, in points, in which a difference must lie for a statement to hold."""

    low: float = -math.inf
    high: float = math.inf


class Difference(NamedTuple):
    """One model minus another, in points."""

    name: str  # which model minus which
    difference: float  # the mean
    over_episodes: float  # half its 95 % interval over episodes alone
    n_seeds: int  # of the side that has fewer
    allowed: float = 0.0  # for seed variance, where an interval over episodes does not contain it: see `seed_margin`
    kind: str = (
        ""  # the split and shots, which differences of the same seed variance are assumed to share
    )
    spread: float = 0.0  # the standard error between seeds, times the root of their number
    freedom: float = 0.0  # the degrees of freedom of the spread; 0 if the interval is over episodes
    by_seed: tuple[float, ...] = ()  # of one run, the difference of each seed
    of_two_runs: bool = False  # with several seeds of two runs, which are not paired
    n_compared: int = 1  # of so many comparisons this is one, and has a wider interval (Bonferroni)
    limits: Limits = Limits()  # of the statement that it is judged by

    def __str__(self) -> str:
        return f"{self.name}: {signed(self.difference)} ± {self.interval95:.2f}"

    @property
    def interval95(self) -> float:
        """Half the 95 % interval: between seeds if there are several, otherwise over episodes.

        >>> one = Difference("a minus b", -0.5, 0.3, 1)
        >>> one.high < 0, one._replace(n_compared=72).high < 0
        (True, False)
        """
        if self.freedom:
            tail = float(scipy.stats.t.isf(0.025 / self.n_compared, self.freedom))
            return tail * self.spread / math.sqrt(self.n_seeds)
        normal = scipy.stats.norm
        return float(normal.isf(0.025 / self.n_compared) / normal.isf(0.025)) * self.over_episodes

    @property
    def margin(self) -> float:
        """What is added to an interval over episodes for seed variance."""
        return 0.0 if self.freedom else self.allowed

    @property
    def low(self) -> float:
        """The lower end of the interval, with the margin."""
        return self.difference - self.interval95 - self.margin

    @property
    def high(self) -> float:
        """The upper end of the interval, with the margin."""
        return self.difference + self.interval95 + self.margin

    @property
    def room(self) -> float:
        """How far within the limits the whole interval is; negative where some of it is outside."""
        return min(self.low - self.limits.low, self.limits.high - self.high)

    @property
    def fails(self) -> bool:
        """Whether the whole interval is outside the limits."""
        return self.high < self.limits.low or self.low > self.limits.high

    @property
    def cannot_hold(self) -> bool:
        """Whether the margin alone is as wide as the limits, so that no difference could be within them."""
        return 2 * self.margin >= self.limits.high - self.limits.low


def seed_margin(measured: Measurement, other: Measurement | None = None) -> float:
    """Return the margin for seed variance in points, for a single seed, which cannot estimate it.

    It is a margin and no interval. It follows the variance of three seeds on CIFAR-FS at 84×84.

    **Two runs, measured alike** (`other` is None): Student's 95 % interval of NCA minus PN, nearest
    centroid, rounded up. On the test split that is 2.4 points with 1 shot and 1.4 with 5. On the
    validation split, which selects the epoch, it is 0.3, but single runs at 32×32 have differed by
    a point from their neighbours, so the margin is 1.

    **One run, measured in two ways** (`MEASURED_TWICE`): with two classifiers, treated or adapted
    otherwise, or with other layers. Two of the largest standard deviations of such differences,
    rounded up to half points.

    >>> [seed_margin(Measurement(split, shot, "centroid")) for split in ("val", "test") for shot in (1, 5)]
    [1.0, 1.0, 2.5, 1.5]
    >>> seed_margin(Measurement("test", 5, "centroid", layers=(2, 3, 4)), Measurement("test", 5, "centroid"))
    1.5
    """
    if other is not None:
        differ = [
            what for what in MEASURED_TWICE if getattr(measured, what) != getattr(other, what)
        ]
        return max((MEASURED_TWICE[what] for what in differ), default=0.0)
    if measured.split == "val":
        return 1.0
    return 2.5 if measured.n_shot < 5 else 1.5


def difference_of(found: Found, better: Side, other: Side, *, name: str = "") -> Difference | None:
    """Return the difference of two runs, or of one run measured in two ways.

    None where either is missing, or where a scale turns both into the same run.
    """
    (config, measured), (other_config, other_measured) = better, other
    ids = [run_id(found.scale.change(one)) for one in (config, other_config)]
    if measured == other_measured and ids[0] == ids[1]:
        return None
    firsts, seconds = found.accuracies(*better), found.accuracies(*other)
    if config != other_config:
        return difference_of_runs(name, firsts, seconds, measured)
    return over_seeds(
        name, _compare_seeds(firsts, seconds), measured, seed_margin(measured, other_measured)
    )


def difference_of_runs(
    name: str,
    firsts: Mapping[int, Accuracy],
    seconds: Mapping[int, Accuracy],
    measured: Measurement,
) -> Difference | None:
    """Return one run minus another, given the accuracies of their seeds, with Welch's interval between seeds.

    If either has a single seed, the interval is over episodes, and the margin is added.
    """
    one = over_seeds(name, _compare_seeds(firsts, seconds), measured, seed_margin(measured))
    if one is None or min(len(firsts), len(seconds)) == 1:
        return one
    means = ([accuracy.mean for accuracy in side.values()] for side in (firsts, seconds))
    welch = welch_difference(name, *means)
    return welch._replace(kind=one.kind, over_episodes=one.over_episodes, allowed=one.allowed)


def welch_difference(name: str, firsts: Sequence[float], seconds: Sequence[float]) -> Difference:
    """Return the mean of some seeds' accuracies minus that of others, at least two each, with Welch's interval.

    >>> str(welch_difference("a minus b", [62.0, 62.5, 63.0], [60.0, 61.0]))
    'a minus b: +2.00 ± 2.99'
    """
    sides = (firsts, seconds)
    errors = [variance(means) / len(means) for means in sides]  # squared
    most, n_seeds = sum(map(len, sides)) - 2, min(map(len, sides))
    by_side = sum(error**2 / (len(means) - 1) for error, means in zip(errors, sides, strict=True))
    freedom = sum(errors) ** 2 / by_side if by_side else most
    spread, difference = math.sqrt(sum(errors) * n_seeds), fmean(firsts) - fmean(seconds)
    return Difference(
        name, difference, 0.0, n_seeds, spread=spread, freedom=freedom, of_two_runs=True
    )


def over_seeds(
    name: str, comparisons: Sequence[Comparison], measured: Measurement, margin: float
) -> Difference | None:
    """Return the mean of one comparison per training seed, with Student's interval between seeds.

    For a single seed the interval is over episodes, and the margin is added.
    """
    if not comparisons:
        return None
    differences = torch.tensor([one.difference for one in comparisons], dtype=torch.float64)
    n_seeds, mean, by_seed = (
        len(comparisons),
        float(differences.mean()),
        tuple(differences.tolist()),
    )
    over_episodes = math.sqrt(sum(one.interval95**2 for one in comparisons)) / n_seeds
    spread = float(differences.std()) if n_seeds > 1 else 0.0
    kind = f"{measured.split}, {measured.n_shot}-shot"
    return Difference(
        name, mean, over_episodes, n_seeds, margin, kind, spread, n_seeds - 1, by_seed
    )


def pool_spread(differences: Sequence[Difference]) -> list[Difference]:
    """Return differences with the spread between seeds pooled over all of their kind: three seeds estimate it badly.

    Comparisons share runs, so they have fewer degrees of freedom than independent ones. These are
    counted as if all had one side in common, with as much variance as the other (Satterthwaite): k
    comparisons of f degrees each have 2kf / (k + 1) together, and 4kf / (k + 3) if they are paired
    by seed. A single comparison keeps its own interval.

    The interval of two seeds is up to thirteen times as wide as they differ. Where it is wider than
    the margin of a single run, and the seeds differ by no more than that margin, the margin is used
    instead.

    >>> two = [Difference(name, 1.0, 0.1, 3, kind="5-shot", spread=spread, freedom=2)
    ...        for name, spread in (("a", 1.0), ("b", 0.0))]
    >>> [round(one.interval95, 2) for one in pool_spread(two)]  # of a spread of √½, with 3.2 degrees of freedom
    [1.25, 1.25]
    """
    found = []
    for one in differences:
        if not one.freedom:
            found.append(one)
            continue
        alike = [
            other
            for other in differences
            if (other.kind, other.of_two_runs) == (one.kind, one.of_two_runs)
        ]
        alike = [other for other in alike if other.freedom]
        # Not by the degrees of freedom: Welch's are estimated from the same variances.
        weights = [other.n_seeds - 1 for other in alike]
        squares = sum(
            weight * other.spread**2 for weight, other in zip(weights, alike, strict=True)
        )
        spread = math.sqrt(squares / sum(weights))
        factor = 2 / (len(alike) + 1) if one.of_two_runs else 4 / (len(alike) + 3)
        pooled = one._replace(spread=spread, freedom=factor * sum(other.freedom for other in alike))
        is_too_wide = pooled.interval95 > one.over_episodes + one.allowed
        is_certain = one.n_seeds == 2 and spread <= one.allowed and is_too_wide
        found.append(one._replace(freedom=0.0) if is_certain else pooled)
    return found


def _compare_seeds(
    firsts: Mapping[int, Accuracy], seconds: Mapping[int, Accuracy]
) -> list[Comparison]:
    """Compare the seeds that both have, on their common episodes: fewer episodes of a seed are the first of more."""
    comparisons = []
    for seed in (seed for seed in firsts if seed in seconds):
        both = [firsts[seed], seconds[seed]]
        lengths = [len(one.per_episode) for one in both]
        if lengths[0] != lengths[1] and both[0].protocol.seed == both[1].protocol.seed:
            n_shared = min(lengths)
            both = [
                Accuracy(
                    one.per_episode[:n_shared],
                    replace(one.protocol, n_episodes=n_shared, episodes="shared"),
                )
                for one in both
            ]
        comparisons.append(compare(*both))
    return comparisons


def difference_cell(one: Difference | None) -> Cell:
    """Return a table's cell: the difference and its interval."""
    if one is None:
        return cell(None)
    details: dict[str, float | str] = {
        "±": one.interval95,
        "± is over": "training seeds" if one.freedom else "episodes",
        "seeds": one.n_seeds,
    }
    if not one.of_two_runs:
        details["by seed"] = " ".join(map(str, one.by_seed))
    return Cell(f"{signed(one.difference)} ± {one.interval95:.2f}", one.difference, details=details)
