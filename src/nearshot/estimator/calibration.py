"""Calibrated probabilities: the softmax of scores divided by a temperature that the support set chooses.

The temperature maximises the likelihood of held-out support images. A few images say little about it: if all are
recognised, the likelihood alone would choose zero. A log-normal prior therefore keeps it near a typical value, and
decides alone if no class has two images. The typical value is a fraction of the mean squared distance between images of
different classes, so it is independent of the scale of features. Images are held out of a smaller support set, so they
choose the ratio to the typical temperature rather than the temperature itself. `benchmarks/estimator.py` measures it.
"""

from __future__ import annotations

import math

import scipy.optimize
import torch
from torch import Tensor

from nearshot.estimator.support import Support, class_means, n_voters

__all__ = ["between_classes", "choose_temperature", "typical_temperature"]

TYPICAL = 0.055  # of the mean squared distance between classes, times 1 + 1/n for n images per class
TYPICAL_VOTES = 0.35  # of the square root of the number of voters, for "knn"
PRIOR_WIDTH = 0.7  # standard deviation of the temperature's logarithm: most are within a factor of 4
SEARCH_WIDTH = 8.0  # in logarithms


def between_classes(support: Support) -> float | None:
    """Return the mean squared distance between images of different classes; None if there are none, or it is zero.

    Over all pairs Σ‖x − y‖² is 2nΣ‖x‖² − 2‖Σx‖². The same holds within each class; the rest is between classes.

    >>> between_classes(Support(torch.tensor([[0.0], [0.0], [3.0]]), torch.tensor([0, 0, 1]), 2))
    9.0
    """
    centred = Support(support.features - support.features.mean(0), support.codes, support.n_classes)
    counts, lengths = support.counts, centred.features.square().sum(1)
    within = (counts * lengths.new_zeros(support.n_classes).index_add_(0, support.codes, lengths)).sum()
    within -= (counts[:, None] * class_means(centred)).square().sum()
    pairs = len(lengths) ** 2 - int(counts.square().sum())
    total = float(2 * (len(lengths) * lengths.sum() - within))
    return total / pairs if pairs and total > 0 else None


def typical_temperature(support: Support, classifier: str, n_neighbors: int | None = None) -> float:
    """Return the temperature to expect before any image is held out.

    The error of a score comes from the spread of an image and that of a mean of n images, so it scales with 1 + 1/n.
    Scores of classifiers other than "knn" are taken to be on the scale of squared distances.
    """
    if classifier == "knn":
        return TYPICAL_VOTES * math.sqrt(n_voters(support, n_neighbors))
    return TYPICAL * float(1 + (1 / support.counts.double()).mean()) * (between_classes(support) or 1.0)


def choose_temperature(scores: Tensor, codes: Tensor) -> float:
    """Return the most probable temperature, as a multiple of the typical one.

    Args:
        scores: (image, class) of held-out images, divided by the typical temperature; may be empty.
        codes: (image,) their classes.

    >>> choose_temperature(torch.zeros(0, 2), torch.zeros(0, dtype=torch.long))
    1.0
    """
    if len(codes) == 0:
        return 1.0
    scores = scores - scores.amax(1, keepdim=True)

    def loss(log_ratio: float) -> float:
        logs = (scores / math.exp(log_ratio)).log_softmax(1)
        likelihood = float(logs[torch.arange(len(codes)), codes].sum())
        return (log_ratio / PRIOR_WIDTH) ** 2 / 2 - likelihood

    found = scipy.optimize.minimize_scalar(loss, bounds=(-SEARCH_WIDTH, SEARCH_WIDTH), method="bounded")
    return math.exp(float(found.x))
