"""The three classifiers of Section 2.3, for many episodes at once.

A classifier is a function of `support` (episode, way, shot, dim) and `query` (episode, query, dim) that returns scores
(episode, query, way); the way with the highest score is the answer.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from types import MappingProxyType
from typing import Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor

from nearshot.errors import InputError
from nearshot.evaluation.ties import TIE, n_behind, tied_nearest

__all__ = [
    "BUILT_IN",
    "CLASSIFIERS",
    "FROM_IMAGES",
    "Classifier",
    "ClassifierName",
    "Scores",
    "classifier_name",
    "k_nearest_neighbours",
    "nearest_centroid",
    "neighbour_scores",
    "soft_assignment",
    "soft_scores",
]

Classifier = Callable[[Tensor, Tensor], Tensor]
ClassifierName = Literal["centroid", "soft", "knn"]


class Scores(NamedTuple):
    """What a classifier makes of episodes.

    Attributes:
        values: (episode, way, query); the way with the highest is the answer.
        gap: (episode, query) a difference between nearnesses that decided before the values did, if one did.
    """

    values: Tensor
    gap: Tensor | None = None


def nearest_centroid(support: Tensor, query: Tensor) -> Tensor:
    """Score a class by how near its mean support embedding is: minus the squared distance, up to the query's length.

    >>> support = torch.tensor([[[[0.0], [2.0]], [[5.0], [9.0]]]])  # classes around 1 and 7
    >>> nearest_centroid(support, torch.tensor([[[3.0], [6.0]]])).argmax(-1)
    tensor([[0, 1]])
    """
    return _nearness(*_around_zero(support.mean(2, keepdim=True), query))[:, :, 0].transpose(1, 2)


def soft_assignment(support: Tensor, query: Tensor) -> Tensor:
    """Score a class by the log of Σ exp(−d²) over its support images, up to what is the same for all classes.

    >>> support = torch.tensor([[[[0.0], [2.0]], [[5.0], [9.0]]]])
    >>> soft_assignment(support, torch.tensor([[[3.0], [6.0]]])).argmax(-1)
    tensor([[0, 1]])
    """
    return soft_scores(_nearness(*_around_zero(support, query))).values.transpose(1, 2)


def k_nearest_neighbours(
    support: Tensor, query: Tensor, k: int | None = None, *, ties: Literal["nearest", "first"] = "nearest"
) -> Tensor:
    """Score a class by how many of the k nearest support images are its.

    Args:
        support: (episode, way, shot, dim).
        query: (episode, query, dim).
        k: how many neighbours vote; by default the number of shots. Use `functools.partial` for another.
        ties: of classes with equally many votes, the one with the nearest image wins, or the first. The latter is what
            taking the mode of the labels does, as in scikit-learn; it costs more than a point of 5-shot accuracy.

    Of images that are equally far, the first are the nearer ones; of classes whose nearest images are, the first is
    the answer.

    >>> support = torch.tensor([[[[0.0], [2.0]], [[5.0], [9.0]]]])
    >>> k_nearest_neighbours(support, torch.tensor([[[3.0], [6.0]]])).argmax(-1)  # of 2 and 5, 2 is nearer to 3
    tensor([[0, 1]])
    """
    n_way, n_shot = support.shape[1:3]
    k = n_shot if k is None else k
    if not 1 <= k <= n_way * n_shot:
        raise InputError(f"k-NN with k = {k} does not fit a support of {n_way} ways × {n_shot} shots; lower k.")
    points, query = _around_zero(support, query)
    distance = -_nearness(points, query).permute(0, 3, 1, 2)  # (episode, query, way, shot), up to the query's length
    size = query.square().sum(2) + points.square().sum(3).amax((1, 2))[:, None]
    tolerance = TIE * size[:, :, None]  # (episode, query, 1)
    voters = tied_nearest(distance.flatten(2), k, tolerance).unflatten(2, (n_way, n_shot))
    votes = voters.sum(3).to(distance)  # (episode, query, way)
    # Under 1 decides between equals: it is highest for the way with the nearest support image, or for the first.
    if ties == "nearest":
        ahead = n_behind(distance.amin(3), tolerance)
    elif ties == "first":
        ahead = torch.arange(n_way, device=votes.device).flip(0)
    else:
        raise InputError(f"ties must be 'nearest' or 'first', not {ties!r}.")
    scores: Tensor = votes + ahead.to(votes) / n_way
    return scores


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


def soft_scores(nearness: Tensor) -> Scores:
    """Soft assignment from the nearness to the support images, (episode, way, shot, query).

    The log of the mean exponential, by exp(x) − 1: where all distances are tiny, exp(x) has no digits left.
    """
    largest = nearness.amax(2, keepdim=True)
    return Scores(largest[:, :, 0] + (nearness - largest).expm1_().mean(2).log1p_())


def neighbour_scores(nearness: Tensor) -> Scores:
    """k-NN from the nearness to the support images, with k the number of shots: that of each way's nearest image.

    Only the ways with the most votes take part; the others have −∞. Where the last neighbour that votes is hardly
    nearer than the first that does not, the gap says so.
    """
    last_in, first_out = _largest(nearness.flatten(1, 2), k=nearness.shape[2])
    votes = (nearness >= last_in[:, None, None]).sum(2, dtype=torch.int32)  # (episode, way, query)
    outvoted = votes < votes.amax(1, keepdim=True)
    return Scores(nearness.amax(2).masked_fill_(outvoted, -torch.inf), last_in - first_out)


def _largest(values: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Return the k-th and the (k + 1)-th largest along dimension 1 of (episode, point, query)."""
    if values.device.type != "cpu":
        largest = values.topk(k + 1, dim=1).values
        return largest[:, k - 1], largest[:, k]
    # NumPy, since it partitions short rows several times faster than torch finds their largest.
    n_points = values.shape[1]
    rows = np.ascontiguousarray(values.numpy().swapaxes(1, 2))
    rows.partition((n_points - k - 1, n_points - k), axis=2)
    ordered = torch.from_numpy(rows)
    return ordered[:, :, n_points - k], ordered[:, :, n_points - k - 1]


def _around_zero(points: Tensor, query: Tensor) -> tuple[Tensor, Tensor]:
    """Move the features of each episode to around zero, where 2qs − ‖s‖² has its digits; no distance changes."""
    offset = points.mean((1, 2))  # (episode, dim)
    return points - offset[:, None, None], query - offset[:, None]


def _nearness(points: Tensor, query: Tensor) -> Tensor:
    """‖q‖² − ‖q − s‖² for every point and query, (episode, way, shot, query)."""
    flat = points.flatten(1, 2)  # (episode, way · shot, dim)
    squares = flat.square().sum(2, keepdim=True)
    products: Tensor = torch.baddbmm(squares, flat, query.transpose(1, 2), beta=-1, alpha=2)
    return products.view(*points.shape[:3], -1)


CLASSIFIERS: Mapping[ClassifierName, Classifier] = MappingProxyType(
    {"centroid": nearest_centroid, "soft": soft_assignment, "knn": k_nearest_neighbours}
)
"""The classifiers by name."""
BUILT_IN = frozenset(CLASSIFIERS.values())
# Those that need the nearness to each support image, as functions of it; they can share it.
FROM_IMAGES: Mapping[Classifier, Callable[[Tensor], Scores]] = MappingProxyType(
    {soft_assignment: soft_scores, k_nearest_neighbours: neighbour_scores}
)
