"""Novelty: how unlike all classes an image is, by its distance to the nearest class and its score.

The squared distance to a class mean is divided by the variance within the class, and by 1 + 1/n:
even an image of the class is that much farther from a mean of n images than from the true mean. A
few images determine a class's variance badly. It is therefore shrunk towards the variance of all
classes, and that towards a typical fraction of the distances between classes. An image of a class
has a novelty of about 1.

Ridge regression also has a score that is near 1 for its own images and near 0 for others. The
novelty is multiplied by exp(2 (½ − s)) for the highest score s. An unseen class often lies as near
to a class mean as an image of the class, but in a direction that tells no class from another.
`benchmarks/photos.py` compares this novelty with others by AUROC.

No novelty is certain. A class that the backbone cannot tell from a known one is not rejected, and
with one image per class there is nothing to estimate a spread from.

The threshold for a chosen rate of false rejections comes from the novelties of held-out support
images. A handful of images has no 1 % quantile. Their cube roots, which are nearly normal for
squared distances (Wilson and Hilferty), are therefore modelled as normal, with a prior worth a few
images. The threshold is the predictive quantile (Student's t). The more images lie beyond the
quantile, the more the empirical quantile counts. `benchmarks/estimator.py` measures the rate that
is reached. Images of a group are held out together and share one vote.
"""

import math
from typing import NamedTuple

import numpy as np
import scipy.stats
import torch
from torch import Tensor

from nearshot.distances import squared_euclidean
from nearshot.estimator.groups import Groups
from nearshot.estimator.support import Support

NONE_OF_THESE = "none of these"  # the label of images that are like no class

# The variance within classes as a fraction of the squared distance between them.
TYPICAL_SHARE = 0.225
WEIGHT_OF_TYPICAL = 2.0  # in degrees of freedom, against those of all classes together
WEIGHT_OF_ALL = 24.0  # of the variance of all classes, against a class's own degrees of freedom
TYPICAL_BY_DISTANCE = (0.95, 0.14)  # mean and standard deviation of the cube roots of novelties
TYPICAL_BY_SCORE = (1.2, 0.14)  # the same, if the score counts
WEIGHT_OF_MEAN = 1.0  # of the typical mean, in images
WEIGHT_OF_DEVIATION = 4.0  # of the typical standard deviation, in images
SHARPNESS = 2.0  # of the score in the novelty of ridge regression
TINY = 1e-9  # of the squared distance between classes; for classes whose images are all equal


def class_variances(support: Support) -> Tensor:
    """Return the expected squared distance of a new image to the mean of its class, (class,)."""
    squares = support.class_sums(support.residuals)
    if support.between is None and len(support.codes) == support.n_classes:
        # A single image, or equal ones: there is no distance to compare with.
        return torch.ones_like(squares)
    counts = support.counts.double()
    freedom = counts.sum() - support.n_classes
    return _shrunk_variances(squares, counts, squares.sum(), freedom, support.between)


def novelties(query: Tensor, support: Support, variances: Tensor) -> Tensor:
    """Return the novelty by distance of each query, (query,).

    It is about 1 for an image of a class, and more for others.
    """
    blocks = []
    for rows in support.blocks(query):
        ratios = squared_euclidean(rows, support.means) / variances  # (query, class)
        blocks.append(ratios.amin(1))
    return torch.cat(blocks)


def weigh_by_score(novelty: Tensor, scores: Tensor) -> Tensor:
    """Return novelties by distance, (query,), weighed by ridge scores, (query, class).

    The highest score is about 1 for a clear image of a class. If it is 1/2, the novelty is
    unchanged. A single class always has the score 1, which says nothing.
    """
    if scores.shape[1] == 1:
        return novelty
    return novelty * (SHARPNESS * (0.5 - scores.amax(1))).exp()


def weigh_by_margin(novelty: Tensor, margins: Tensor) -> Tensor:
    """Return novelties by distance, (query,), weighed by how far strays are behind, (query,).

    A margin is the highest score of a class minus that of strays.
    """
    return novelty * (SHARPNESS * (0.5 - margins)).exp()


