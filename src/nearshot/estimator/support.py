"""A support set, and the scores that a classifier of `nearshot.evaluation` gives its classes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from nearshot.errors import InputError, look_up
from nearshot.evaluation.classifiers import CLASSIFIERS, KNN, Classifier, knn, similarities

PAIRS_AT_ONCE = 1 << 22  # distances held at a time: 32 MiB of float64


class Support(NamedTuple):
    """Prepared features with their classes."""

    features: Tensor  # (image, dim) float64, centred and normalised as configured
    codes: Tensor  # (image,) class indices; every class has at least one image
    n_classes: int

    @property
    def counts(self) -> Tensor:
        """The number of images of each class, (class,)."""
        return torch.bincount(self.codes, minlength=self.n_classes)

    @property
    def means(self) -> Tensor:
        """The mean feature of each class, (class, dim)."""
        return self.sums(self.features) / self.counts[:, None]

    def sums(self, values: Tensor) -> Tensor:
        """Add up values of the images, (image, …), by class: (class, …)."""
        return values.new_zeros(self.n_classes, *values.shape[1:]).index_add_(0, self.codes, values)

    def subset(self, images: Tensor) -> Support:
        """Return the support set of some images, which must include every class."""
        return Support(self.features[images], self.codes[images], self.n_classes)


def between_classes(support: Support) -> float | None:
    """Return the mean squared distance between images of different classes; None if there are none, or it is zero.

    Over all pairs Σ‖x − y‖² is 2nΣ‖x‖² − 2‖Σx‖². The same holds within each class; the rest is between classes.
    """
    centred = support._replace(features=support.features - support.features.mean(0))
    counts, lengths = support.counts, centred.features.square().sum(1)
    within = (counts * support.sums(lengths)).sum() - (counts[:, None] * centred.means).square().sum()
    pairs = len(lengths) ** 2 - int(counts.square().sum())
    total = float(2 * (len(lengths) * lengths.sum() - within))
    return total / pairs if pairs and total > 0 else None


def n_voters(support: Support, n_neighbors: int | None) -> int:
    """Return how many images vote in k-NN: by default as many as the smallest class has, so that any class can win."""
    return min(n_neighbors or int(support.counts.min()), len(support.codes))


def choose_classifier(name: str, support: Support, n_neighbors: int | None) -> tuple[Classifier, Tensor, Tensor]:
    """Return a classifier, the points that it compares queries with, (point, dim), and the class sizes.

    The points are the class means or the support images, grouped by class. `n_neighbors` applies to k-NN only.
    """
    classifier = look_up(CLASSIFIERS, name, "classifier")
    if classifier is KNN:
        classifier = knn(n_voters(support, n_neighbors))
    if classifier.prototypes:
        return classifier, support.means, torch.ones_like(support.counts)
    return classifier, support.features[support.codes.argsort(stable=True)], support.counts


def class_scores(query: Tensor, support: Support, name: str, n_neighbors: int | None = None) -> Tensor:
    """Score every class for every query, (query, class), by the classifier of that name; the highest score wins."""
    classifier, points, sizes = choose_classifier(name, support, n_neighbors)
    scores = torch.cat([classifier.scores(similarities(points, rows), sizes) for rows in in_blocks(query, support)])
    expected, got = (len(query), support.n_classes), tuple(scores.shape)
    if got != expected:
        raise InputError(f"The classifier {name!r} must return scores of shape {expected}, (query, class) (got {got}).")
    return scores


def in_blocks(query: Tensor, support: Support) -> Iterator[Tensor]:
    """Yield blocks of queries whose distances to all images, or whose pairs of classes, fit in memory."""
    pairs = max(len(support.codes), support.n_classes**2 // 8)
    yield from query.split(max(1, PAIRS_AT_ONCE // pairs))
