"""The three classifiers of Section 2.3, for many episodes at once.

A classifier is a function of `support` (episode, way, shot, dim) and `query` (episode, query, dim) that returns scores
(episode, query, way); the way with the highest score is the answer.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cached_property, partial
from types import MappingProxyType
from typing import Literal

import torch
from torch import Tensor

from nearshot.errors import InputError

__all__ = [
    "BUILT_IN",
    "CLASSIFIERS",
    "Classifier",
    "ClassifierName",
    "Task",
    "classifier_name",
    "k_nearest_neighbours",
    "nearest_centroid",
    "soft_assignment",
]

Classifier = Callable[[Tensor, Tensor], Tensor]
ClassifierName = Literal["centroid", "soft", "knn"]


class Task:
    """Episodes to be answered, whose features lie around zero.

    Where they lie changes no distance. But far from zero, ‖q‖² + ‖s‖² − 2qs loses its digits.
    """

    def __init__(self, support: Tensor, query: Tensor) -> None:
        self.support, self.query = support, query

    @classmethod
    def around_zero(cls, support: Tensor, query: Tensor) -> Task:
        """Move the features of each episode to around zero."""
        offset = support.mean((1, 2))  # (episode, dim)
        return cls(support - offset[:, None, None], query - offset[:, None])

    @cached_property
    def closeness(self) -> Tensor:
        """‖q‖² − ‖q − s‖² for every query and support image, (episode, query, way, shot)."""
        return _closeness(self.support, self.query)


def nearest_centroid(support: Tensor, query: Tensor) -> Tensor:
    """Score a class by how near its mean support embedding is: minus the squared distance, up to the query's length.

    >>> support = torch.tensor([[[[0.0], [2.0]], [[5.0], [9.0]]]])  # classes around 1 and 7
    >>> nearest_centroid(support, torch.tensor([[[3.0], [6.0]]])).argmax(-1)
    tensor([[0, 1]])
    """
    return _centroid_scores(Task.around_zero(support, query))


def soft_assignment(support: Tensor, query: Tensor) -> Tensor:
    """Score a class by the log of Σ exp(−d²) over its support images, up to what is the same for all classes.

    >>> support = torch.tensor([[[[0.0], [2.0]], [[5.0], [9.0]]]])
    >>> soft_assignment(support, torch.tensor([[[3.0], [6.0]]])).argmax(-1)
    tensor([[0, 1]])
    """
    return _soft_scores(Task.around_zero(support, query))


def k_nearest_neighbours(support: Tensor, query: Tensor, k: int | None = None) -> Tensor:
    """Score a class by how many of the k nearest support images are its; of equals, the one with the nearest wins.

    Args:
        support: (episode, way, shot, dim).
        query: (episode, query, dim).
        k: how many neighbours vote; by default the number of shots. Use `functools.partial` for another.

    >>> support = torch.tensor([[[[0.0], [2.0]], [[5.0], [9.0]]]])
    >>> k_nearest_neighbours(support, torch.tensor([[[3.0], [6.0]]])).argmax(-1)  # of 2 and 5, 2 is nearer to 3
    tensor([[0, 1]])
    """
    return _votes(Task.around_zero(support, query), k)


def classifier_name(classifier: str | Callable[..., Tensor]) -> str:
    """Return what to call a classifier, or another function, in a result.

    >>> classifier_name(partial(k_nearest_neighbours, k=3))
    'k_nearest_neighbours(k=3)'
    """
    if isinstance(classifier, str):
        return classifier
    if isinstance(classifier, partial):
        given = [*map(repr, classifier.args), *(f"{key}={value!r}" for key, value in classifier.keywords.items())]
        return f"{classifier_name(classifier.func)}({', '.join(given)})"
    return str(getattr(classifier, "__name__", None) or type(classifier).__name__)


def _closeness(support: Tensor, query: Tensor) -> Tensor:
    n_way, n_shot = support.shape[1:3]
    points = support.flatten(1, 2)  # (episode, way · shot, dim)
    lengths = points.square().sum(2, keepdim=True)
    # Few points and many queries: the product is faster this way round, and so is what is done with it.
    products: Tensor = torch.baddbmm(lengths, points, query.transpose(1, 2), beta=-1, alpha=2)
    return products.view(len(query), n_way, n_shot, -1).permute(0, 3, 1, 2)


def _centroid_scores(task: Task) -> Tensor:
    centroids = task.support.mean(2, keepdim=True)  # (episode, way, 1, dim)
    return _closeness(centroids, task.query)[..., 0]


def _soft_scores(task: Task) -> Tensor:
    """The log of the mean exponential, by exp(x) − 1: where all distances are tiny, exp(x) has no digits left."""
    largest = task.closeness.amax(3, keepdim=True)
    return largest[..., 0] + (task.closeness - largest).expm1_().mean(3).log1p_()


def _votes(task: Task, k: int | None = None) -> Tensor:
    closeness = task.closeness
    n_way, n_shot = closeness.shape[2:]
    k = n_shot if k is None else k
    if not 1 <= k <= n_way * n_shot:
        raise InputError(f"k-NN with k = {k} does not fit a support of {n_way} ways × {n_shot} shots; lower k.")
    neighbours = closeness.flatten(2).topk(k, dim=2, sorted=False).indices // n_shot  # the way of each neighbour
    votes = closeness.new_zeros(closeness.shape[:3])  # (episode, query, way)
    votes.scatter_add_(2, neighbours, closeness.new_ones(()).expand(neighbours.shape))
    # A rank under 1 decides between equals: it is highest for the way with the nearest support image.
    rank = closeness.amax(3).argsort(2).argsort(2)
    return votes + rank / n_way


CLASSIFIERS: Mapping[ClassifierName, Classifier] = MappingProxyType(
    {"centroid": nearest_centroid, "soft": soft_assignment, "knn": k_nearest_neighbours}
)
# The same as functions of a task, which classifiers can share.
BUILT_IN: Mapping[Classifier, Callable[[Task], Tensor]] = MappingProxyType(
    {nearest_centroid: _centroid_scores, soft_assignment: _soft_scores, k_nearest_neighbours: _votes}
)
