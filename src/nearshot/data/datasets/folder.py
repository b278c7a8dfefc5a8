"""Any folder of images: one folder per class, or a table of files and labels."""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import accumulate, islice
from pathlib import PurePosixPath

from nearshot.data.datasets import source
from nearshot.data.datasets.source import SPLITS, Plan, SourceImage
from nearshot.data.readers import Files
from nearshot.errors import FileFormatError, InputError
from nearshot.text import counted, format_list

DEFAULT_FRACTIONS = {"train": 0.64, "val": 0.16, "test": 0.2}
PURPOSES = {
    "train": "for training",
    "val": "to choose the best epoch",
    "test": "to measure the accuracy on new classes",
}


def plan_folder(
    files: Files,
    *,
    table: str | None = None,
    classes: Mapping[str, Sequence[str]] | None = None,
    fractions: Mapping[str, float] | None = None,
    seed: int = 0,
) -> Plan:
    """Find the images of a folder or archive, and split its classes.

    Folders named train, val and test with one folder per class inside are the splits. Otherwise
    classes are split by the given lists, or by fractions. The random order of the classes is a hash
    of the seed and their names: it is the same on every machine, and a new class moves few others.

    Args:
        files: the folder or archive.
        table: the name of a CSV file in it with the columns file (or filename) and label.
        classes: the classes of each split; a class in no list is skipped.
        fractions: the fraction of the classes in each split; by default 64 %, 16 % and 20 %.
        seed: the seed of the random split.
    """
    if classes is not None and fractions is not None:
        raise InputError(
            "Classes are split by lists or by fractions; give either classes or fractions."
        )
    remarks: list[str] = []
    if table is not None:
        groups = _from_table(files, table)
        layout = f"table {table}"
    else:
        groups = source.images_by_folder(files)
        layout = "one folder per class"
        empty = files.folders_without_images()
        if empty:
            n_empty = counted(len(empty), "folder")
            remarks.append(
                f"Skipped {n_empty} without images in {files.label}: {format_list(empty)}."
            )
        by_split = _by_split_folders(files)
        if by_split is not None and classes is None and fractions is None:
            layout = "train, val and test folders with one folder per class"
            return Plan(layout, by_split, tuple(remarks))
    if len(groups) < 2:
        raise FileFormatError(
            f"{files.label} has images of {counted(len(groups), 'class', 'classes')}, and needs "
            "two or more; put those of each class into a folder of its own."
        )
    if classes is None:
        drawn = split_at_random(sorted(groups), fractions, seed)
        classes = {split: names for split, names in drawn.items() if names}
        layout += f", classes split at random (seed {seed})"
        remarks += _missing_splits(files, len(groups), drawn, fractions or DEFAULT_FRACTIONS)
    for name in groups:
        if sum(name in names for names in classes.values()) > 1:
            raise InputError(
                f"Class {name!r} is in more than one split; few-shot splits must not share classes."
            )
    return Plan(layout, source.split_images(groups, classes, files, "the splits"), tuple(remarks))


def _missing_splits(
    files: Files,
    n_classes: int,
    splits: Mapping[str, Sequence[str]],
    fractions: Mapping[str, float],
) -> list[str]:
    """Return a remark if there are too few classes for all splits that should have some."""
    consequences = []
    for split, fraction in fractions.items():
        if fraction > 0 and not splits[split]:
            consequences.append(f"there is no {split!r} split {PURPOSES.get(split, '')}")
    if not consequences:
        return []
    return [
        f"{files.label} has too few classes, {counted(n_classes, 'class', 'classes')}: "
        f"{'; '.join(consequences)}. Add classes, or split them by fractions or by lists of "
        "classes."
    ]


def split_at_random(
    names: Sequence[str], fractions: Mapping[str, float] | None, seed: int
) -> dict[str, list[str]]:
    """Split classes by fractions that add up to 1, or by the default ones.

    The random order is a hash of the seed and the names.

    >>> split_at_random(["ant", "bee", "cat", "dog", "elk"], {"train": 0.6, "test": 0.4}, seed=0)
    {'train': ['ant', 'dog', 'elk'], 'test': ['bee', 'cat']}
    """
    shares = DEFAULT_FRACTIONS if fractions is None else fractions
    if not (all(share >= 0 for share in shares.values()) and abs(sum(shares.values()) - 1) <= 1e-6):
        raise InputError(f"fractions must be positive and add up to 1, not {dict(shares)}.")
    stops = [round(total * len(names)) for total in accumulate(shares.values())]
    starts = [0, *stops[:-1]]
    sizes = {}
    for split, start, stop in zip(shares, starts, stops, strict=True):
        sizes[split] = stop - start
    if fractions is None:
        # A single class has no episodes: take classes from training, or drop the split.
        val = max(sizes["val"], 2) if len(names) >= 6 else 0
        test = max(sizes["test"], 2) if len(names) >= 4 else 0
        sizes = {"train": len(names) - val - test, "val": val, "test": test}
    order = iter(sorted(names, key=lambda name: hashlib.sha256(f"{seed} {name}".encode()).digest()))
    return {split: sorted(islice(order, size)) for split, size in sizes.items()}


def _by_split_folders(files: Files) -> dict[str, list[SourceImage]] | None:
    """Return the images of <split>/<class>/<image>, if all are laid out so."""
    groups = source.images_by_folder(files, depth=2)
    splits: dict[str, list[SourceImage]] = {}
    for folder in sorted(groups):
        split, name = folder.split("/")
        if split not in SPLITS:
            return None
        images = [replace(image, class_name=name) for image in groups[folder]]
        splits.setdefault(split, []).extend(images)
    return splits if len(splits) > 1 else None


def _from_table(files: Files, table: str) -> dict[str, list[SourceImage]]:
    if table not in files.members:
        raise InputError(f"{files.label} has no table {table!r}.")

    def path_of(file: str) -> str | None:
        beside = str(PurePosixPath(table).parent / file)
        if beside in files.members:
            return beside
        return file if file in files.members else None

    rows = source.read_table(files, table, path_of)
    return source.by_class([source.source_image(files, row.path, row.label) for row in rows])
