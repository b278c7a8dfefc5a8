"""How new a picture is: its distance to the nearest class, in units of how far the class's own images are from it.

The squared distance to a class's mean is divided by the variance inside of the class, and by 1 + 1/n, as even a
picture of the class lies so much farther from a mean of n images than from the true one. A class's variance is known
badly from a few images, so it is drawn towards that of all classes, and that towards a usual share of the distances
between classes. About 1 is usual for a picture of a class.

The threshold for a chosen rate of false rejections comes from the novelties of left-out support images. A handful of
them has no 1 % quantile. So their cube roots, which for squared distances are nearly normal (Wilson and Hilferty),
are taken to be normal, with a prior of a few images' weight, and the threshold is the quantile of the next one
(Student's t, which knows how few they are). The more images there are over the quantile, the more their own order is
trusted instead. `benchmarks/estimator.py` measures the rate that is reached, and compares this novelty with others.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import scipy.stats
import torch
from torch import Tensor

from nearshot.distances import squared_euclidean
from nearshot.estimator.calibration import between_classes
from nearshot.estimator.scores import PAIRS_AT_ONCE, Support, class_means

__all__ = ["Spread", "choose_threshold", "class_spread", "left_out_novelties", "novelties"]

USUAL_SHARE = 0.225  # the variance inside of classes as a share of the squared distance between them
WEIGHT_OF_USUAL = 2.0  # in degrees of freedom, against those of all classes together
WEIGHT_OF_ALL = 24.0  # of the variance of all classes, against a class's own degrees of freedom
USUAL_ROOT, USUAL_DEVIATION = 0.95, 0.14  # of the cube roots of novelties
WEIGHT_OF_MEAN, WEIGHT_OF_DEVIATION = 1.0, 4.0  # of these two, in images
PAIRS_LEFT_OUT_AT_ONCE = PAIRS_AT_ONCE // 8  # of images and classes: there are several values of each
TINY = 1e-9  # of the squared distance between classes; where all images of a class are the same


class Spread(NamedTuple):
    """What novelty is measured with.

    Attributes:
        means: (class, dim).
        variances: (class,) of a picture around the class's mean, which itself is uncertain.
    """

    means: Tensor
    variances: Tensor


def class_spread(support: Support) -> Spread:
    """Return the classes' means and variances."""
    means, counts = class_means(support), support.counts.double()
    own = _sums(_residuals(support, means), support)
    between = between_classes(support)
    if between is None and len(support.codes) == support.n_classes:
        return Spread(means, torch.ones_like(own))  # a single image: there is nothing to compare distances with
    return Spread(means, _variances(own, counts, own.sum(), counts.sum() - support.n_classes, between))


def novelties(query: Tensor, spread: Spread) -> Tensor:
    """Return how unlike any class each query is, (query,): about 1 for a picture of a class, more for others."""
    blocks = query.split(max(1, PAIRS_AT_ONCE // len(spread.means)))
    return torch.cat([(squared_euclidean(rows, spread.means) / spread.variances).amin(1) for rows in blocks])


def left_out_novelties(support: Support) -> Tensor:
    """Return the novelty that each support image would have were it not in the support set, (image,).

    Only images of classes with two or more; none of them if there is only one class and it has but two.
    """
    means, counts = class_means(support), support.counts.double()
    between = between_classes(support)
    freedom = counts.sum() - support.n_classes
    asked = (counts[support.codes] > 1).nonzero()[:, 0]
    if len(asked) == 0 or (between is None and freedom < 2):
        return support.features.new_zeros(0)
    residuals = _residuals(support, means)
    own, found = _sums(residuals, support), []  # (class,)
    for images in asked.split(max(1, PAIRS_LEFT_OUT_AT_ONCE // support.n_classes)):
        codes, rows = support.codes[images], torch.arange(len(images))
        n = counts[codes]
        less = residuals[images] * n / (n - 1)  # by how much the sum of squares shrinks without the image
        sums, sizes = own.repeat(len(images), 1), counts.repeat(len(images), 1)  # (image, class)
        sums[rows, codes] -= less
        sizes[rows, codes] -= 1
        total = (own.sum() - less).clamp(min=0)[:, None]
        variances = _variances(sums.clamp(min=0), sizes, total, freedom - 1, between)
        squares = squared_euclidean(support.features[images], means)
        squares[rows, codes] = residuals[images] * (n / (n - 1)) ** 2  # from the mean of the others
        found.append((squares / variances).amin(1))
    return torch.cat(found)


def choose_threshold(left_out: Tensor, rate: float) -> float:
    """Return the novelty over which a picture is none of the classes, for a rate of false rejections.

    Args:
        left_out: (image,) novelties of left-out support images; may be empty.
        rate: the share of pictures of known classes that may be taken for unknown, such as 0.05.
    """
    roots = left_out.pow(1 / 3)
    n = len(roots)
    mean = (WEIGHT_OF_MEAN * USUAL_ROOT + float(roots.sum())) / (WEIGHT_OF_MEAN + n)
    squares = WEIGHT_OF_DEVIATION * USUAL_DEVIATION**2
    if n:
        off = float(roots.mean()) - USUAL_ROOT
        squares += float((roots - roots.mean()).square().sum()) + WEIGHT_OF_MEAN * n / (WEIGHT_OF_MEAN + n) * off**2
    freedom = WEIGHT_OF_DEVIATION + n
    scale = math.sqrt(squares / freedom * (1 + 1 / (WEIGHT_OF_MEAN + n)))
    # With nothing left out the prior is all there is, and is taken at its word: Student's tails would reject nothing.
    quantile = float(scipy.stats.t.ppf(1 - rate, freedom) if n else scipy.stats.norm.ppf(1 - rate))
    threshold = mean + scale * quantile
    if n:
        place = min(
            (n + 1) * (1 - rate) / n, 1.0
        )  # of the image over which a share `rate` of new ones lies, on average
        trust = n * rate / (n * rate + 1)
        threshold += trust * (float(roots.quantile(place)) - threshold)
    return max(0.0, threshold) ** 3


def _residuals(support: Support, means: Tensor) -> Tensor:
    """Return each support image's squared distance to the mean of its class, (image,)."""
    return (support.features - means[support.codes]).square().sum(1)


def _sums(values: Tensor, support: Support) -> Tensor:
    return values.new_zeros(support.n_classes).index_add_(0, support.codes, values)


def _variances(own: Tensor, counts: Tensor, total: Tensor, freedom: Tensor, between: float | None) -> Tensor:
    """Return how far, squared, a picture is expected to be from the mean of the images that a class has.

    Args:
        own: (…, class) the sum of squares inside of each class.
        counts: (…, class) how many images each has.
        total: the sum of squares inside of all classes.
        freedom: how many degrees of freedom that has.
        between: the mean squared distance between images of different classes, if there are any.
    """
    weight = 0.0 if between is None else WEIGHT_OF_USUAL
    shared = (weight * USUAL_SHARE * (between or 0.0) + total) / (weight + freedom)
    variances = (WEIGHT_OF_ALL * shared + own) / (WEIGHT_OF_ALL + counts - 1)
    return (variances * (1 + 1 / counts)).clamp(min=TINY * (between or 1.0))
