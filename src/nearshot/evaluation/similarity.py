"""Fast similarities of many episodes, and the scores that the built-in classifiers compute from them.

A similarity here is 2qs − ‖s‖² = ‖q‖² − ‖q − s‖². Reading the features of an episode is most of the
work. So they are gathered a few episodes at a time, into a buffer that stays in a core's cache, and
all products are computed there.

On a CPU, NumPy gathers and multiplies: it uses one thread, so that each thread can do its own
episodes, and its product of few points with many queries is twice as fast as torch's. Elsewhere
torch does, for all episodes at once.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from nearshot.episode_shape import EpisodeShape
from nearshot.evaluation.classifiers import CENTROID, KNN, SOFT, Classifier

CACHE_BYTES = 2**20


class Similarities(NamedTuple):
    """The similarities of some episodes."""

    to_images: Tensor  # (episode, way, shot, query); without queries if they are not needed
    to_means: dict[int, Tensor]  # (episode, way, query), by the number of shots of the class means


def episode_similarities(
    features: Tensor,
    lengths: Tensor,
    rows: Tensor,
    shape: EpisodeShape,
    shots_of_means: Sequence[int],
    *,
    images: bool,
) -> Similarities:
    """Return the similarities of some episodes.

    Args:
        features: (image, dim), around zero: far from it, 2qs − ‖s‖² loses its digits.
        lengths: (image,) the squared lengths ‖s‖² of the features.
        rows: (episode, image) indices of images, queries of all ways first, then support.
        shape: ways, shots and queries.
        shots_of_means: the numbers of shots of which class means are needed.
        images: whether the similarities to each support image are needed.
    """
    n_queries = shape.n_way * shape.n_query
    to_images = features.new_empty(len(rows), shape.n_way, shape.n_shot, n_queries if images else 0)
    to_means = {n: features.new_empty(len(rows), shape.n_way, n_queries) for n in shots_of_means}
    squares = {
        n: features.new_empty(len(rows), shape.n_way) for n in shots_of_means
    }  # of the sums over shots
    multiply = multiply_in_cache if rows.device.type == "cpu" else multiply_at_once
    multiply(features, rows, to_images, to_means, squares)
    for n, products in to_means.items():
        if images:
            torch.sum(
                to_images[:, :, :n], 2, out=products
            )  # the product of a sum is the sum of the products
        products.mul_(2 / n).sub_(squares[n][:, :, None].div_(n**2))
    support_lengths = lengths[rows[:, n_queries:]].view(*to_images.shape[:3], 1)
    return Similarities(to_images.mul_(2).sub_(support_lengths), to_means)


Products = dict[int, Tensor]  # by the number of shots of a sum


def multiply_in_cache(
    features: Tensor, rows: Tensor, to_images: Tensor, to_sums: Products, squares: Products
) -> None:
    """Write the products of queries with support images, or else with their sums over shots, and the sums' squares.

    A few episodes at a time, all in NumPy: torch's calls may wait for the interpreter, which
    threads share.
    """
    _, n_way, n_shot, n_of_images = to_images.shape
    n_queries, dim = rows.shape[1] - n_way * n_shot, features.shape[1]
    at_once = min(max(1, CACHE_BYTES // (rows.shape[1] * features[0].nbytes)), len(rows))
    source, all_rows, products = features.numpy(), rows.numpy(), to_images.numpy()
    gathered = np.empty((at_once * rows.shape[1], dim), source.dtype)
    sums = np.empty((at_once, n_way, dim), source.dtype)
    means = [(n, by_sum.numpy(), squares[n].numpy()) for n, by_sum in to_sums.items()]
    for start in range(0, len(rows), at_once):
        some = all_rows[start : start + at_once]
        n_some, here = len(some), slice(start, start + len(some))
        # Rows are in range: "clip" spares NumPy the checks, and a copy that it would make for them.
        taken = source.take(some.ravel(), axis=0, out=gathered[: some.size], mode="clip").reshape(
            *some.shape, dim
        )
        query = taken[:, :n_queries].swapaxes(1, 2)  # (episode, dim, query)
        support = taken[:, n_queries:].reshape(n_some, n_way, n_shot, dim)
        if n_of_images:
            np.matmul(support, query[:, None], out=products[here])
        for n, by_sum, square in means:
            np.add.reduce(support[:, :, :n], axis=2, out=sums[:n_some])
            np.vecdot(sums[:n_some], sums[:n_some], out=square[here])
            if not n_of_images:
                np.matmul(sums[:n_some], query, out=by_sum[here])


def multiply_at_once(
    features: Tensor, rows: Tensor, to_images: Tensor, to_sums: Products, squares: Products
) -> None:
    """Write what `multiply_in_cache` does, for all episodes at once."""
    _, n_way, n_shot, n_of_images = to_images.shape
    gathered = features[rows]  # (episode, image, dim)
    support, query = gathered[:, -n_way * n_shot :], gathered[:, : -n_way * n_shot].mT
    if n_of_images:
        torch.bmm(support, query, out=to_images.flatten(1, 2))
    for n, by_sum in to_sums.items():
        sums = support.unflatten(1, (n_way, n_shot))[:, :, :n].sum(2)  # (episode, way, dim)
        torch.sum(sums.square(), 2, out=squares[n])
        if not n_of_images:
            torch.bmm(sums, query, out=by_sum)


# The scores of a fast path, (episode, way, query), and (episode, query) the smallest difference
# between similarities that decided before the scores did, if any.
Scores = tuple[Tensor, Tensor | None]


def _centroid_scores(similarities: Similarities, n_shot: int) -> Scores:
    return similarities.to_means[n_shot], None


def _soft_scores(similarities: Similarities, n_shot: int) -> Scores:
    to_images = similarities.to_images[:, :, :n_shot]
    largest = to_images.amax(2, keepdim=True)
    return largest[:, :, 0] + (to_images - largest).expm1_().mean(2).log1p_(), None


def _knn_scores(similarities: Similarities, n_shot: int) -> Scores:
    """Return the similarity of each way's nearest image; ways that do not have the most votes have −∞."""
    to_images = similarities.to_images[:, :, :n_shot]
    last_in, first_out = _largest(to_images.flatten(1, 2), k=n_shot)
    votes = (to_images >= last_in[:, None, None]).sum(2, dtype=torch.int32)  # (episode, way, query)
    outvoted = votes < votes.amax(1, keepdim=True)
    return to_images.amax(2).masked_fill_(outvoted, -torch.inf), last_in - first_out


def _largest(values: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Return the k-th and the (k + 1)-th largest along dimension 1 of (episode, point, query)."""
    if values.device.type != "cpu":
        largest = values.topk(k + 1, dim=1).values
        return largest[:, k - 1], largest[:, k]
    # NumPy partitions short rows several times faster than torch finds their largest values.
    n_points = values.shape[1]
    rows = np.ascontiguousarray(values.numpy().swapaxes(1, 2))
    rows.partition((n_points - k - 1, n_points - k), axis=2)
    ordered = torch.from_numpy(rows)
    return ordered[:, :, n_points - k], ordered[:, :, n_points - k - 1]


# Faster equivalents of the built-in definitions. Any other classifier is computed by its own
# definition.
FAST: dict[Classifier, Callable[[Similarities, int], Scores]] = {
    CENTROID: _centroid_scores,
    SOFT: _soft_scores,
    KNN: _knn_scores,
}
