"""Fast similarities of many episodes, and the scores that the built-in classifiers compute from them.

A similarity here is 2qs − ‖s‖² = ‖q‖² − ‖q − s‖². Reading the features of an episode is most of the work. So they are
gathered a few episodes at a time, into a buffer that stays in a core's cache, and all products are computed there.

On a CPU, NumPy gathers and multiplies: it uses one thread, so that each thread can do its own episodes, and its product
of few points with many queries is twice as fast as torch's. Elsewhere torch does, for all episodes at once.
"""

from __future__ import annotations

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


class SimilarityBuffers:
    """Computes the similarities of up to `at_once` episodes, always in the same memory.

    Fresh memory would cost more than the gathering. A result is valid until the next one is computed, and each thread
    needs its own buffers.

    Args:
        features: (image, dim), around zero: far from it, 2qs − ‖s‖² loses its digits.
        lengths: (image,) the squared lengths ‖s‖² of the features.
        shape: ways, shots and queries.
        shots_of_means: the numbers of shots of which class means are needed.
        needs_images: whether the similarities to each support image are needed.
        at_once: how many episodes there is room for.
    """

    def __init__(
        self,
        features: Tensor,
        lengths: Tensor,
        shape: EpisodeShape,
        shots_of_means: Sequence[int],
        *,
        needs_images: bool,
        at_once: int,
    ) -> None:
        self.features, self.lengths, self.shape, self.needs_images = features, lengths, shape, needs_images
        self.n_queries = shape.n_way * shape.n_query
        self.gather_at_once = at_once
        if features.device.type == "cpu":
            self.gather_at_once = max(1, CACHE_BYTES // (shape.batch_size * features[0].nbytes))
        self.gathered = features.new_empty(self.gather_at_once * shape.batch_size, features.shape[1])
        self.to_images = features.new_empty(at_once, shape.n_way, shape.n_shot, self.n_queries if needs_images else 0)
        self.to_means = {n: features.new_empty(at_once, shape.n_way, self.n_queries) for n in shots_of_means}
        self.sums = features.new_empty(self.gather_at_once, shape.n_way, features.shape[1])  # over shots
        self.squares = {n: features.new_empty(at_once, shape.n_way) for n in shots_of_means}  # of the sums

    def compute(self, rows: Tensor) -> Similarities:
        """Return the similarities of episodes; `rows` (episode, image), queries of all ways first, then support."""
        (self._products_in_cache if rows.device.type == "cpu" else self._products)(rows)
        to_images, to_means = self.to_images[: len(rows)], {n: t[: len(rows)] for n, t in self.to_means.items()}
        for n, products in to_means.items():
            if self.needs_images:
                torch.sum(to_images[:, :, :n], 2, out=products)  # the product of a sum is the sum of the products
            products.mul_(2 / n).sub_(self.squares[n][: len(rows), :, None].div_(n**2))
        lengths = self.lengths[rows[:, self.n_queries :]].view(*to_images.shape[:3], 1)
        return Similarities(to_images.mul_(2).sub_(lengths), to_means)

    def _products_in_cache(self, rows: Tensor) -> None:
        # A few episodes at a time, all in NumPy: torch's calls may wait for the interpreter, which threads share.
        features, all_rows, place, sums = (t.numpy() for t in (self.features, rows, self.gathered, self.sums))
        to_images, n_way, n_queries = self.to_images.numpy(), self.shape.n_way, self.n_queries
        means = [(n, products.numpy(), self.squares[n].numpy()) for n, products in self.to_means.items()]
        for start in range(0, len(rows), self.gather_at_once):
            some = all_rows[start : start + self.gather_at_once]
            n_some, here = len(some), slice(start, start + len(some))
            # Rows are in range: "clip" spares NumPy the checks, and a copy that it would make for them.
            gathered = features.take(some.ravel(), axis=0, out=place[: some.size], mode="clip")
            gathered = gathered.reshape(n_some, some.shape[1], -1)  # (episode, image, dim)
            query = gathered[:, :n_queries].swapaxes(1, 2)  # (episode, dim, query)
            support = gathered[:, n_queries:].reshape(n_some, n_way, -1, features.shape[1])
            if self.needs_images:
                np.matmul(support, query[:, None], out=to_images[here])
            for n, products, squares in means:
                np.add.reduce(support[:, :, :n], axis=2, out=sums[:n_some])
                np.vecdot(sums[:n_some], sums[:n_some], out=squares[here])
                if not self.needs_images:
                    np.matmul(sums[:n_some], query, out=products[here])

    def _products(self, rows: Tensor) -> None:
        shape, n_queries, n_episodes = self.shape, self.n_queries, len(rows)
        gathered = self.gathered[: rows.numel()]
        torch.index_select(self.features, 0, rows.flatten(), out=gathered)
        gathered = gathered.view(*rows.shape, -1)  # (episode, image, dim)
        query, support = gathered[:, :n_queries].transpose(1, 2), gathered[:, n_queries:]
        if self.needs_images:
            torch.bmm(support, query, out=self.to_images[:n_episodes].flatten(1, 2))
        for n, products in self.to_means.items():
            sums = support.unflatten(1, (shape.n_way, shape.n_shot))[:, :, :n].sum(2)  # (episode, way, dim)
            torch.sum(sums.square(), 2, out=self.squares[n][:n_episodes])
            if not self.needs_images:
                torch.bmm(sums, query, out=products[:n_episodes])


# The scores of a fast path, (episode, way, query), and (episode, query) the smallest difference between similarities
# that decided before the scores did, if any.
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


# Faster equivalents of the built-in definitions. Any other classifier is computed by its own definition.
FAST: dict[Classifier, Callable[[Similarities, int], Scores]] = {
    CENTROID: _centroid_scores,
    SOFT: _soft_scores,
    KNN: _knn_scores,
}
