"""Splits of few classes or images: which episodes they allow, and which classes are better left out of them.

A class of two images is rather left out than made the measure of all others.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

from torch import Tensor

from nearshot.episode_shape import ImagesByClass
from nearshot.errors import InputError
from nearshot.text import counted, format_list

__all__ = ["EVALUATION", "EpisodesThatFit", "check_classes", "episodes_that_fit", "leaving_out_tiny"]

# The settings of a measurement that may give way.
EVALUATION = ("n_way", "shots", "n_query", "least_images")
FEW = 5  # one class in so many may be left out, where it is far smaller than the others
SHARING_OUT = (
    "nearshot data prepare FOLDER --fractions TRAIN VAL TEST, such as 0.5 0.25 0.25, or lists of classes with "
    "--train-classes, --val-classes and --test-classes"
)


class EpisodesThatFit(NamedTuple):
    """Ways, shots and queries that a split has the classes and images for, and what is said about the change.

    Classes of fewer than `least_images` images do not take part.
    """

    n_way: int
    shots: tuple[int, ...]
    n_query: int
    least_images: int
    said: list[str]


def episodes_that_fit(
    labels: Tensor,
    split: str,
    *,
    n_way: int,
    shots: Sequence[int],
    n_query: int,
    least_images: int = 1,
    free: Collection[str] = EVALUATION,
    leave_out: bool = False,
    class_names: Sequence[str] | None = None,
) -> EpisodesThatFit:
    r"""Lower what is free of ways, shots and queries to what a split allows; the rest stays, to be refused elsewhere.

    A few classes that are far smaller than the others lower nothing: they are left out, by name, and so are classes of
    a single image.

    Args:
        labels: (image,) of the split.
        split: what to call it.
        n_way: classes in an episode.
        shots: the numbers of shots.
        n_query: queries of each class.
        least_images: classes of fewer images do not take part.
        free: which of "n_way", "shots" and "n_query" may be lowered, and whether "least_images" may be raised.
        leave_out: whether classes that are too small do not take part, however many they are and without a word.
        class_names: names for the labels 0, 1, …

    >>> import torch
    >>> small = episodes_that_fit(torch.arange(2).repeat_interleave(12), "test", n_way=5, shots=(1, 5), n_query=15)
    >>> small.n_way, small.shots, small.n_query
    (2, (1, 5), 7)
    >>> print(*small.said, sep="\n")
    5-way episodes need 5 classes; the test split has 2: 2-way.
    5 shots and 15 queries need 20 images of a class; the test split has classes of 12: 7 queries.
    """
    said: list[str] = []
    by_class = ImagesByClass(labels, class_names)
    shots, ways_needed = tuple(shots), 2 if "n_way" in free else n_way
    if "least_images" in free and not leave_out:
        wanted = max(shots, default=1) + n_query
        least_images, said = leaving_out_tiny(by_class, split, least_images, wanted=wanted, n_needed=ways_needed)
    sizes = sorted((size for size in by_class.sizes.tolist() if size >= least_images), reverse=True)

    def smallest_of(ways: int) -> int:
        """Return how many images the smallest class has that takes part; none where the ways are too many."""
        taking_part = sizes[:ways] if leave_out else sizes
        return min(taking_part, default=0) if len(sizes) >= ways else 0

    room = smallest_of(ways_needed)
    if "shots" in free and 2 <= room <= max(shots, default=0):
        kept = tuple(n_shot for n_shot in shots if n_shot < room) or (room - 1,)
        too_many = [n_shot for n_shot in shots if n_shot >= room]
        said.append(
            f"{_and(too_many)}-shot episodes need {min(too_many) + 1} images of a class; the {split} split has classes "
            f"of {room}: {_and(kept)}-shot."
        )
        shots = kept
    most = max(shots, default=1)
    enough = sum(size > most for size in sizes) if leave_out else len(sizes)
    if "n_way" in free and 2 <= enough < n_way:
        of_size = ""
        if enough < len(by_class.sizes):
            of_size = f" of more than {counted(most, 'image')}" if leave_out else " left"
        said.append(
            f"{n_way}-way episodes need {n_way} classes; the {split} split has {enough}{of_size}: {enough}-way."
        )
        n_way = enough
    smallest = smallest_of(n_way)
    left = smallest - most
    if "n_query" in free and 1 <= left < n_query:
        said.append(
            f"{counted(most, 'shot')} and {n_query} queries need {most + n_query} images of a class; the "
            f"{split} split has classes of {smallest}: {counted(left, 'query', 'queries')}."
        )
        n_query = left
    return EpisodesThatFit(n_way, shots, n_query, least_images, said)


def check_classes(splits: Mapping[str, Tensor]) -> None:
    """Refuse splits of which nothing can be learnt or measured, all of them in one message.

    A training takes two classes; episodes, as of validation or of a test, two classes of two images or more.

    Args:
        splits: the labels (image,) of each split, by what to call it; "training" is the one that is learnt from.
    """
    wrong = []
    for split, labels in splits.items():
        least = 1 if split == "training" else 2
        n_usable = int((ImagesByClass(labels).sizes >= least).sum())
        if n_usable < 2:
            of_size = "" if least == 1 else " of two images or more"
            takes = "to tell classes apart takes 2" if least == 1 else "an episode needs 2"
            wrong.append(f"the {split} split has {counted(n_usable, 'class', 'classes')}{of_size}, and {takes}")
    if wrong:
        said = "; ".join(wrong)
        without = " Without a validation split the last epoch is kept." if "validation" in splits else ""
        raise InputError(
            f"{said[0].upper()}{said[1:]}. Add classes or images, or share classes out in another way: {SHARING_OUT}."
            f"{without}"
        )


def leaving_out_tiny(
    by_class: ImagesByClass, split: str, least_images: int, *, wanted: int, n_needed: int
) -> tuple[int, list[str]]:
    """Return how many images a class must have so that a few tiny ones are left out, and the sentence that names them.

    A few are a fifth of the classes at most, as long as enough are left. Tiny are those that have half of the images
    that an episode can have of each of the others, or fewer. Classes of a single image, of which there is no episode,
    are left out however many they are.

    Args:
        by_class: the classes.
        split: what to call them together.
        least_images: how many images a class must have in any case.
        wanted: how many images of a class an episode is to have.
        n_needed: how many classes it takes.
    """
    sizes = {place: size for place, size in enumerate(by_class.sizes.tolist()) if size >= least_images}
    usable = sorted(size for size in sizes.values() if size > 1)
    few = max(0, min(len(usable) // FEW, len(usable) - n_needed))
    of_others = min([wanted, *usable[few:]])
    tiny = {place: size for place, size in sizes.items() if 2 * size <= of_others}
    if not tiny:
        return least_images, []
    named = format_list(tiny, lambda place: f"{by_class.name(place)!r} ({counted(tiny[place], 'image')})")
    largest = max(tiny.values())
    which = "Far smaller than the other classes of" if largest > 1 else "Classes of a single image in"
    return largest + 1, [f"{which} the {split} split, and so left out of episodes: {named}."]


def _and(numbers: Sequence[int]) -> str:
    return " and ".join(map(str, numbers))
