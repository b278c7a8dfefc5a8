"""A support set, and the scores that a classifier of `nearshot.evaluation` gives its classes."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import torch
from torch import Tensor

from nearshot.checks import check_count
from nearshot.distances import squared_euclidean
from nearshot.errors import InputError, look_up
from nearshot.evaluation.classifiers import (
    CLASSIFIERS,
    KNN,
    RIDGE,
    TIE,
    Classifier,
    knn,
    nearest_in_order,
    similarities,
)

AUTO = RIDGE  # chosen on photographs of flowers and on CIFAR-FS by `benchmarks/photos.py`
PAIRS_AT_ONCE = 1 << 22  # distances held at a time: 32 MiB of float64


@dataclass(frozen=True, eq=False)
class Support:
    """Prepared features with their classes."""

    features: Tensor  # (image, dim) float64, centred and normalised as configured
    codes: Tensor  # (image,) class indices; every class has at least one image
    n_classes: int

    @cached_property
    def counts(self) -> Tensor:
        """The number of images of each class, (class,)."""
        return torch.bincount(self.codes, minlength=self.n_classes)

    @cached_property
    def means(self) -> Tensor:
        """The mean feature of each class, (class, dim)."""
        return self.sums(self.features) / self.counts[:, None]

    @cached_property
    def residuals(self) -> Tensor:
        """The squared distance of each image to the mean of its class, (image,)."""
        return (self.features - self.means[self.codes]).square().sum(1)

    @cached_property
    def between(self) -> float | None:
        """The mean squared distance between images of different classes; None if there are none, or it is zero.

        Over all pairs Σ‖x − y‖² is 2nΣ‖x‖² − 2‖Σx‖². The same holds within each class; the rest is
        between classes.
        """
        centred = self.features - self.features.mean(0)
        counts, lengths = self.counts, centred.square().sum(1)
        means = self.sums(centred) / counts[:, None]
        within = (counts * self.sums(lengths)).sum() - (counts[:, None] * means).square().sum()
        pairs = len(lengths) ** 2 - int(counts.square().sum())
        total = float(2 * (len(lengths) * lengths.sum() - within))
        return total / pairs if pairs and total > 0 else None

    def sums(self, values: Tensor) -> Tensor:
        """Add up values of the images, (image, …), by class: (class, …)."""
        return values.new_zeros(self.n_classes, *values.shape[1:]).index_add_(0, self.codes, values)

    def subset(self, images: Tensor) -> "Support":
        """Return the support set of some images, which must include every class."""
        return Support(self.features[images], self.codes[images], self.n_classes)

    def n_voters(self, n_neighbors: int | None) -> int:
        """Return how many images vote in k-NN: by default as many as the smallest class has, so that any can win."""
        return min(n_neighbors or int(self.counts.min()), len(self.codes))

    def nearest(self, query: Tensor, n: int) -> tuple[Tensor, Tensor]:
        """Return the distances to the n nearest images and their indices, (query, neighbour), nearest first.

        Of equally distant images, those of the first class come first, and of one class the first
        ones.
        """
        check_count(n, "n_neighbors")
        order = self.codes.argsort(stable=True)  # as classifiers see them
        distances, places = [], []
        for rows in self.blocks(query):
            squares = squared_euclidean(rows, self.features[order])
            places.append(
                nearest_in_order(
                    squares, min(int(n), len(order)), TIE * squares.amax(1, keepdim=True)
                )
            )
            distances.append(squares.gather(1, places[-1]).sqrt())
        return torch.cat(distances), order[torch.cat(places)]

    def blocks(self, query: Tensor) -> Iterator[Tensor]:
        """Yield blocks of queries whose distances to all images, or whose pairs of classes, fit in memory."""
        pairs = max(len(self.codes), self.n_classes**2 // 8)
        yield from query.split(max(1, PAIRS_AT_ONCE // pairs))


class Head(NamedTuple):
    """A classifier that has seen its support set."""

    classifier: Classifier
    points: Tensor  # (point, dim) that queries are compared with: class means, support images, or fitted points
    given: Tensor  # the second argument of the classifier's scores: the number of points of each class, or offsets

    def scores(self, query: Tensor) -> Tensor:
        """Score every class for every query, (query, class); the highest score wins."""
        return self.classifier.scores(similarities(self.points, query), self.given)


def fit_head(name: str, support: Support, n_neighbors: int | None = None) -> Head:
    """Fit the classifier of that name to a support set; `n_neighbors` applies to k-NN only."""
    classifier = classifier_of(name)
    if classifier is KNN:
        classifier = knn(support.n_voters(n_neighbors))
    if classifier.prototypes:
        return Head(classifier, support.means, torch.ones_like(support.counts))
    images = support.features[support.codes.argsort(stable=True)]  # grouped by class
    if classifier.fit is None:
        return Head(classifier, images, support.counts)
    return Head(classifier, *classifier.fit(images, support.counts))


def classifier_of(name: str) -> Classifier:
    """Return the classifier of a name in `CLASSIFIERS`, or the one that "auto" stands for."""
    return AUTO if name == "auto" else look_up(CLASSIFIERS, name, "classifier")


def class_scores(query: Tensor, support: Support, head: Head) -> Tensor:
    """Score every class for every query, (query, class), in blocks that fit in memory."""
    scores = torch.cat([head.scores(rows) for rows in support.blocks(query)])
    expected, got, name = (len(query), support.n_classes), tuple(scores.shape), head.classifier.name
    if got != expected:
        raise InputError(
            f"The classifier {name!r} must return scores of shape {expected}, (query, class) (got {got})."
        )
    return scores