def held_out_images(support: Support, groups: Groups) -> Tensor:
    """Return the images whose novelty can be asked while their group is held out, (image,).

    Each class needs another group. If there is no distance between classes, two images of a class
    have to remain.
    """
    n_groups = int(groups.numbers.max()) + 1
    is_alone = groups.counts[groups.class_of_part] == 1  # (part,)
    is_removable = torch.ones(n_groups, dtype=torch.bool)
    is_removable[groups.group_of_part[is_alone]] = False
    if support.between is None:
        is_removable &= _freedom_without(support, groups) >= 1
    return is_removable[groups.numbers].nonzero()[:, 0]


def _freedom_without(support: Support, groups: Groups) -> Tensor:
    """Return the degrees of freedom within classes without each group, (group,)."""
    return len(support.codes) - torch.bincount(groups.numbers).double() - support.n_classes


def held_out_novelties(
    support: Support, images: Tensor | None = None, groups: Groups | None = None
) -> Tensor:
    """Return the novelty by distance that each support image would have if it were new, (image,).

    An image is held out with its group. `images` are indices of images whose group can be held out;
    by default `held_out_images`.
    """
    if groups is None:
        groups = Groups.singles(support.codes, support.n_classes)
    if images is None:
        images = held_out_images(support, groups)
    counts = support.counts.double()
    parts = _held_out_parts(support, groups)
    n_groups = int(groups.numbers.max()) + 1
    freedom = _freedom_without(support, groups)  # (group,)
    if len(images) == 0:
        return support.features.new_zeros(0)
    squares = support.class_sums(support.residuals)  # (class,)
    decrease_of_group = torch.zeros(n_groups).to(squares)
    decrease_of_group.index_add_(0, groups.group_of_part, parts.decrease)
    novelties_of_blocks = []
    for held_out in support.blocks(images):
        numbers = groups.numbers[held_out]
        # Each image with each part of its group.
        rows, part = _pairs(numbers, groups.group_of_part)
        codes = groups.class_of_part[part]
        remaining_squares = squares.repeat(len(held_out), 1)  # (image, class)
        remaining_squares[rows, codes] -= parts.decrease[part]
        remaining_counts = counts.repeat(len(held_out), 1)  # (image, class)
        remaining_counts[rows, codes] -= groups.part_sizes[part].double()
        total = (squares.sum() - decrease_of_group[numbers]).clamp(min=0)[:, None]
        variances = _shrunk_variances(
            remaining_squares.clamp(min=0),
            remaining_counts,
            total,
            freedom[numbers][:, None],
            support.between,
        )
        distances = squared_euclidean(support.features[held_out], support.means)
        offsets = support.features[held_out][rows] - parts.other_means[part]
        distances[rows, codes] = offsets.square().sum(1)
        novelties_of_blocks.append((distances / variances).amin(1))
    return torch.cat(novelties_of_blocks)


class _HeldOutParts(NamedTuple):
    """What a class is without each part of it.

    Attributes:
        other_means: (part, dim) the mean of the other images of the class.
        decrease: (part,) by how much the sum of squares around the mean of the class decreases. It
            is more than the squares of the part's own images, since the mean moves.
    """

    other_means: Tensor
    decrease: Tensor


def _held_out_parts(support: Support, groups: Groups) -> _HeldOutParts:
    n_others = (support.counts[groups.class_of_part] - groups.part_sizes).double()
    offsets = support.features - support.means[support.codes]
    sums = offsets.new_zeros(len(n_others), offsets.shape[1])
    sums.index_add_(0, groups.parts, offsets)
    own_squares = offsets.new_zeros(len(n_others)).index_add_(0, groups.parts, support.residuals)
    n_others = n_others.clamp(min=1)  # a class that is one part is never without it
    other_means = support.means[groups.class_of_part] - sums / n_others[:, None]
    return _HeldOutParts(other_means, own_squares + sums.square().sum(1) / n_others)


