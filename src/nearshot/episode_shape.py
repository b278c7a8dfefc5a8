"""The shape of an episode, and the images of a dataset by class, from which episodes are drawn."""

import copy
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor

from nearshot.checks import is_integer
from nearshot.errors import InputError
from nearshot.text import counted

__all__ = ["EpisodeShape", "ImagesByClass"]


@dataclass(frozen=True)
class EpisodeShape:
    """An episode: w = `n_way` classes, each with n = `n_shot` support and m = `n_query` queries.

    The images of an episode are laid out class by class inside support, then query: first way ×
    shot support images, then way × query query images (Section 2.1).

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
            if not is_integer(value) or value < smallest:
                raise InputError(
                    f"{name} must be an integer of at least {smallest} (got {value!r})."
                )

    @classmethod
    def from_batch(cls, batch_size: int, n_shot: int, images_per_class: int) -> Self:
        """Return the shape of a batch of b images, m+n a class: w = b / (m+n) (Section 3.2)."""
        if n_shot >= images_per_class:
            raise InputError(
                f"images_per_class must be larger than n_shot, to leave a query (got "
                f"{images_per_class} and {n_shot}). Raise images_per_class, or lower n_shot."
            )
        nearest = max(2, round(batch_size / images_per_class)) * images_per_class
        if batch_size % images_per_class or batch_size < nearest:
            raise InputError(
                f"batch_size must divide into two or more classes of {images_per_class} images "
                f"(got {batch_size}). Use batch_size {nearest}."
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
        """Split a batch into support, the first way · shot rows, and query, the rest."""
        if len(batch) != self.batch_size:
            raise InputError(
                f"A {self.n_way}-way {self.n_shot}-shot episode with {self.n_query} queries a "
                f"class has {self.batch_size} images (got {len(batch)})."
            )
        return batch[: self.n_support], batch[self.n_support :]


class ImagesByClass:
    """The images of a dataset, grouped by class.

    `labels` (image,) are integers; `class_names` are the names of 0, 1, …, for messages.

    Attributes:
        classes: (class,) the labels that occur, in increasing order.
        sizes: (class,) how many images each class has.
        starts: (class,) the index of each class's first image in `images`.
        images: (image,) the indices of the images, class after class.
    """

    def __init__(self, labels: Tensor, class_names: Sequence[str] | None = None) -> None:
        labels = torch.as_tensor(labels)
        if labels.ndim != 1 or labels.is_floating_point():
            raise InputError(
                "labels must be integers of shape (image,) (got "
                f"{labels.dtype} {tuple(labels.shape)})."
            )
        labels = labels.cpu().long()
        self.classes, self.sizes = labels.unique(return_counts=True)
        self.starts = self.sizes.cumsum(0) - self.sizes
        self.images = labels.argsort(stable=True)
        self._names = dict(enumerate(class_names or ()))
        self._least_images = 1

    def without_small_classes(self, n_images: int) -> "ImagesByClass":
        """Return the same without classes of fewer than `n_images` images."""
        is_large = self.sizes >= n_images
        rest = copy.copy(self)
        rest.classes = self.classes[is_large]
        rest.sizes = self.sizes[is_large]
        rest.starts = self.starts[is_large]
        rest._least_images = max(self._least_images, n_images)
        return rest

    def name(self, index: int) -> str | int:
        """Return the name of the class at an index of `classes`, or else its label."""
        label = int(self.classes[index])
        return self._names.get(label, label)

    @property
    def digest(self) -> str:
        """A hash of the images' classes."""
        content = hashlib.sha256()
        for part in (self.images, self.classes, self.sizes):
            content.update(part.numpy().astype("<i8").tobytes())
        return content.hexdigest()

    def check(self, shape: EpisodeShape) -> None:
        """Refuse a shape for which there are too few classes, or too few images of a class."""
        if len(self.classes) < shape.n_way:
            available = counted(len(self.classes), "class", "classes")
            if self._least_images > 1:
                available += f" of {self._least_images} images or more"
            raise InputError(
                f"Found {available}; episodes need {shape.n_way}. Lower n_way, or add classes."
            )
        too_small = (self.sizes < shape.images_per_class).nonzero()[:, 0]
        if len(too_small) == 0:
            return
        first = int(too_small[0])
        size = counted(int(self.sizes[first]), "image")
        queries = counted(shape.n_query, "query", "queries")
        needed = shape.images_per_class
        n_too_small = counted(len(too_small), "class is", "classes are")
        raise InputError(
            f"Class {self.name(first)!r} has {size}; {shape.n_shot}-shot with {queries} needs "
            f"{needed}. {n_too_small} too small. Lower n_query, add images, or skip small classes: "
            f"least_images {needed}."
        )
