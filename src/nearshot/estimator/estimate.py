"""How good a classifier will be, before there is a test set: what its own support images say when they are left out."""

from __future__ import annotations

from dataclasses import dataclass

import scipy.stats

from nearshot.errors import InputError

__all__ = ["AccuracyEstimate", "estimate_from_counts"]

CONFIDENCE = 0.95


@dataclass(frozen=True)
class AccuracyEstimate:
    """An expected accuracy with a 95 % interval, as shares of 1.

    The classifier that is asked about an image has one image fewer of each class (a twentieth where there are more than
    20), so the estimate is for a little less than what there is, and most of all too low with two images a class. It
    holds for new pictures like these: taken the same way, and as often of each class. Of near copies of each other
    (a burst of photos), one answers for the other, and the estimate is too high.

    Attributes:
        mean: the share of left-out images that were recognised.
        interval: (low, high), exact for a binomial share (Clopper and Pearson). It covers the true accuracy about as
            often as it says with five images a class, and less often with two: see the benchmark.
        n: how many images were left out.
        n_known: how many images a class had, in the smallest class that was asked about, while its own was left out.
        method: how it was done, in words.
    """

    mean: float
    interval: tuple[float, float]
    n: int
    n_known: int
    method: str

    def __str__(self) -> str:
        low, high = self.interval
        return f"{100 * self.mean:.0f} % (95 % interval {100 * low:.0f} to {100 * high:.0f} %; {self.method})"


def estimate_from_counts(n_right: int, n: int, n_known: int, method: str) -> AccuracyEstimate:
    """Return the estimate for so many right answers.

    >>> print(estimate_from_counts(23, 25, 4, "each of 25 images left out once"))
    92 % (95 % interval 74 to 99 %; each of 25 images left out once)
    """
    if n == 0:
        raise InputError(
            "An accuracy can be estimated only with two images of a class: one to leave out, and one to recognise it "
            "by. Give at least two of each."
        )
    interval = scipy.stats.binomtest(n_right, n).proportion_ci(CONFIDENCE, method="exact")
    return AccuracyEstimate(n_right / n, (float(interval.low), float(interval.high)), n, n_known, method)
