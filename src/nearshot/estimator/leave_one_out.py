"""Asking a support set about its own images: each is left out once, and what is left has to recognise it.

If only the image itself were left out, its class would have one image fewer than the others, whose means then are
better placed: with two images a class that alone costs many answers. So one image of every class is left out at a
time.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from nearshot.estimator.calibration import usual_temperature
from nearshot.estimator.scores import Support, class_scores
from nearshot.evaluation.classifiers import ClassifierName

__all__ = ["MOST_ROUNDS", "LeftOut", "Round", "left_out_scores", "rounds"]

MOST_ROUNDS = 20  # classes of more images are left out in twenty parts
MOST_TESTED = 1000  # images in all rounds, so that a support set of many thousands is not asked about all of them


class Round(NamedTuple):
    """Which images stay and which are asked about, as indices."""

    kept: Tensor
    tested: Tensor


class LeftOut(NamedTuple):
    """What the rest of a support set says about the images that were left out.

    Attributes:
        scores: (image, class) over the usual temperature of what was left.
        codes: (image,) their classes.
        n_known: how many images a class still had, in the smallest class that was asked about; 0 where none was.
    """

    scores: Tensor
    codes: Tensor
    n_known: int


def rounds(support: Support, most: int = MOST_ROUNDS) -> Iterator[Round]:
    """Yield rounds in which one image of each class, or one part of twenty, is left out and asked about.

    An only image of a class always stays, and is never asked about. A class with fewer images than others has nothing
    left to ask in later rounds, but still gives up one image, in turn. Of more than a thousand images a thousand are
    asked about, spread evenly over the images of all classes.

    >>> support = Support(torch.zeros(5, 1), torch.tensor([0, 0, 0, 1, 1]), 2)
    >>> [(one.kept.tolist(), one.tested.tolist()) for one in rounds(support)]
    [([1, 2, 4], [0, 3]), ([0, 2, 3], [1, 4]), ([0, 1, 4], [2])]
    """
    counts = support.counts
    if int(counts.max()) < 2:
        return
    order = support.codes.argsort(stable=True)
    position = torch.empty_like(order)  # of an image in its class
    position[order] = torch.arange(len(order)) - (counts.cumsum(0) - counts)[support.codes[order]]
    count = counts[support.codes]
    chosen = torch.zeros_like(count, dtype=torch.bool)
    possible = order[(count > 1)[order]]  # class by class
    n_chosen = min(len(possible), MOST_TESTED)
    chosen[possible[torch.arange(n_chosen) * len(possible) // n_chosen]] = True
    n_rounds = min(int(counts.max()), most)
    for number in range(n_rounds):
        asked = (position % n_rounds == number) & (count > 1)
        given_up = (position == number % count) & (number >= count) & (count > 1)
        yield Round((~(asked | given_up)).nonzero()[:, 0], (asked & chosen).nonzero()[:, 0])


def left_out_scores(support: Support, classifier: ClassifierName, n_neighbors: int | None = None) -> LeftOut:
    """Leave images out, round by round, and score the classes for them by what is left."""
    scores, codes, n_known = [support.features.new_zeros(0, support.n_classes)], [support.codes[:0]], []
    for kept, tested in rounds(support):
        if not len(tested):
            continue
        known, asked = support.subset(kept), support.codes[tested]
        usual = usual_temperature(known, classifier, n_neighbors)
        scores.append(class_scores(support.features[tested], known, classifier, n_neighbors) / usual)
        codes.append(asked)
        n_known.append(int(known.counts[asked].min()))
    return LeftOut(torch.cat(scores), torch.cat(codes), min(n_known, default=0))
