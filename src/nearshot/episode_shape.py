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
    """An episodic batch of w = `n_way` classes, n = `n_shot` support and m = `n_query` query images of each.

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
                    f"{name} must be a whole number of at least {smallest}, not {value!r}."
                )

    @classmethod
    def from_batch(cls, batch_size: int, n_shot: int, images_per_class: int) -> Self:
        """Return the shape by batch size b, shots n and images per class m+n, as in Section 3.2: w = b / (m+n)."""
        if n_shot >= images_per_class:
            raise InputError(
                f"{images_per_class} images per class leave no query beside {n_shot} shots. "
                "Raise images_per_class, or lower n_shot."
            )
        nearest = max(2, round(batch_size / images_per_class)) * images_per_class
        if batch_size % images_per_class or batch_size < nearest:
            raise InputError(
                f"A batch of {batch_size} does not divide into two or more classes of {images_per_class} images. "
                f"Use a batch of {nearest}."
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


class ImagesByClass:
    """The images of a dataset, grouped by class.

    `labels` (image,) are whole numbers; `class_names` are the names of 0, 1, …, for messages.

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
                f"labels must be whole numbers, one per image, not {labels.dtype} {tuple(labels.shape)}."
            )
        labels = labels.cpu().long()
        self.classes, self.sizes = labels.unique(return_counts=True)
        self.starts = self.sizes.cumsum(0) - self.sizes
        self.images = labels.argsort(stable=True)
        self._names, self._least = class_names, 1

    def without_small_classes(self, n_images: int) -> "ImagesByClass":
        """Return the same without classes of fewer than `n_images` images."""
        large = self.sizes >= n_images
        rest = copy.copy(self)
        rest.classes, rest.sizes, rest.starts = (
            self.classes[large],
            self.sizes[large],
            self.starts[large],
        )
        rest._least = max(self._least, n_images)
        return rest

    def name(self, place: int) -> str | int:
        """Return the name of the class at an index of `classes`, or else its label."""
        label = int(self.classes[place])
        return dict(enumerate(self._names or ())).get(label, label)

    @property
    def digest(self) -> str:
        """A hash of the images' classes."""
        content = (self.images, self.classes, self.sizes)
        return hashlib.sha256(
            b"".join(part.numpy().astype("<i8").tobytes() for part in content)
        ).hexdigest()

    def check(self, shape: EpisodeShape) -> None:
        """Refuse a shape for which there are too few classes, or too few images of a class."""
        if len(self.classes) < shape.n_way:
            found = counted(len(self.classes), "class", "classes")
            found += f" of {self._least} images or more" if self._least > 1 else ""
            raise InputError(
                f"Found {found}; episodes need {shape.n_way}. Lower n_way, or add classes."
            )
        too_small = (self.sizes < shape.images_per_class).nonzero()[:, 0]
        if len(too_small):
            name, size, needed = (
                self.name(int(too_small[0])),
                int(self.sizes[too_small[0]]),
                shape.images_per_class,
            )
            others = counted(len(too_small), "class is", "classes are")
            raise InputError(
                f"Class {name!r} has {counted(size, 'image')}; {shape.n_shot}-shot with "
                f"{counted(shape.n_query, 'query', 'queries')} needs {needed}. {others} too small. Lower n_query, add "
                f"images, or skip small classes: least_images {needed}."
            )
