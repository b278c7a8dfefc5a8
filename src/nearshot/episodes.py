"""The shape of an episode: ways, shots and queries."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from nearshot.errors import InputError

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["EpisodeShape"]


@dataclass(frozen=True)
class EpisodeShape:
    """An episodic batch of w = `n_way` classes, n = `n_shot` support and m = `n_query` query images of each.

    The images of an episode are laid out class by class inside support, then query: first way × shot support
    images, then way × query query images (Section 2.1).

    >>> shape = EpisodeShape(n_way=20, n_shot=5, n_query=15)  # Snell et al.'s training episodes
    >>> shape.batch_size, shape.images_per_class
    (400, 20)
    >>> EpisodeShape.from_batch(512, n_shot=5, images_per_class=16)
    EpisodeShape(n_way=32, n_shot=5, n_query=11)
    """

    n_way: int
    n_shot: int
    n_query: int

    def __post_init__(self) -> None:
        for name, smallest in (("n_way", 2), ("n_shot", 1), ("n_query", 1)):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int):
                raise InputError(f"{name} must be a whole number, not {value!r}.")
            if value < smallest:
                raise InputError(f"{name} must be at least {smallest}, not {value}.")

    @classmethod
    def from_batch(cls, batch_size: int, n_shot: int, images_per_class: int) -> EpisodeShape:
        """Return the shape by batch size b, shots n and images per class m+n, as in Section 3.2: w = b / (m+n)."""
        if n_shot >= images_per_class:
            raise InputError(
                f"{images_per_class} images per class leave no query beside {n_shot} shots. "
                "Raise images_per_class, or lower n_shot."
            )
        if batch_size % images_per_class:
            below = batch_size - batch_size % images_per_class
            raise InputError(
                f"A batch of {batch_size} does not divide into classes of {images_per_class} images. "
                f"Use a batch of {below or images_per_class} or {below + images_per_class}."
            )
        return cls(batch_size // images_per_class, n_shot, images_per_class - n_shot)

    @property
    def images_per_class(self) -> int:
        """Support and query images of one class, m+n."""
        return self.n_shot + self.n_query

    @property
    def n_support(self) -> int:
        """Support images in the episode, w·n."""
        return self.n_way * self.n_shot

    @property
    def batch_size(self) -> int:
        """Images in the episode, w·(m+n)."""
        return self.n_way * self.images_per_class

    def split(self, batch: Tensor) -> tuple[Tensor, Tensor]:
        """Split a batch along its first dimension into support (way·shot first rows) and query (the rest)."""
        if len(batch) != self.batch_size:
            raise InputError(
                f"A {self.n_way}-way {self.n_shot}-shot episode with {self.n_query} queries a class has "
                f"{self.batch_size} images, not {len(batch)}."
            )
        return batch[: self.n_support], batch[self.n_support :]
