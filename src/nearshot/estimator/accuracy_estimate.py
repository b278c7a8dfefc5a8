"""How good a classifier will be, before there is a test set: what its own support images say when they are left out."""

from __future__ import annotations

from dataclasses import dataclass

import scipy.stats
from torch import Tensor

from nearshot.errors import InputError
from nearshot.estimator.leave_one_out import MOST_ROUNDS, LeftOut
from nearshot.evaluation.ties import first_best

__all__ = ["AccuracyEstimate", "estimate_from"]

CONFIDENCE = 0.95


@dataclass(frozen=True)
class AccuracyEstimate:
    """An expected accuracy with a 95 % interval, as shares of 1.

    The classifier that is asked about an image has one image fewer of each class (a twentieth where there are more than
    20), so the estimate is for a little less than what there is, and most of all too low with two images a class. It
    holds for new pictures like these: taken the same way, and as often of each class. Of near copies of each other
    (a burst of photos), one answers for the other, and the estimate is too high. Of a class with a single image nothing
    is known; it is likely to be recognised less often than the others.

    Attributes:
        mean: the share of left-out images that were recognised.
        interval: (low, high), exact for a binomial share (Clopper and Pearson). It covers the true accuracy about as
            often as it says with five images a class, and less often with two: see the benchmark.
        n: how many images were left out.
        n_known: how many images a class had, in the smallest class that was asked about, while its own was left out.
        method: how it was done, in words, with the number of classes that could not be asked about.
    """

    mean: float
    interval: tuple[float, float]
    n: int
    n_known: int
    method: str

    def __str__(self) -> str:
        low, high = self.interval
        return f"{100 * self.mean:.0f} % (95 % interval {100 * low:.0f} to {100 * high:.0f} %; {self.method})"


def estimate_from(left_out: LeftOut, counts: Tensor) -> AccuracyEstimate:
    """Return the estimate from what was said about images that were left out, and the sizes of all classes.

    >>> import torch
    >>> answers = LeftOut(torch.eye(2).repeat(5, 1), torch.arange(2).repeat(5), n_known=4)
    >>> print(estimate_from(answers, torch.tensor([5, 5, 1])))
    100 % (95 % interval 69 to 100 %; 10 images left out; not asked about: one class of a single image)
    """
    if len(counts) == 1:
        raise InputError("There is one class, so that every answer is right: an accuracy takes two classes or more.")
    n_right, n = int((first_best(left_out.scores) == left_out.codes).sum()), len(left_out.codes)
    if n == 0:
        raise InputError(
            "An accuracy can be estimated only with two images of a class: one to leave out, and one to recognise it "
            "by. Give at least two of each."
        )
    interval = scipy.stats.binomtest(n_right, n).proportion_ci(CONFIDENCE, method="exact")
    return AccuracyEstimate(
        n_right / n, (float(interval.low), float(interval.high)), n, left_out.n_known, _method(n, counts)
    )


def _method(n: int, counts: Tensor) -> str:
    """Say how many of the images were left out, and which could not be."""
    n_possible, n_alone = int(counts[counts > 1].sum()), int((counts == 1).sum())
    how = f"{n:,} {f'of {n_possible:,} ' if n < n_possible else ''}images left out"
    how += f" in {MOST_ROUNDS} parts" if int(counts.max()) > MOST_ROUNDS else ""
    if n_alone:
        how += f"; not asked about: {'one class' if n_alone == 1 else f'{n_alone:,} classes'} of a single image"
    return how
