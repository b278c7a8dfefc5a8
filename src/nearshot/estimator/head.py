"""A classifier of `nearshot.evaluation`, fitted to a support set: the scores of the classes."""

from typing import NamedTuple

import torch
from torch import Tensor

from nearshot.errors import InputError, look_up
from nearshot.estimator.support import Support
from nearshot.evaluation.classifiers import (
    CLASSIFIERS,
    KNN,
    RIDGE,
    Classifier,
    knn,
    similarities,
)

AUTO_CLASSIFIER = RIDGE  # chosen on photographs of flowers and on CIFAR-FS by benchmarks/photos.py


class Head(NamedTuple):
    """A classifier that is fitted to a support set.

    Attributes:
        classifier: the definition of its scores.
        points: (point, dim) what queries are compared with: class means, support images, or fitted
            points.
        class_sizes: the second argument of the classifier's scores: the number of points of each
            class, or the offsets that its `fit` returned.
    """

    classifier: Classifier
    points: Tensor
    class_sizes: Tensor

    def scores(self, query: Tensor) -> Tensor:
        """Score every class for every query, (query, class); the highest score wins."""
        return self.classifier.scores(similarities(self.points, query), self.class_sizes)


def find_classifier(name: str) -> Classifier:
    """Return the classifier of a name in `CLASSIFIERS`; "auto" is ridge regression."""
    if name == "auto":
        return AUTO_CLASSIFIER
    return look_up(CLASSIFIERS, name, "classifier")


def fit_head(name: str, support: Support, n_neighbors: int | None = None) -> Head:
    """Fit the classifier of that name to a support set; `n_neighbors` applies to k-NN only."""
    classifier = find_classifier(name)
    if classifier is KNN:
        classifier = knn(support.n_voters(n_neighbors))
    if classifier.prototypes:
        return Head(classifier, support.means, torch.ones_like(support.counts))
    images = support.features[support.by_class]
    if classifier.fit is None:
        return Head(classifier, images, support.counts)
    points, offsets = classifier.fit(images, support.counts)
    return Head(classifier, points, offsets)


def class_scores(query: Tensor, support: Support, head: Head) -> Tensor:
    """Score every class for every query, (query, class), in blocks that fit in memory."""
    scores = torch.cat([head.scores(rows) for rows in support.blocks(query)])
    expected = (len(query), support.n_classes)
    if tuple(scores.shape) != expected:
        raise InputError(
            f"The classifier {head.classifier.name!r} must return scores of shape {expected}, "
            f"(query, class) (got {tuple(scores.shape)})."
        )
    return scores
