"""Groups of labelled images that show the same thing: found by their features, or given by name.

People photograph one bird five times, cut frames out of a film, or copy an image in two sizes. A
held-out image would then be compared with its own copies, and the expected accuracy would be far
too high. So the images of a group are held out together.

Two images of a class look alike if the cosine of their embeddings is at least the backbone's
`look_alike_cosine`. Images that are connected by a chain of such pairs are one group. A backbone
without that number groups identical images only.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Self

import numpy as np
import numpy.typing as npt
import torch
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components
from torch import Tensor

from nearshot.distances import squared_euclidean
from nearshot.text import counted, format_list

# The rounding difference between two embeddings of one image, relative to the feature's length.
SAME_IMAGE = 1e-5
PAIRS_AT_ONCE = 1 << 22  # cosines held at a time: 32 MiB of float64
# If more than half of the images of a class are one group, its images are chained together. A few
# images cannot tell chains from copies, so smaller classes than this are not counted.
LEAST_CHAINED = 5

Indices = npt.NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Groups:
    """Which labelled images belong together.

    The images of one group in one class are a part. Found groups have one part. A given group may
    span classes, and then has a part in each of them.

    Attributes:
        numbers: (image,) the number of each image's group, from 0 in the order of first images.
        codes: (image,) the class of each image.
        n_classes: the number of classes.
    """

    numbers: Tensor
    codes: Tensor
    n_classes: int

    @classmethod
    def singles(cls, codes: Tensor, n_classes: int) -> Self:
        """Return groups of one image each."""
        return cls(torch.arange(len(codes)), codes, n_classes)

    @cached_property
    def parts(self) -> Tensor:
        """The number of each image's part, (image,); parts are in the order of the classes."""
        keys = self.codes * (len(self.codes) + 1) + self.numbers
        parts: Tensor = keys.unique(return_inverse=True)[1]
        return parts

    @cached_property
    def part_sizes(self) -> Tensor:
        """The number of images of each part, (part,)."""
        return torch.bincount(self.parts)

    @cached_property
    def class_of_part(self) -> Tensor:
        """The class of each part, (part,)."""
        return torch.empty_like(self.part_sizes).scatter_(0, self.parts, self.codes)

    @cached_property
    def group_of_part(self) -> Tensor:
        """The number of each part's group, (part,)."""
        return torch.empty_like(self.part_sizes).scatter_(0, self.parts, self.numbers)

    @cached_property
    def counts(self) -> Tensor:
        """The number of groups that each class has a part of, (class,)."""
        return torch.bincount(self.class_of_part, minlength=self.n_classes)

    def votes(self, images: Tensor) -> Tensor:
        """Return how much each of some images counts, (image,): they share the vote of a part."""
        parts = self.parts[images]
        return 1 / torch.bincount(parts)[parts].double()

    @property
    def look_alike_classes(self) -> Tensor:
        """The classes of several images that are one group, (class,)."""
        n_images = torch.bincount(self.codes, minlength=self.n_classes)
        is_one_group = (self.counts == 1) & (n_images > 1)
        return is_one_group.nonzero()[:, 0]

    def notes(self, classes: Sequence[Any]) -> tuple[str, ...]:
        """Return what people should know about images that look alike, given the classes' names."""
        look_alike_classes = [classes[code] for code in self.look_alike_classes.tolist()]
        return notes_on_copies(self.n_copies, len(self.codes), look_alike_classes)

    @property
    def are_single(self) -> bool:
        """Whether no image belongs to another."""
        return len(self.codes) == 0 or int(self.numbers.max()) == len(self.codes) - 1

    @property
    def n_copies(self) -> int:
        """How many images look like another one of their class that counts."""
        return len(self.codes) - len(self.part_sizes)


def notes_on_copies(
    n_copies: int, n_images: int, look_alike_classes: Sequence[Any]
) -> tuple[str, ...]:
    """Return what people should know about images that look alike.

    Args:
        n_copies: how many images look like another one that counts.
        n_images: the number of labelled images.
        look_alike_classes: the classes whose images are all one group.
    """
    notes = []
    if n_copies > 0:
        verb = "looks like a copy of another" if n_copies == 1 else "look like copies of others"
        counts = "counts" if n_copies == 1 else "count"
        notes.append(f"{n_copies:,} of {counted(n_images, 'photo')} {verb} and {counts} once")
    if look_alike_classes:
        notes.append(f"all photos of {format_list(look_alike_classes)} look alike; add others")
    return tuple(notes)


