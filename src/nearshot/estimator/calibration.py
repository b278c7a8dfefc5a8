"""Probabilities that can be believed: softmax of scores over a temperature that the support set chooses.

The temperature is the one under which left-out support images get the highest likelihood. Few images say little about
it: where all are recognised, the likelihood alone would choose zero, and be certain. So it is held near a usual value
by a log-normal prior, which is all there is when no class has two images. The usual value is a share of the mean
squared distance between images of different classes, so it knows no scale of features; and since images are left out
of a support set that is smaller by them, what they choose is not the temperature but its ratio to the usual one.
`benchmarks/estimator.py` measures it.
"""

from __future__ import annotations

import math

import scipy.optimize
import torch
from torch import Tensor

from nearshot.estimator.scores import Support, class_means, n_voters
from nearshot.evaluation.classifiers import ClassifierName

__all__ = ["between_classes", "choose_temperature", "usual_temperature"]

USUAL = 0.055  # of the mean squared distance between classes, times 1 + 1/n for n images a class
USUAL_VOTES = 0.35  # of the square root of the number of voters, for "knn"
PRIOR_WIDTH = 0.7  # standard deviation of the temperature's logarithm: most are within a factor of 4
FARTHEST = 8.0  # how far to search, in logarithms


def between_classes(support: Support) -> float | None:
    """Return the mean squared distance between images of different classes; None where there are none, or it is zero.

    Over all pairs Σ‖x − y‖² is 2nΣ‖x‖² − 2‖Σx‖², and so it is inside of each class; the rest is between them.

    >>> between_classes(Support(torch.tensor([[0.0], [0.0], [3.0]]), torch.tensor([0, 0, 1]), 2))
    9.0
    """
    around_zero = Support(support.features - support.features.mean(0), support.codes, support.n_classes)
    counts, lengths = support.counts, around_zero.features.square().sum(1)
    inside = (counts * lengths.new_zeros(support.n_classes).index_add_(0, support.codes, lengths)).sum()
    inside -= (counts[:, None] * class_means(around_zero)).square().sum()
    pairs = len(lengths) ** 2 - int(counts.square().sum())
    total = float(2 * (len(lengths) * lengths.sum() - inside))
    return total / pairs if pairs and total > 0 else None


def usual_temperature(support: Support, classifier: ClassifierName, n_neighbors: int | None = None) -> float:
    """Return the temperature to expect before any image was left out.

    A score is off by the spread of a picture and that of a mean of n images, so it goes with 1 + 1/n.
    """
    if classifier == "knn":
        return USUAL_VOTES * math.sqrt(n_voters(support, n_neighbors))
    return USUAL * float(1 + (1 / support.counts.double()).mean()) * (between_classes(support) or 1.0)


def choose_temperature(scores: Tensor, codes: Tensor) -> float:
    """Return the most probable temperature, as a multiple of the usual one.

    Args:
        scores: (image, class) of images that were left out, over the usual temperature; none where no class has two.
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

    found = scipy.optimize.minimize_scalar(loss, bounds=(-FARTHEST, FARTHEST), method="bounded")
    return math.exp(float(found.x))
