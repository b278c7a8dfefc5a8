"""Fast similarities of many episodes, and the scores of the built-in classifiers.

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

    to_images: Tensor  # (episode, way, shot, query); empty if they are not needed
    to_means: dict[int, Tensor]  # (episode, way, query), by the number of shots of the class means


class Products(NamedTuple):
    """Products of queries with support images and with their sums over shots.

    They are written in place. If products with images are needed, those with sums are not: the
    product of a sum is the sum of the products.
    """

    to_images: Tensor  # (episode, way, shot, query); empty if they are not needed
    to_sums: dict[int, Tensor]  # (episode, way, query), by the number of shots
    squares_of_sums: dict[int, Tensor]  # (episode, way), by the number of shots


def episode_similarities(
    features: Tensor,
    squares: Tensor,
    rows: Tensor,
    shape: EpisodeShape,
    shots_of_means: Sequence[int],
    *,
    needs_images: bool,
) -> Similarities:
    """Return the similarities of some episodes.

    Args:
        features: (image, dim), around zero: far from it, 2qs − ‖s‖² loses its digits.
        squares: (image,) the squared lengths ‖s‖² of the features.
        rows: (episode, image) indices of images, queries of all ways first, then support.
        shape: ways, shots and queries.
        shots_of_means: the numbers of shots of which class means are needed.
        needs_images: whether the similarities to each support image are needed.
    """
    n_episodes = len(rows)
    n_queries = shape.n_way * shape.n_query
    products = Products(
        features.new_empty(n_episodes, shape.n_way, shape.n_shot, n_queries if needs_images else 0),
        {n: features.new_empty(n_episodes, shape.n_way, n_queries) for n in shots_of_means},
        {n: features.new_empty(n_episodes, shape.n_way) for n in shots_of_means},
    )
    multiply = multiply_in_cache if rows.device.type == "cpu" else multiply_at_once
    multiply(features, rows, shape, products, needs_images=needs_images)
    # In place: fresh memory costs more than the arithmetic.
    for n_shot, to_mean in products.to_sums.items():
        if needs_images:
            torch.sum(products.to_images[:, :, :n_shot], 2, out=to_mean)
        squares_of_means = products.squares_of_sums[n_shot].div_(n_shot**2)
        to_mean.mul_(2 / n_shot).sub_(squares_of_means[:, :, None])
    if needs_images:
        support_squares = squares[rows[:, n_queries:]].view(
            n_episodes, shape.n_way, shape.n_shot, 1
        )
        products.to_images.mul_(2).sub_(support_squares)
    return Similarities(products.to_images, products.to_sums)


def multiply_in_cache(
    features: Tensor, rows: Tensor, shape: EpisodeShape, products: Products, *, needs_images: bool
) -> None:
    """Write the products of a few episodes at a time, all in NumPy.

    torch's calls may wait for the interpreter, which threads share.
    """
    n_queries = shape.n_way * shape.n_query
    dim = features.shape[1]
    bytes_per_episode = shape.batch_size * features[0].nbytes
    at_once = min(max(1, CACHE_BYTES // bytes_per_episode), len(rows))
    all_features = features.numpy()
    all_rows = rows.numpy()
    to_images = products.to_images.numpy()
    to_sums = {n_shot: tensor.numpy() for n_shot, tensor in products.to_sums.items()}
    squares = {n_shot: tensor.numpy() for n_shot, tensor in products.squares_of_sums.items()}
    buffer = np.empty((at_once * shape.batch_size, dim), all_features.dtype)
    sum_buffer = np.empty((at_once, shape.n_way, dim), all_features.dtype)
    for start in range(0, len(rows), at_once):
        part = all_rows[start : start + at_once]
        n_part = len(part)
        episodes = slice(start, start + n_part)
        # Rows are in range: "clip" spares NumPy the checks, and a copy that it would make for them.
        gathered = all_features.take(part.ravel(), axis=0, out=buffer[: part.size], mode="clip")
        gathered = gathered.reshape(n_part, shape.batch_size, dim)
        query = gathered[:, :n_queries].swapaxes(1, 2)  # (episode, dim, query)
        support = gathered[:, n_queries:].reshape(n_part, shape.n_way, shape.n_shot, dim)
        if needs_images:
            np.matmul(support, query[:, None], out=to_images[episodes])
        for n_shot, to_sum in to_sums.items():
            sums = np.add.reduce(support[:, :, :n_shot], axis=2, out=sum_buffer[:n_part])
            np.vecdot(sums, sums, out=squares[n_shot][episodes])
            if not needs_images:
                np.matmul(sums, query, out=to_sum[episodes])


def multiply_at_once(
    features: Tensor, rows: Tensor, shape: EpisodeShape, products: Products, *, needs_images: bool
) -> None:
    """Write what `multiply_in_cache` does, for all episodes at once."""
    n_queries = shape.n_way * shape.n_query
    gathered = features[rows]  # (episode, image, dim)
    query = gathered[:, :n_queries].mT
    support = gathered[:, n_queries:]
    if needs_images:
        torch.bmm(support, query, out=products.to_images.flatten(1, 2))
    by_way = support.unflatten(1, (shape.n_way, shape.n_shot))
    for n_shot, to_sum in products.to_sums.items():
        sums = by_way[:, :, :n_shot].sum(2)  # (episode, way, dim)
        torch.sum(sums.square(), 2, out=products.squares_of_sums[n_shot])
        if not needs_images:
            torch.bmm(sums, query, out=to_sum)


Scores = tuple[Tensor, Tensor | None]
"""The scores of a fast path, (episode, way, query); and (episode, query) the smallest difference
between similarities that decided before the scores did, if any."""


def _centroid_scores(similarities: Similarities, n_shot: int) -> Scores:
    return similarities.to_means[n_shot], None


def _soft_scores(similarities: Similarities, n_shot: int) -> Scores:
    to_images = similarities.to_images[:, :, :n_shot]
    largest = to_images.amax(2, keepdim=True)
    return largest[:, :, 0] + (to_images - largest).expm1_().mean(2).log1p_(), None


def _knn_scores(similarities: Similarities, n_shot: int) -> Scores:
    """Return the similarity of each way's nearest image, or −∞ for ways without the most votes."""
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
