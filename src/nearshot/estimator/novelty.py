"""Novelty: how unlike all classes an image is, by its distance to the nearest class and by the classifier's score.

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
is reached.
"""

import math

import scipy.stats
import torch
from torch import Tensor

from nearshot.distances import squared_euclidean
from nearshot.estimator.support import Support

TYPICAL_SHARE = (
    0.225  # the variance within classes as a fraction of the squared distance between them
)
WEIGHT_OF_TYPICAL = 2.0  # in degrees of freedom, against those of all classes together
WEIGHT_OF_ALL = 24.0  # of the variance of all classes, against a class's own degrees of freedom
TYPICAL_BY_DISTANCE = (0.95, 0.14)  # mean and standard deviation of the cube roots of novelties
TYPICAL_BY_SCORE = (1.2, 0.14)  # the same, if the score counts
WEIGHT_OF_MEAN, WEIGHT_OF_DEVIATION = 1.0, 4.0  # of these two, in images
SHARPNESS = 2.0  # of the score in the novelty of ridge regression
TINY = 1e-9  # of the squared distance between classes; for classes whose images are all equal


def class_variances(support: Support) -> Tensor:
    """Return the variance of an image around the mean of its class, which is uncertain itself, (class,)."""
    counts, own = support.counts.double(), support.sums(support.residuals)
    if support.between is None and len(support.codes) == support.n_classes:
        return torch.ones_like(own)  # a single image: there is no distance to compare with
    return _variances(own, counts, own.sum(), counts.sum() - support.n_classes, support.between)


def novelties(query: Tensor, support: Support, variances: Tensor) -> Tensor:
    """Return the novelty by distance of each query, (query,): about 1 for an image of a class, more for others."""
    blocks = support.blocks(query)
    return torch.cat(
        [(squared_euclidean(rows, support.means) / variances).amin(1) for rows in blocks]
    )


def weigh_by_score(novelty: Tensor, scores: Tensor) -> Tensor:
    """Return novelties by distance, (query,), weighed by scores of a ridge regression, (query, class).

    The highest score is about 1 for a clear image of a class. If it is 1/2, the novelty is
    unchanged. A single class always has the score 1, which says nothing.
    """
    return novelty if scores.shape[1] == 1 else novelty * (SHARPNESS * (0.5 - scores.amax(1))).exp()


def held_out_novelties(support: Support, images: Tensor | None = None) -> Tensor:
    """Return the novelty by distance that each support image would have if it were not in the support set, (image,).

    `images` are indices of images that are not alone in their class; by default all of these. The
    two images of a single class are skipped.
    """
    counts, between, residuals = support.counts.double(), support.between, support.residuals
    freedom = counts.sum() - support.n_classes
    tested = (counts[support.codes] > 1).nonzero()[:, 0] if images is None else images
    if len(tested) == 0 or (between is None and freedom < 2):
        return support.features.new_zeros(0)
    own, found = support.sums(residuals), []  # (class,)
    for some in support.blocks(tested):
        codes, rows = support.codes[some], torch.arange(len(some))
        n = counts[codes]
        less = residuals[some] * n / (n - 1)  # the decrease of the sum of squares without the image
        sums, sizes = own.repeat(len(some), 1), counts.repeat(len(some), 1)  # (image, class)
        sums[rows, codes] -= less
        sizes[rows, codes] -= 1
        total = (own.sum() - less).clamp(min=0)[:, None]
        variances = _variances(sums.clamp(min=0), sizes, total, freedom - 1, between)
        squares = squared_euclidean(support.features[some], support.means)
        squares[rows, codes] = residuals[some] * (n / (n - 1)) ** 2  # from the mean of the others
        found.append((squares / variances).amin(1))
    return torch.cat(found)


def choose_threshold(
    held_out: Tensor, rate: float, typical: tuple[float, float] = TYPICAL_BY_DISTANCE
) -> float:
    """Return the novelty above which an image is unknown, for a rate of false rejections such as 0.05.

    `held_out` are the novelties of held-out support images, (image,), and may be empty. `typical`
    are the mean and the standard deviation to expect of their cube roots.
    """
    typical_root, typical_deviation = typical
    roots = held_out.pow(1 / 3)
    n = len(roots)
    mean = (WEIGHT_OF_MEAN * typical_root + float(roots.sum())) / (WEIGHT_OF_MEAN + n)
    squares = WEIGHT_OF_DEVIATION * typical_deviation**2
    if n:
        off = float(roots.mean()) - typical_root
        squares += (
            float((roots - roots.mean()).square().sum())
            + WEIGHT_OF_MEAN * n / (WEIGHT_OF_MEAN + n) * off**2
        )
    freedom = WEIGHT_OF_DEVIATION + n
    scale = math.sqrt(squares / freedom * (1 + 1 / (WEIGHT_OF_MEAN + n)))
    # Without held-out images only the prior is left; Student's tails would reject nothing.
    quantile = float(scipy.stats.t.ppf(1 - rate, freedom) if n else scipy.stats.norm.ppf(1 - rate))
    threshold = mean + scale * quantile
    if n:
        place = min((n + 1) * (1 - rate) / n, 1.0)  # exceeded by a fraction `rate` of new images
        trust = n * rate / (n * rate + 1)
        threshold += trust * (float(roots.quantile(place)) - threshold)
    return max(0.0, threshold) ** 3


def _variances(
    own: Tensor, counts: Tensor, total: Tensor, freedom: Tensor, between: float | None
) -> Tensor:
    """Return the expected squared distance of an image to the mean of its class's images, (…, class).

    `own` are the sums of squares within the classes, (…, class); `total` is that of all, with its
    degrees of `freedom`.
    """
    weight = 0.0 if between is None else WEIGHT_OF_TYPICAL
    shared = (weight * TYPICAL_SHARE * (between or 0.0) + total) / (weight + freedom)
    variances = (WEIGHT_OF_ALL * shared + own) / (WEIGHT_OF_ALL + counts - 1)
    return (variances * (1 + 1 / counts)).clamp(min=TINY * (between or 1.0))
