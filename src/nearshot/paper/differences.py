"""Differences between accuracies by training seed: two runs, or one run measured in two ways.

One run that is measured in two ways is paired by seed, since both sides have the same weights. Two
runs are not: the seed of one method draws other batches than the same seed of another. Three seeds
say little about a standard deviation, so where seeds matter, one that is pooled over all runs is
used for both sides; elsewhere their interval is Welch's. docs/judging.md has the reasons.
"""

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from nearshot.evaluation import Accuracy, compare
from nearshot.evaluation.statistics import Difference, paired, student, welch

POOLED_FROM = 0.2  # points: the pooled standard deviation above which it is used


@dataclass(frozen=True)
class SeedDeviation:
    """The standard deviation between training seeds, in points, pooled over several runs."""

    value: float
    degrees_of_freedom: int

    def difference(
        self, firsts: Sequence[float], seconds: Sequence[float], *, confidence: float = 0.95
    ) -> Difference:
        """Return the difference of two runs, with Student's interval of this deviation.

        >>> print(SeedDeviation(0.5, 20).difference([62.0, 62.5, 63.0], [60.0, 61.0]))
        +2.00 ± 0.95
        """
        n_first = len(firsts)
        n_second = len(seconds)
        error = self.value * math.sqrt(1 / n_first + 1 / n_second)
        half_width = error * student(self.degrees_of_freedom, confidence)
        mean = statistics.fmean(firsts) - statistics.fmean(seconds)
        return Difference(mean, half_width, n_first, n_second)


def pooled_deviation(runs: Iterable[Sequence[Sequence[float]]]) -> SeedDeviation | None:
    """Return the standard deviation between seeds, pooled over runs; None if no run has two seeds.

    Each run has one sequence of accuracies by seed, or several if it was measured with several
    classifiers. Those are of the same networks, so their variances are averaged, and count once.

    >>> pooled_deviation([[[62.0, 64.0]], [[70.0, 70.0, 70.0], [71.0, 71.0, 71.0]], [[50.0]]])
    SeedDeviation(value=0.816496580927726, degrees_of_freedom=3)
    """
    squares = 0.0
    degrees_of_freedom = 0
    for measurements in runs:
        variances = [statistics.variance(seeds) for seeds in measurements if len(seeds) > 1]
        if variances:
            n_seeds = max(len(seeds) for seeds in measurements)
            squares += statistics.fmean(variances) * (n_seeds - 1)
            degrees_of_freedom += n_seeds - 1
    if not degrees_of_freedom:
        return None
    return SeedDeviation(math.sqrt(squares / degrees_of_freedom), degrees_of_freedom)


@dataclass(frozen=True)
class SeedComparison:
    """Accuracies to compare in per cent, one per training seed.

    Attributes:
        firsts, seconds: the accuracies of both sides.
        is_paired: whether both sides have the same seeds of the same run, in the same order.
        over_episodes: half the 95 % interval over episodes, if there is a single seed.
        deviation: the standard deviation between seeds, where it is not each side's own.
    """

    firsts: tuple[float, ...]
    seconds: tuple[float, ...]
    is_paired: bool
    over_episodes: float = math.nan
    deviation: SeedDeviation | None = None

    @property
    def n_seeds(self) -> int:
        """The number of seeds of the side that has fewer."""
        return min(len(self.firsts), len(self.seconds))

    def difference(self, confidence: float = 0.95) -> Difference:
        """Return the first side minus the second, with an interval between seeds.

        Of a single seed the interval is over episodes, without seed variance.

        >>> SeedComparison((62.0, 62.5, 63.0), (60.0, 61.0), is_paired=False).difference().mean
        2.0
        """
        if self.n_seeds == 1:
            return Difference(self.firsts[0] - self.seconds[0], self.over_episodes, 1, 1)
        if self.is_paired:
            return paired(self.firsts, self.seconds, confidence=confidence)
        if self.deviation is not None:
            return self.deviation.difference(self.firsts, self.seconds, confidence=confidence)
        return welch(self.firsts, self.seconds, confidence=confidence)


def compare_runs(
    firsts: Mapping[int, Accuracy],
    seconds: Mapping[int, Accuracy],
    deviation: SeedDeviation | None = None,
) -> SeedComparison | None:
    """Return the accuracies of two runs, given by seed; None where either is missing.

    `deviation` is the standard deviation between seeds, where it is not to be each side's own. If
    either has a single seed, that seed alone is compared, on the episodes that both have.
    """
    if min(len(firsts), len(seconds)) < 2:
        return compare_seeds(firsts, seconds)
    first_means = tuple(accuracy.mean for accuracy in firsts.values())
    second_means = tuple(accuracy.mean for accuracy in seconds.values())
    return SeedComparison(first_means, second_means, is_paired=False, deviation=deviation)


def compare_seeds(
    firsts: Mapping[int, Accuracy], seconds: Mapping[int, Accuracy]
) -> SeedComparison | None:
    """Return the accuracies of the seeds that both sides have, on the episodes that both have."""
    first_means = []
    second_means = []
    over_episodes = math.nan
    for seed in firsts:
        if seed in seconds:
            first, second = shared_episodes(firsts[seed], seconds[seed])
            over_episodes = compare(first, second).interval95
            first_means.append(first.mean)
            second_means.append(second.mean)
    if not first_means:
        return None
    return SeedComparison(tuple(first_means), tuple(second_means), True, over_episodes)


def shared_episodes(first: Accuracy, second: Accuracy) -> tuple[Accuracy, Accuracy]:
    """Return two accuracies on the episodes that both have: those of one seed begin alike."""
    n_shared = min(len(first.per_episode), len(second.per_episode))
    same_length = len(first.per_episode) == len(second.per_episode)
    if same_length or first.protocol.seed != second.protocol.seed:
        return first, second
    return _first_episodes(first, n_shared), _first_episodes(second, n_shared)


def _first_episodes(accuracy: Accuracy, n_episodes: int) -> Accuracy:
    protocol = replace(accuracy.protocol, n_episodes=n_episodes, episodes="shared")
    return Accuracy(accuracy.per_episode[:n_episodes], protocol)
