"""Episodes that fit a split: fewer ways, shots and queries where it has few classes or images."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from torch import Tensor

from nearshot.episode_shape import ImagesByClass
from nearshot.errors import InputError
from nearshot.text import counted, format_list

USUAL_WAYS = 5
USUAL_SHOTS = (1, 5)
USUAL_QUERIES = 15
TINY_CLASSES = 5  # at most one class in this many is skipped for being far smaller than the others
HOW_TO_SPLIT = (
    "nearshot data prepare FOLDER --fractions TRAIN VAL TEST, such as 0.5 0.25 0.25, or lists of "
    "classes with --train-classes, --val-classes and --test-classes"
)


@dataclass(frozen=True)
class FittedEpisodes:
    """Settings of episodes that a split allows, and a message for each that was changed."""

    n_way: int
    n_shot: tuple[int, ...]
    n_query: int
    least_images: int
    messages: tuple[str, ...]


def fit_episodes(
    by_class: ImagesByClass,
    split: str,
    *,
    n_way: int | None = None,
    n_shot: Sequence[int] | None = None,
    n_query: int | None = None,
    least_images: int | None = None,
) -> FittedEpisodes:
    """Return settings of episodes that a split allows.

    Settings that are given stay unchanged. The others have their usual values, or less.

    Args:
        by_class: the images of the split.
        split: its name, for messages.
        n_way: the classes of an episode; by default 5, or as many as there are.
        n_shot: the numbers of support images of each class, each for episodes of its own; by
            default 1 and 5, or fewer.
        n_query: the query images of each class; by default 15, or fewer.
        least_images: classes with fewer images are skipped; by default those of a single image, and
            a few that are far smaller than the others.

    >>> import torch
    >>> two_classes = ImagesByClass(torch.arange(2).repeat_interleave(12))
    >>> fitted = fit_episodes(two_classes, "test")
    >>> fitted.n_way, fitted.n_shot, fitted.n_query
    (2, (1, 5), 7)
    >>> print(*fitted.messages)
    The test split has 2 classes of 12 images or more: n_way 2 instead of 5, n_query 7 instead of
    15.
    """
    usual_shots = USUAL_SHOTS if n_shot is None else tuple(n_shot)
    usual_queries = USUAL_QUERIES if n_query is None else n_query
    messages = []
    if least_images is None:
        least_images, skipped = skip_tiny_classes(
            by_class,
            split,
            1,
            images_per_class=max(usual_shots) + usual_queries,
            n_needed=n_way or 2,
        )
        messages += skipped
    sizes = [size for size in by_class.sizes.tolist() if size >= least_images]
    n_classes = len(sizes)
    smallest = min(sizes, default=0)
    fitted_ways = n_way
    if fitted_ways is None:
        fitted_ways = min(USUAL_WAYS, n_classes) if n_classes >= 2 else USUAL_WAYS
    fitted_shots = usual_shots
    fitted_queries = usual_queries
    if n_classes >= fitted_ways:
        if n_shot is None:
            fitted_shots = fewer_shots(usual_shots, smallest)
        if n_query is None:
            fitted_queries = fewer_queries(usual_queries, smallest - max(fitted_shots))
    fact = classes_in_words(split, n_classes, smallest)
    changes = [
        ("n_way", n_way or USUAL_WAYS, fitted_ways),
        ("n_shot", usual_shots, fitted_shots),
        ("n_query", usual_queries, fitted_queries),
    ]
    messages += changes_in_words(fact, changes)
    return FittedEpisodes(fitted_ways, fitted_shots, fitted_queries, least_images, tuple(messages))


def fit_validation_episodes(
    by_class: ImagesByClass,
    *,
    n_way: int,
    n_shot: Sequence[int],
    n_query: int,
    auto: Collection[str],
) -> FittedEpisodes:
    """Lower the automatic settings of validation to what its split allows.

    Validation skips every class that is too small for its episodes, which need `n_way` larger ones.
    `auto` has names of arguments; in messages they begin with "validation_".
    """
    sizes = sorted(by_class.sizes.tolist(), reverse=True)
    n_largest = 2 if "n_way" in auto else n_way
    fitted_n_shot = tuple(n_shot)
    if "n_shot" in auto and len(sizes) >= n_largest:
        fitted_n_shot = fewer_shots(fitted_n_shot, sizes[n_largest - 1])
    n_usable = sum(size > max(fitted_n_shot) for size in sizes)
    fitted_n_way = n_way
    if "n_way" in auto and 2 <= n_usable < n_way:
        fitted_n_way = n_usable
    smallest = sizes[fitted_n_way - 1] if len(sizes) >= fitted_n_way else 0
    fitted_n_query = n_query
    if "n_query" in auto:
        fitted_n_query = fewer_queries(n_query, smallest - max(fitted_n_shot))
    n_classes = sum(size >= smallest for size in sizes)
    fact = classes_in_words("validation", n_classes, smallest)
    changes = [
        ("validation_n_way", n_way, fitted_n_way),
        ("validation_n_shot", tuple(n_shot), fitted_n_shot),
        ("validation_n_query", n_query, fitted_n_query),
    ]
    messages = changes_in_words(fact, changes)
    least_images = max(fitted_n_shot) + fitted_n_query
    return FittedEpisodes(
        fitted_n_way, fitted_n_shot, fitted_n_query, least_images, tuple(messages)
    )


def fewer_shots(n_shot: tuple[int, ...], smallest_class: int) -> tuple[int, ...]:
    """Return the numbers of shots that leave a query in the smallest class, or else the most.

    >>> fewer_shots((1, 5), 4), fewer_shots((5, 10), 4), fewer_shots((1, 5), 1)
    ((1,), (3,), (1, 5))
    """
    if smallest_class < 2 or smallest_class > max(n_shot):
        return n_shot
    fitting = tuple(number for number in n_shot if number < smallest_class)
    return fitting or (smallest_class - 1,)


def fewer_queries(n_query: int, n_available: int) -> int:
    """Return as many queries as are available, at most `n_query`; unchanged if there are none."""
    return min(n_query, n_available) if n_available >= 1 else n_query


def check_split(split: str, labels: Tensor) -> None:
    """Refuse a split without two classes; except for training, each of two images or more."""
    least = 1 if split == "training" else 2
    n_usable = int((ImagesByClass(labels).sizes >= least).sum())
    if n_usable >= 2:
        return
    message = (
        f"The {split} split needs 2 classes of {counted(least, 'image')} or more, and has "
        f"{n_usable}. Add classes or images, or split the classes differently: {HOW_TO_SPLIT}."
    )
    if split == "validation":
        message += " Without a validation split, the last epoch is kept."
    raise InputError(message)


def skip_tiny_classes(
    by_class: ImagesByClass, split: str, least_images: int, *, images_per_class: int, n_needed: int
) -> tuple[int, list[str]]:
    """Return the least size of a class that skips a few tiny ones, and a message that names them.

    A few are a fifth of the classes at most, as long as `n_needed` remain. Tiny classes have at
    most half of the images that an episode, which should have `images_per_class`, can have of each
    other class; a single image is always tiny.
    """
    all_sizes = enumerate(by_class.sizes.tolist())
    sizes = {index: size for index, size in all_sizes if size >= least_images}
    usable = sorted(size for size in sizes.values() if size > 1)
    n_few = max(0, min(len(usable) // TINY_CLASSES, len(usable) - n_needed))
    n_of_others = min([images_per_class, *usable[n_few:]])
    tiny = {index: size for index, size in sizes.items() if 2 * size <= n_of_others}
    if not tiny:
        return least_images, []
    named = [f"{by_class.name(index)!r} ({counted(size, 'image')})" for index, size in tiny.items()]
    message = f"Episodes skip the smallest classes of the {split} split: {format_list(named, str)}."
    return max(tiny.values()) + 1, [message]


def classes_in_words(split: str, n_classes: int, smallest: int) -> str:
    """Return the number of classes of a split, and the size of the smallest."""
    return (
        f"The {split} split has {counted(n_classes, 'class', 'classes')} of "
        f"{counted(smallest, 'image')} or more"
    )


def changes_in_words(fact: str, changes: Sequence[tuple[str, object, object]]) -> list[str]:
    """Return a message that explains changes (name, before, after) by a fact; none if no change."""
    words = []
    for name, before, after in changes:
        if after != before:
            words.append(f"{name} {after} instead of {before}")
    return [f"{fact}: {', '.join(words)}."] if words else []
