"""A support set, and the scores that a classifier of `nearshot.evaluation` gives its classes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from nearshot.errors import InputError, look_up
from nearshot.evaluation.classifiers import CLASSIFIERS, KNN, Classifier, knn, similarities
from nearshot.evaluation.ties import TIE

__all__ = [
    "PAIRS_AT_ONCE",
    "Support",
    "choose_classifier",
    "class_means",
    "class_points",
    "class_scores",
    "in_blocks",
    "n_voters",
    "tie_tolerance",
]

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

    def subset(self, images: Tensor) -> Support:
        """Return the support set of some images, which must include every class."""
        return Support(self.features[images], self.codes[images], self.n_classes)


def class_means(support: Support) -> Tensor:
    """Return the mean feature of each class, (class, dim)."""
    sums = support.features.new_zeros(support.n_classes, support.features.shape[1])
    return sums.index_add_(0, support.codes, support.features) / support.counts[:, None]


def n_voters(support: Support, n_neighbors: int | None) -> int:
    """Return how many images vote in k-NN: by default as many as the smallest class has, so that any class can win."""
    return min(n_neighbors or int(support.counts.min()), len(support.codes))


def choose_classifier(name: str, support: Support, n_neighbors: int | None) -> Classifier:
    """Return the classifier of that name; `n_neighbors` applies to k-NN only."""
    classifier = look_up(CLASSIFIERS, name, "classifier")
    return knn(n_voters(support, n_neighbors)) if classifier is KNN else classifier


def class_points(support: Support, classifier: Classifier) -> tuple[Tensor, Tensor]:
    """Return the points that a classifier compares queries with, (point, dim), grouped by class, and the class sizes.

    The points are the class means or the support images.
    """
    if classifier.prototypes:
        return class_means(support), torch.ones_like(support.counts)
    return support.features[support.codes.argsort(stable=True)], support.counts


def class_scores(query: Tensor, support: Support, name: str, n_neighbors: int | None = None) -> Tensor:
    """Score every class for every query, (query, class); the highest score is the answer.

    Args:
        query: (query, dim) prepared features.
        support: the prepared support set.
        name: the classifier's name in `nearshot.evaluation.CLASSIFIERS`.
        n_neighbors: how many images vote in "knn"; by default as many as the smallest class has.

    >>> two = Support(torch.tensor([[0.0], [2.0], [7.0]]).double(), torch.tensor([0, 0, 1]), 2)
    >>> class_scores(torch.tensor([[3.0]]).double(), two, "centroid")
    tensor([[ -4., -16.]], dtype=torch.float64)
    """
    classifier = choose_classifier(name, support, n_neighbors)
    points, sizes = class_points(support, classifier)
    scores = torch.cat([classifier.scores(similarities(points, rows), sizes) for rows in in_blocks(query, support)])
    if scores.shape != (len(query), support.n_classes):
        raise InputError(
            f"The classifier {name!r} must return scores of shape {(len(query), support.n_classes)}, one per query and "
            f"class (got {tuple(scores.shape)})."
        )
    return scores


def tie_tolerance(squares: Tensor) -> Tensor:
    """Return the largest difference between squared distances (query, image) that counts as a tie, (query, 1)."""
    return TIE * squares.amax(1, keepdim=True)


def in_blocks(query: Tensor, support: Support) -> Iterator[Tensor]:
    """Yield blocks of queries whose distances to all images, or whose pairs of classes, fit in memory."""
    pairs = max(len(support.codes), support.n_classes**2 // 8)
    yield from query.split(max(1, PAIRS_AT_ONCE // pairs))
