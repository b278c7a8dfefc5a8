"""Settings that give way to the data: smaller batches and smaller episodes where a dataset has few images or classes.

What somebody has asked for is never changed. What nobody has, may be: a folder of a hundred pictures has no batch of
512, and two validation classes make no 5-way episodes. Every change is a sentence.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from torch import Tensor

from nearshot.data import Store
from nearshot.episodes import ImagesByClass
from nearshot.errors import InputError
from nearshot.telling import counted
from nearshot.training.config import TrainConfig
from nearshot.training.methods import resolve_method

__all__ = ["EVALUATION", "TRAINING", "EpisodesThatFit", "check_classes", "episodes_that_fit", "fitted"]

# The settings that may give way, of a training and of a measurement.
TRAINING = (
    "batch_size",
    "images_per_class",
    "n_shot",
    "validation_way",
    "validation_shots",
    "validation_queries",
)
EVALUATION = ("n_way", "shots", "n_query")
_OF_VALIDATION = {"validation_way": "n_way", "validation_shots": "shots", "validation_queries": "n_query"}
SHARING_OUT = (
    "nearshot data prepare FOLDER --fractions TRAIN VAL TEST, such as 0.5 0.25 0.25, or lists of classes with "
    "--train-classes, --val-classes and --test-classes"
)


def fitted(
    config: TrainConfig, stores: Mapping[str, Store], free: Collection[str], *, n_ranks: int = 1
) -> tuple[TrainConfig, list[str]]:
    """Return the settings with those that are free made to fit the data, and a sentence for each change.

    Args:
        config: the settings.
        stores: the training split, and the validation split if there is one.
        free: the names of the settings that may change, of those in `TRAINING`.
        n_ranks: among how many devices a batch is shared.
    """
    if not free:
        return config, []
    _check_classes(stores)
    config, about_batches = _with_batches(config, stores["train"], free, n_ranks)
    if "val" not in stores:
        return config, about_batches
    small = episodes_that_fit(
        stores["val"].labels,
        "validation",
        n_way=config.validation_way,
        shots=config.validation_shots,
        n_query=config.validation_queries,
        free={name for setting, name in _OF_VALIDATION.items() if setting in free},
        leave_out=True,
    )
    config = replace(config, validation_way=small.n_way, validation_shots=small.shots, validation_queries=small.n_query)
    return config, [*about_batches, *small.said]


class EpisodesThatFit(NamedTuple):
    """Ways, shots and queries that a split has the classes and images for, and what is said about the change."""

    n_way: int
    shots: tuple[int, ...]
    n_query: int
    said: list[str]


def episodes_that_fit(
    labels: Tensor,
    split: str,
    *,
    n_way: int,
    shots: Sequence[int],
    n_query: int,
    free: Collection[str] = EVALUATION,
    leave_out: bool = False,
) -> EpisodesThatFit:
    r"""Lower what is free of ways, shots and queries to what a split allows; the rest stays, to be refused elsewhere.

    Args:
        labels: (image,) of the split.
        split: what to call it.
        n_way: classes in an episode.
        shots: the numbers of shots.
        n_query: queries of each class.
        free: which of "n_way", "shots" and "n_query" may be lowered.
        leave_out: whether classes that are too small do not take part; else all of them do.

    >>> import torch
    >>> small = episodes_that_fit(torch.arange(2).repeat_interleave(12), "test", n_way=5, shots=(1, 5), n_query=15)
    >>> small.n_way, small.shots, small.n_query
    (2, (1, 5), 7)
    >>> print(*small.said, sep="\n")
    5-way episodes need 5 classes; the test split has 2: 2-way.
    5 shots and 15 queries need 20 images of a class; the test split has classes of 12: 7 queries.
    """
    sizes = sorted(ImagesByClass(labels).sizes.tolist(), reverse=True)
    shots, said = tuple(shots), []
    ways_needed = 2 if "n_way" in free else n_way
    room = (sizes[ways_needed - 1] if len(sizes) >= ways_needed else 0) if leave_out else sizes[-1]
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
        of_size = "" if enough == len(sizes) else f" of more than {most} images"
        said.append(
            f"{n_way}-way episodes need {n_way} classes; the {split} split has {enough}{of_size}: {enough}-way."
        )
        n_way = enough
    smallest = (sizes[n_way - 1] if len(sizes) >= n_way else 0) if leave_out else sizes[-1]
    left = smallest - most
    if "n_query" in free and 1 <= left < n_query:
        said.append(
            f"{counted(most, 'shot')} and {n_query} queries need {most + n_query} images of a class; the "
            f"{split} split has classes of {smallest}: {counted(left, 'query', 'queries')}."
        )
        n_query = left
    return EpisodesThatFit(n_way, shots, n_query, said)


def check_classes(labels: Tensor, split: str) -> None:
    """Refuse a split that has no episode of any shape: two classes, and two images of every class."""
    by_class = ImagesByClass(labels)
    if len(by_class.classes) < 2:
        raise InputError(
            f"The {split} split has {len(by_class.classes)} class, and an episode needs 2. Add classes, or share them "
            f"out in another way: {SHARING_OUT}."
        )


def _with_batches(
    config: TrainConfig, store: Store, free: Collection[str], n_ranks: int
) -> tuple[TrainConfig, list[str]]:
    if (config.batches or resolve_method(config).batches) == "episodes":
        return _with_episodes(config, store, free, n_ranks)
    size, n_images = config.batch_size, len(store)
    if "batch_size" not in free or size <= n_images:
        return config, []
    fits = n_images - n_images % n_ranks
    said = f"A batch of {size} different images needs that many; the training split has {n_images}: batches of {fits}."
    return replace(config, batch_size=fits), [said]


def _with_episodes(
    config: TrainConfig, store: Store, free: Collection[str], n_ranks: int
) -> tuple[TrainConfig, list[str]]:
    """Make training episodes of fewer classes and fewer images of each; ways and queries that were given stay."""
    if config.n_way is not None:
        return config, []
    sizes = ImagesByClass(store.labels).sizes
    n_classes, smallest, before = len(sizes), int(sizes.min()), config.shape
    per_class, n_shot, batch_size = config.images_per_class, config.n_shot, config.batch_size
    if "images_per_class" in free and 2 <= smallest < per_class:
        per_class = smallest
    if "n_shot" in free and n_shot >= per_class:
        n_shot = max(1, per_class // 2)
    if "batch_size" in free:
        ways = min(batch_size // per_class, n_classes)
        while ways > 2 and ways * per_class % n_ranks:
            ways -= 1
        batch_size = ways * per_class
    if (batch_size, n_shot, per_class) == (config.batch_size, config.n_shot, config.images_per_class):
        return config, []
    config = replace(config, batch_size=batch_size, n_shot=n_shot, images_per_class=per_class)
    said = (
        f"Episodes of {before.n_way} classes × {before.images_per_class} images are too large; the training split has "
        f"{n_classes} classes of {smallest} images or more: episodes of {batch_size // per_class} × {per_class}, "
        f"{n_shot}-shot."
    )
    return config, [said]


def _check_classes(stores: Mapping[str, Store]) -> None:
    """Refuse what no batch and no episode can be made of, all of it in one message."""
    wrong = []
    n_classes = len(stores["train"].class_names)
    if n_classes < 2:
        wrong.append(f"the training split has {n_classes} class, and to tell classes apart takes 2")
    if "val" in stores:
        n_usable = int((ImagesByClass(stores["val"].labels).sizes >= 2).sum())
        if n_usable < 2:
            wrong.append(
                f"the validation split has {counted(n_usable, 'class', 'classes')} of two images or more, "
                "and an episode needs 2"
            )
    if wrong:
        said = "; ".join(wrong)
        raise InputError(
            f"{said[0].upper()}{said[1:]}. Add classes, or share them out in another way: {SHARING_OUT}. Without a "
            "validation split the last epoch is kept."
        )


def _and(numbers: Sequence[int]) -> str:
    return " and ".join(map(str, numbers))
