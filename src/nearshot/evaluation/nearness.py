"""How near queries are to support images and to class means: all that the built-in classifiers look at.

Nearness is ‖q‖² − ‖q − s‖² = 2qs − ‖s‖²: of two points, the one with the higher is nearer. Reading the features of an
episode is most of the work, so they are gathered a few episodes at a time, into one place that stays in a core's cache,
and every product that anybody wants is taken while they are there.

On a CPU gathering and products are NumPy's: they run on one thread, so many threads can each do theirs, and its product
of few points with many queries is twice as fast as torch's. Elsewhere they are torch's, for all episodes at once.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from nearshot.episodes import EpisodeShape

__all__ = ["Nearness", "NearnessOfEpisodes"]

CACHE_BYTES = 2 * 2**20


@dataclass(frozen=True, eq=False)
class NearnessOfEpisodes:
    """The nearness of some episodes.

    Attributes:
        to_images: (episode, way, shot, query), if it was wanted.
        to_means: (episode, way, query), by how many shots the mean is of.
    """

    to_images: Tensor | None
    to_means: dict[int, Tensor]


@dataclass(frozen=True, eq=False)
class Nearness:
    """Finds the nearness of episodes.

    Attributes:
        features: (image, dim), lying around zero: far from it, 2qs − ‖s‖² loses its digits.
        shape: ways, shots and queries.
        shots_of_means: of how many shots class means are wanted.
        images_wanted: whether the nearness to each support image is wanted.
    """

    features: Tensor
    shape: EpisodeShape
    shots_of_means: tuple[int, ...]
    images_wanted: bool
    squares: Tensor = field(init=False)  # (image,) ‖s‖²

    def __post_init__(self) -> None:
        object.__setattr__(self, "squares", self.features.square().sum(1))

    @property
    def episodes_in_cache(self) -> int:
        """How many episodes' features fit a core's cache."""
        return max(1, CACHE_BYTES // (self.shape.batch_size * self.features.shape[1] * self.features.element_size()))

    def of(self, rows: Tensor) -> NearnessOfEpisodes:
        """Return the nearness of episodes; `rows` (episode, image), queries of all ways first, then support."""
        n_episodes, n_way, n_shot = len(rows), self.shape.n_way, self.shape.n_shot
        n_queries = n_way * self.shape.n_query
        at_once = self.episodes_in_cache if self.features.device.type == "cpu" else n_episodes
        to_images = self._empty(n_episodes, n_way, n_shot, n_queries) if self.images_wanted else None
        to_means = {n: self._empty(n_episodes, n_way, n_queries) for n in self.shots_of_means}
        squares = {n: self._empty(n_episodes, n_way, 1) for n in self.shots_of_means}  # of the shots' sums
        place = self._empty(min(at_once, n_episodes) * rows.shape[1], self.features.shape[1])
        for start in range(0, n_episodes, at_once):
            here = slice(start, min(start + at_once, n_episodes))
            gathered = _gather(self.features, rows[here], place)  # (episode, image, dim)
            query = gathered[:, :n_queries]
            support = gathered[:, n_queries:].unflatten(1, (n_way, n_shot))
            if to_images is not None:
                _multiply(support, query, to_images[here])
            for n, products in to_means.items():
                sums = support[:, :, :n].sum(2)  # (episode, way, dim)
                torch.sum(sums.square(), 2, keepdim=True, out=squares[n][here])
                if to_images is None:
                    _multiply(sums[:, None], query, products[here][:, None])
        if to_images is not None:
            for n, products in to_means.items():
                torch.sum(to_images[:, :, :n], 2, out=products)  # the sum's product is the sum of the products
            support_squares = self.squares[rows[:, n_queries:]].view(n_episodes, n_way, n_shot, 1)
            to_images.mul_(2).sub_(support_squares)
        for n, products in to_means.items():
            products.mul_(2 / n).sub_(squares[n].div_(n**2))
        return NearnessOfEpisodes(to_images, to_means)

    def _empty(self, *size: int) -> Tensor:
        return torch.empty(size, dtype=self.features.dtype, device=self.features.device)


def _gather(features: Tensor, rows: Tensor, place: Tensor) -> Tensor:
    """Return the features of `rows` (episode, image), in `place`."""
    flat, taken = rows.reshape(-1), place[: rows.numel()]
    if features.device.type == "cpu":
        # Rows are in range: "clip" spares NumPy the checking, and a copy that it would make for it.
        features.numpy().take(flat.numpy(), axis=0, out=taken.numpy(), mode="clip")
    else:
        torch.index_select(features, 0, flat, out=taken)
    return taken.view(*rows.shape, -1)


def _multiply(points: Tensor, query: Tensor, products: Tensor) -> None:
    """Put points (episode, group, point, dim) times query (episode, query, dim) into (episode, group, point, query)."""
    if points.device.type == "cpu":
        np.matmul(points.numpy(), query.numpy().swapaxes(1, 2)[:, None], out=products.numpy())
    else:
        torch.bmm(points.flatten(1, 2), query.transpose(1, 2), out=products.flatten(1, 2))
