"""Paired differences: one model minus another on the same episodes, for one training seed or between several."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import scipy.stats
import torch

from nearshot.evaluation import Accuracy, Comparison, compare
from nearshot.experiments.recipe import Found
from nearshot.experiments.results import Measurement
from nearshot.experiments.tables import Cell, cell, signed
from nearshot.training import TrainConfig

SAME = 1.0  # the paper calls differences within this many points equal
# Margins for one run that is measured in two ways, by what differs: see `seed_margin`.
MEASURED_TWICE = {"classifier": 0.5, "treatment": 1.0, "adapted": 1.0, "layers": 1.5}

Side = tuple[TrainConfig, Measurement]


class PairedDifference(NamedTuple):
    """One model minus another, in points."""

    name: str  # which model minus which
    difference: float  # the mean
    interval95: float  # half its 95 % interval: over episodes for one training seed, otherwise between seeds
    n_seeds: int
    margin: float = 0.0  # added to the interval for seed variance that it does not contain: see `seed_margin`
    kind: str = ""  # differences of one kind are assumed to have the same seed variance: see `kind_of`
    spread: float = 0.0  # the standard deviation of the difference between seeds
    freedom: float = 0.0  # the degrees of freedom of the spread
    over_episodes: float = 0.0  # with several seeds, half the 95 % interval over episodes alone
    allowed: float = 0.0  # the margin that may replace an interval between seeds: see `pool_spread`
    by_seed: tuple[float, ...] = ()  # with several seeds, the difference of each

    def __str__(self) -> str:
        return f"{self.name}: {signed(self.difference)} ± {self.interval95:.2f}"

    @property
    def low(self) -> float:
        """The lower end of the interval, with the margin."""
        return self.difference - self.interval95 - self.margin

    @property
    def high(self) -> float:
        """The upper end of the interval, with the margin."""
        return self.difference + self.interval95 + self.margin

    def among(self, number: int) -> PairedDifference:
        """Return it with the interval of one among several comparisons (Bonferroni).

        >>> one = PairedDifference("a minus b", -0.5, 0.3, 1)
        >>> one.high < 0, one.among(72).high < 0
        (True, False)
        """
        distribution = scipy.stats.t(self.freedom) if self.freedom else scipy.stats.norm()
        wider = float(distribution.isf(0.025 / number) / distribution.isf(0.025))
        return self._replace(interval95=wider * self.interval95)


def seed_margin(measured: Measurement, other: Measurement | None = None) -> float:
    """Return the margin for seed variance in points, for a single seed, which cannot estimate it.

    It is a margin and no interval. It follows the variance of three seeds on CIFAR-FS at 84×84.

    **Two runs, measured alike** (`other` is None). Reference: NCA minus PN, nearest centroid. On the test split the
    standard deviation of the three paired differences is 1.16 points with 1 shot and 0.63 with 5. The margin is two of
    them, rounded up. The variances of both methods' accuracies agree: the root of their sum is 0.86 and 0.52, and times
    2.78 (Student's t for 95 %, four degrees of freedom) that is 2.4 and 1.4. On the validation split, which selects the
    epoch, the standard deviation is 0.11 and 0.10. Three seeds cannot exclude 0.7, and single runs at 32×32 have
    differed by a point from their neighbours (NCA is better with 80 % of its pairs than with all). So the margin is 1.

    **One run, measured in two ways**: with two classifiers or treatments, adapted or not, or with other layers. The
    largest standard deviations of such differences over three seeds of NCA are 0.18, 0.26, 0.42 and
    0.69, and the margin is two of them, rounded up to half points (`MEASURED_TWICE`).

    >>> [seed_margin(Measurement(split, shot, "centroid")) for split in ("val", "test") for shot in (1, 5)]
    [1.0, 1.0, 2.5, 1.5]
    >>> seed_margin(Measurement("test", 5, "centroid", layers=(2, 3, 4)), Measurement("test", 5, "centroid"))
    1.5
    """
    if other is not None:
        differ = [what for what in MEASURED_TWICE if getattr(measured, what) != getattr(other, what)]
        return max((MEASURED_TWICE[what] for what in differ), default=0.0)
    if measured.split == "val":
        return 1.0
    return 2.5 if measured.n_shot < 5 else 1.5


def kind_of(measured: Measurement) -> str:
    """Return what two differences must share to have the same seed variance: the split and the number of shots."""
    return f"{measured.split}, {measured.n_shot}-shot"


def paired_difference(found: Found, name: str, better: Side, other: Side) -> PairedDifference | None:
    """Return the paired difference of two runs over their common seeds.

    None where either is missing, or where a scale turns both into the same run.
    """
    (config, measured), (other_config, other_measured) = better, other
    others = {run.seed: run for run in found.runs(other_config) if run.has(other_measured)}
    pairs = [(run, others[run.seed]) for run in found.runs(config) if run.seed in others and run.has(measured)]
    if measured == other_measured and any(run.id == second.id for run, second in pairs):
        return None
    comparisons = [
        compare(*_shared_episodes(run.accuracy(measured), second.accuracy(other_measured))) for run, second in pairs
    ]
    margin = seed_margin(measured, other_measured if config == other_config else None)
    return over_seeds(name, comparisons, margin=margin, kind=kind_of(measured))


def over_seeds(name: str, comparisons: Sequence[Comparison], *, margin: float, kind: str) -> PairedDifference | None:
    """Return the mean of one comparison per training seed, with the interval between seeds.

    For a single seed the interval is over episodes, and the margin is added.
    """
    if not comparisons:
        return None
    differences = torch.tensor([one.difference for one in comparisons], dtype=torch.float64)
    n_seeds, mean = len(comparisons), float(differences.mean())
    if n_seeds == 1:
        return PairedDifference(name, mean, comparisons[0].interval95, 1, margin, kind)
    spread, freedom, by_seed = float(differences.std()), n_seeds - 1, tuple(differences.tolist())
    over_episodes = math.sqrt(sum(one.interval95**2 for one in comparisons)) / n_seeds
    interval95 = _interval95(spread, n_seeds, freedom)
    return PairedDifference(
        name, mean, interval95, n_seeds, 0.0, kind, spread, freedom, over_episodes, allowed=margin, by_seed=by_seed
    )


def pool_spread(differences: Sequence[PairedDifference]) -> list[PairedDifference]:
    """Return differences with the spread between seeds pooled over all of their kind: three seeds estimate it badly.

    Comparisons share runs, so they have fewer degrees of freedom than independent ones. These are counted as if all
    had one side in common, with as much variance as the other (Satterthwaite): k comparisons of n seeds have
    4k(n − 1) / (k + 3), never more than four independent ones.

    The interval of two seeds is nearly thirteen times as wide as they differ. Where it is wider than the margin of a
    single run, and the seeds differ by no more than that margin, the margin is used instead.

    >>> two = [PairedDifference(name, 1.0, 2.5, 3, kind="5-shot", spread=spread, freedom=2)
    ...        for name, spread in (("a", 1.0), ("b", 0.0))]
    >>> [round(one.interval95, 2) for one in pool_spread(two)]  # of a spread of √½, with 3.2 degrees of freedom
    [1.25, 1.25]
    """
    return [_pooled(one, [other for other in differences if other.kind == one.kind]) for one in differences]


def _pooled(one: PairedDifference, alike: Sequence[PairedDifference]) -> PairedDifference:
    if not one.freedom:
        return one
    total = sum(other.freedom for other in alike)
    spread = math.sqrt(sum(other.freedom * other.spread**2 for other in alike) / total)
    freedom = 4 * total / (sum(other.freedom > 0 for other in alike) + 3)
    between = _interval95(spread, one.n_seeds, freedom)
    if one.n_seeds == 2 and spread <= one.allowed and between > one.over_episodes + one.allowed:
        return one._replace(interval95=one.over_episodes, margin=one.allowed, freedom=0.0)
    return one._replace(interval95=between, spread=spread, freedom=freedom)


def _interval95(spread: float, n_seeds: int, freedom: float) -> float:
    """Return half the 95 % interval of a mean over seeds."""
    return float(scipy.stats.t.isf(0.025, freedom)) * spread / math.sqrt(n_seeds)


def _shared_episodes(one: Accuracy, other: Accuracy) -> list[Accuracy]:
    """Return two accuracies over their common episodes: fewer episodes of a seed are the first of more."""
    n_shared = min(len(one.per_episode), len(other.per_episode))
    if len(one.per_episode) == len(other.per_episode) or one.protocol.seed != other.protocol.seed:
        return [one, other]
    return [
        Accuracy(it.per_episode[:n_shared], replace(it.protocol, n_episodes=n_shared, episodes="shared"))
        for it in (one, other)
    ]


def paired_cell(one: PairedDifference | None, *, with_seeds: bool = False) -> Cell:
    """Return a table's cell: the difference and its interval, with each seed's in brackets if requested."""
    if one is None:
        return cell(None)
    text = f"{signed(one.difference)} ± {one.interval95:.2f}"
    if with_seeds and one.by_seed:
        text += f" ({', '.join(map(signed, one.by_seed))})"
    by_seed = one.by_seed or (one.difference,)
    details: dict[str, float | str] = {
        "±": one.interval95,
        "± is over": "episodes" if one.n_seeds == 1 else "training seeds",
        "seeds": len(by_seed),
        "by seed": " ".join(map(str, by_seed)),
    }
    return Cell(text, one.difference, details=details)