def find_groups(
    features: npt.NDArray[Any],
    codes: Indices,
    *,
    look_alike_cosine: float | None = None,
    names: Sequence[str | None] | None = None,
) -> tuple[Groups, bool]:
    """Return the groups of images, and whether none could be found since most images look alike.

    Then only equal features belong together, and what was given by name.

    Args:
        features: (image, dim) embeddings, as the backbone returns them.
        codes: (image,) the class of each image; every class has an image.
        look_alike_cosine: the cosine from which images of a class look alike; None if only equal
            features do.
        names: the name of the group that is given for each image, or None.
    """
    numbers = find_look_alikes(features, codes, look_alike_cosine)
    is_chained = look_alike_cosine is not None and are_chained(numbers, codes)
    if is_chained:
        numbers = find_look_alikes(features, codes)
    if names is not None:
        numbers = join_by_name(numbers, names)
    groups = Groups(
        torch.from_numpy(in_order(numbers)), torch.from_numpy(codes), int(codes.max()) + 1
    )
    return groups, is_chained


def find_look_alikes(
    features: npt.NDArray[Any], codes: Indices, look_alike_cosine: float | None = None
) -> Indices:
    """Return the number of each image's group, (image,), for features (image, dim) and classes.

    Groups lie within classes. Without `look_alike_cosine` only equal features belong together.
    """
    points = torch.from_numpy(np.array(features, dtype=np.float64))
    lengths = points.norm(dim=1)
    if look_alike_cosine is None:
        limits = (SAME_IMAGE * lengths).square()
    else:
        points = points / lengths.clamp(min=torch.finfo(points.dtype).tiny)[:, None]
        limits = torch.full_like(lengths, 2 - 2 * look_alike_cosine)  # as a squared distance
    numbers = np.arange(len(codes))
    order = np.argsort(codes, kind="stable")
    ends = np.flatnonzero(np.diff(codes[order])) + 1
    for images in np.split(order, ends):
        if len(images) > 1:
            numbers[images] = images[_connected(points[images], limits[images])]
    return numbers


def are_chained(numbers: Indices, codes: Indices) -> bool:
    """Return whether most images of most classes are one group.

    Then the backbone cannot tell images of a class apart, and the groups mean nothing.
    """
    n_large = 0
    n_chained = 0
    for code in np.unique(codes):
        of_class = numbers[codes == code]
        if len(of_class) < LEAST_CHAINED:
            continue
        n_large += 1
        largest = int(np.unique(of_class, return_counts=True)[1].max())
        n_chained += int(2 * largest > len(of_class))
    return 2 * n_chained > n_large


def join_by_name(numbers: Indices, names: Sequence[str | None]) -> Indices:
    """Return the groups after those with images of the same name, if they have one, are joined."""
    first_of_name: dict[str, int] = {}
    images = []
    others = []
    for image, name in enumerate(names):
        if name is not None:
            images.append(image)
            others.append(first_of_name.setdefault(name, image))
    return _joined(numbers, np.array(images, np.int64), np.array(others, np.int64))


def in_order(numbers: Indices) -> Indices:
    """Return groups numbered from 0 in the order of their first images."""
    _, firsts, inverse = np.unique(numbers, return_index=True, return_inverse=True)
    ranks = firsts.argsort().argsort()
    return np.asarray(ranks[inverse], dtype=np.int64)


def _connected(points: Tensor, limits: Tensor) -> Indices:
    """Return the component of each point, (point,): the index of one of its points.

    Points are connected if their squared distance is at most the limit, in blocks of pairs.
    """
    components = np.arange(len(points))
    for rows in torch.arange(len(points)).split(max(1, PAIRS_AT_ONCE // len(points))):
        is_near = squared_euclidean(points[rows], points) <= limits[rows, None]
        first, second = is_near.nonzero(as_tuple=True)
        components = _joined(components, rows[first].numpy(), second.numpy())
    return components


def _joined(numbers: Indices, first: Indices, second: Indices) -> Indices:
    """Return groups, (image,), after those of the first and second image of each pair are joined.

    A group has the number of one of its images, before and after.
    """
    n_images = len(numbers)
    pairs = (numbers[first], numbers[second])
    graph = coo_array((np.ones(len(first), bool), pairs), shape=(n_images, n_images))
    _, components = connected_components(graph, directed=False)
    firsts = np.unique(components, return_index=True)[1]
    return np.asarray(firsts[components[numbers]], dtype=np.int64)
