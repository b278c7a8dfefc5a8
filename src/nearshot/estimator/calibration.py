"""Calibrated probabilities: the mean of softmaxes of scores over many temperatures.

A few held-out images cannot tell which temperature is right, so none is chosen. Each temperature of
a grid is weighted by its posterior: a prior times the likelihood of the held-out images. The prior
is mostly narrow around a typical value, which suits easy photographs, and sometimes wide and
softer, which suits hard classes. One temperature would be overconfident where labels are few and
classes hard.

Temperatures are multiples of a typical one, a fraction of the mean squared distance between
classes, since images are held out of a smaller support set. `benchmarks/honesty.py` measures it.
"""

import math
from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor

from nearshot.estimator.head import find_classifier
from nearshot.estimator.support import Support
from nearshot.evaluation.classifiers import KNN, RIDGE

# A fraction of the mean squared distance between classes, times 1 + 1/n for n images per class.
TYPICAL = 0.055
TYPICAL_VOTES = 0.35  # of the square root of the number of voters, for "knn"
TYPICAL_RIDGE = 0.06  # for "ridge", whose scores are about 1 for the right class and 0 for others

# The prior of the multiple of the typical temperature: two log-normal distributions, each with its
# share, its median and the standard deviation of its logarithm.
PRIOR = ((0.7, 1.0, 0.5), (0.3, 0.4 / TYPICAL_RIDGE, 1.0))
# The grid goes down from the softest multiple in equal steps of the logarithm, and on from the
# sharpest for as long as that has weight: with many classes, sharp temperatures are right.
SOFTEST = 4.0 / TYPICAL_RIDGE
SHARPEST = 1 / (64 * TYPICAL_RIDGE)
GRID_STEPS = 32
MAX_GRID = 100
NEGLIGIBLE = 1e-4  # the posterior weight below which a temperature is left out


@dataclass(frozen=True)
class Temperatures:
    """Divisors of the scores and their weights, which add up to 1."""

    values: tuple[float, ...]
    weights: tuple[float, ...]

    @classmethod
    def single(cls, value: float) -> Self:
        """Return one temperature."""
        return cls((value,), (1.0,))

    @property
    def geometric_mean(self) -> float:
        """The weighted geometric mean of the values."""
        log_mean = 0.0
        for value, weight in zip(self.values, self.weights, strict=True):
            log_mean += weight * math.log(value)
        return math.exp(log_mean)

    def times(self, factor: float) -> "Temperatures":
        """Return all values multiplied by a factor."""
        return Temperatures(tuple(value * factor for value in self.values), self.weights)


def class_probabilities(scores: Tensor, temperatures: Temperatures) -> Tensor:
    """Return the probabilities of the classes, (query, class), for scores (query, class)."""
    probabilities = torch.zeros_like(scores)
    for value, weight in zip(temperatures.values, temperatures.weights, strict=True):
        probabilities = probabilities + weight * (scores / value).softmax(1)
    return probabilities


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


def weigh_temperatures(scores: Tensor, codes: Tensor, votes: Tensor | None = None) -> Temperatures:
    """Return the posterior of the temperature, in multiples of the typical one.

    `scores` (image, class) of held-out images are divided by the typical temperature; `codes`
    (image,) are the classes of the images, and `votes` (image,) how much each counts, by default 1.
    Without images the typical temperature is the answer: the prior alone would be far too soft for
    easy classes.
    """
    if len(codes) == 0:
        return Temperatures.single(1.0)
    values, log_likelihoods = temperature_likelihoods(scores, codes, votes)
    return temperature_posterior(values, log_likelihoods.sum(0))


def held_out_probabilities(
    scores: Tensor, codes: Tensor, rounds: Tensor, votes: Tensor | None = None
) -> Tensor:
    """Return the probabilities of held-out images, (image, class).

    The images of a round, (image,) with its number, are answered with temperatures that were
    weighted without them, so that no image has a part in its own answer. `votes` are as in
    `weigh_temperatures`.
    """
    probabilities = torch.zeros_like(scores)
    if len(codes) == 0:
        return probabilities
    values, log_likelihoods = temperature_likelihoods(scores, codes, votes)
    total = log_likelihoods.sum(0)
    for number in rounds.unique().tolist():
        in_round = rounds == number
        if bool(in_round.all()):  # no other round says anything
            temperatures = Temperatures.single(1.0)
        else:
            temperatures = temperature_posterior(values, total - log_likelihoods[in_round].sum(0))
        probabilities[in_round] = class_probabilities(scores[in_round], temperatures)
    return probabilities


def temperature_likelihoods(
    scores: Tensor, codes: Tensor, votes: Tensor | None = None
) -> tuple[list[float], Tensor]:
    """Return the temperatures of the grid, and the images' log-likelihoods, (image, value).

    They are multiplied by the images' votes.
    """
    images = torch.arange(len(codes))
    if votes is None:
        votes = scores.new_ones(len(codes))
    step = math.log(SOFTEST / SHARPEST) / GRID_STEPS
    values: list[float] = []
    columns: list[Tensor] = []
    while len(values) < MAX_GRID:
        value = SOFTEST * math.exp(-step * len(values))
        values.append(value)
        columns.append(votes * (scores / value).log_softmax(1)[images, codes])
        if len(values) > GRID_STEPS:
            sums = torch.stack([column.sum() for column in columns])
            if float(_posterior_weights(values, sums)[-1]) < NEGLIGIBLE:
                break
    return values, torch.stack(columns, dim=1)


def temperature_posterior(values: list[float], log_likelihoods: Tensor) -> Temperatures:
    """Return the posterior for log-likelihoods (value,), without temperatures of no weight."""
    weights = _posterior_weights(values, log_likelihoods)
    has_weight = weights >= NEGLIGIBLE
    kept_values = [value for value, keep in zip(values, has_weight.tolist(), strict=True) if keep]
    kept_weights = weights[has_weight] / weights[has_weight].sum()
    return Temperatures(tuple(kept_values), tuple(kept_weights.tolist()))


def _posterior_weights(values: list[float], log_likelihoods: Tensor) -> Tensor:
    log_prior = torch.tensor([_log_prior(value) for value in values], dtype=torch.float64)
    return (log_prior + log_likelihoods.double()).softmax(0)


def _log_prior(value: float) -> float:
    """Return the logarithm of the prior's density at the logarithm of a multiple."""
    density = 0.0
    for share, median, width in PRIOR:
        deviation = math.log(value / median) / width
        density += share / width * math.exp(-(deviation**2) / 2)
    return math.log(density)
