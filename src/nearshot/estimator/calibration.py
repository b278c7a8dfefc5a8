"""Calibrated probabilities: the softmax of scores divided by a temperature.

The temperature maximises the likelihood of held-out images. A few images say little: if all are
recognised, the likelihood alone would choose zero. A log-normal prior therefore keeps it near a
typical value, a fraction of the mean squared distance between classes. Images are held out of a
smaller support set, so they choose the ratio to the typical temperature. `benchmarks/estimator.py`
measures it.
"""

import math

import scipy.optimize
import torch
from torch import Tensor

from nearshot.estimator.head import find_classifier
from nearshot.estimator.support import Support
from nearshot.evaluation.classifiers import KNN, RIDGE

# A fraction of the mean squared distance between classes, times 1 + 1/n for n images per class.
TYPICAL = 0.055
TYPICAL_VOTES = 0.35  # of the square root of the number of voters, for "knn"
TYPICAL_RIDGE = 0.06  # for "ridge", whose scores are about 1 for the right class and 0 for others
# The standard deviation of the temperature's logarithm: most are within a factor of 4.
PRIOR_WIDTH = 0.7
SEARCH_WIDTH = 8.0  # in logarithms


def class_probabilities(scores: Tensor, temperature: float) -> Tensor:
    """Return the probabilities of the classes, (query, class), for scores (query, class)."""
    return (scores / temperature).softmax(1)


def typical_temperature(support: Support, classifier: str, n_neighbors: int | None = None) -> float:
    """Return the temperature to expect before any image is held out.

    The error of a score comes from the spread of an image and that of a mean of n images, so it
    scales with 1 + 1/n. Scores of ridge regression have a scale of their own, whatever the number
    of images. Those of other classifiers than "knn" are taken to be on the scale of squared
    distances.
    """
    definition = find_classifier(classifier)
    if definition is RIDGE:
        return TYPICAL_RIDGE
    if definition is KNN:
        return TYPICAL_VOTES * math.sqrt(support.n_voters(n_neighbors))
    return TYPICAL * float(1 + (1 / support.counts.double()).mean()) * (support.between or 1.0)


def choose_temperature(scores: Tensor, codes: Tensor) -> float:
    """Return the most probable temperature for held-out images, as a multiple of the typical one.

    `scores` (image, class) are divided by the typical temperature; `codes` (image,) are the classes
    of the images. Without images the result is 1.
    """
    if len(codes) == 0:
        return 1.0
    scores = scores - scores.amax(1, keepdim=True)
    images = torch.arange(len(codes))

    def negative_log_posterior(log_ratio: float) -> float:
        log_probabilities = (scores / math.exp(log_ratio)).log_softmax(1)
        log_likelihood = float(log_probabilities[images, codes].sum())
        return (log_ratio / PRIOR_WIDTH) ** 2 / 2 - log_likelihood

    best = scipy.optimize.minimize_scalar(
        negative_log_posterior, bounds=(-SEARCH_WIDTH, SEARCH_WIDTH), method="bounded"
    )
    return math.exp(float(best.x))