def _pairs(numbers: Tensor, group_of_part: Tensor) -> tuple[Tensor, Tensor]:
    """Return the pairs of a row and a part with the same group: the rows, and the parts."""
    order = group_of_part.argsort(stable=True)
    n_parts = torch.bincount(group_of_part)  # (group,)
    firsts = n_parts.cumsum(0) - n_parts
    n_pairs = n_parts[numbers]
    rows = torch.arange(len(numbers)).repeat_interleave(n_pairs)
    in_group = torch.arange(len(rows)) - (n_pairs.cumsum(0) - n_pairs)[rows]
    return rows, order[firsts[numbers[rows]] + in_group]


def choose_threshold(
    held_out: Tensor,
    rate: float,
    *,
    votes: Tensor | None = None,
    typical: tuple[float, float] = TYPICAL_BY_DISTANCE,
) -> float:
    """Return the novelty above which an image is rejected, for a rate of false rejections.

    Args:
        held_out: (image,) the novelties of held-out support images; there may be none.
        rate: a fraction, such as 0.05.
        votes: (image,) how much each image counts, by default 1.
        typical: the mean and the standard deviation to expect of the cube roots of novelties.
    """
    typical_root, typical_deviation = typical
    roots = held_out.pow(1 / 3)
    if votes is None:
        votes = torch.ones_like(roots)
    n = float(votes.sum())
    mean = (WEIGHT_OF_MEAN * typical_root + float(votes @ roots)) / (WEIGHT_OF_MEAN + n)
    squares = WEIGHT_OF_DEVIATION * typical_deviation**2
    if n > 0:
        own_mean = float(votes @ roots) / n
        around_own_mean = float(votes @ (roots - own_mean).square())
        offset = own_mean - typical_root
        squares += around_own_mean + WEIGHT_OF_MEAN * n / (WEIGHT_OF_MEAN + n) * offset**2
    freedom = WEIGHT_OF_DEVIATION + n
    scale = math.sqrt(squares / freedom * (1 + 1 / (WEIGHT_OF_MEAN + n)))
    if n == 0:
        # Only the prior is left; with Student's tails it would reject nothing.
        root = mean + scale * float(scipy.stats.norm.ppf(1 - rate))
    else:
        predictive = mean + scale * float(scipy.stats.t.ppf(1 - rate, freedom))
        # A fraction `rate` of new images exceeds this quantile of the held-out ones.
        empirical = _quantile(roots, votes, (n + 1) * (1 - rate) / n)
        trust = n * rate / (n * rate + 1)
        root = predictive + trust * (empirical - predictive)
    return max(0.0, root) ** 3


def _quantile(values: Tensor, votes: Tensor, fraction: float) -> float:
    """Return a quantile of values that count by their votes.

    Each value is in the middle of its votes, with linear interpolation between them. With votes of
    1 that is NumPy's quantile.
    """
    order = values.argsort()
    positions = votes[order].cumsum(0) - votes[order] / 2 - 0.5
    position = fraction * (float(votes.sum()) - 1)
    return float(np.interp(position, positions.numpy(), values[order].numpy()))


def _shrunk_variances(
    squares: Tensor, counts: Tensor, total: Tensor, freedom: Tensor, between: float | None
) -> Tensor:
    """Return the expected squared distance of a new image to the mean of its class, (…, class).

    `squares` are the sums of squares within the classes, (…, class); `total` is that of all
    classes, with its degrees of `freedom`.
    """
    weight = 0.0 if between is None else WEIGHT_OF_TYPICAL
    shared = (weight * TYPICAL_SHARE * (between or 0.0) + total) / (weight + freedom)
    variances = (WEIGHT_OF_ALL * shared + squares) / (WEIGHT_OF_ALL + counts - 1)
    return (variances * (1 + 1 / counts)).clamp(min=TINY * (between or 1.0))
