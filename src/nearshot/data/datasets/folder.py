"""Any folder of pictures: a folder for each class, or a table of files and labels."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import accumulate, islice
from pathlib import PurePosixPath

from nearshot.data.datasets.base import SPLITS, Plan, is_picture, picture_of, pictures_by_folder, read_table
from nearshot.data.readers import Files
from nearshot.data.writer import Picture
from nearshot.errors import FileFormatError, InputError
from nearshot.text import counted, format_list

__all__ = ["plan_folder"]

DEFAULT_FRACTIONS = {"train": 0.64, "val": 0.16, "test": 0.2}
# What cannot be done without a split.
WITHOUT = {
    "train": ", so that nothing can be trained on",
    "val": ", so that a training has nothing to find its best epoch with",
    "test": ", so that there is nothing to measure the accuracy on new classes with",
}


def plan_folder(
    files: Files,
    *,
    table: str | None = None,
    classes: Mapping[str, Sequence[str]] | None = None,
    fractions: Mapping[str, float] | None = None,
    seed: int = 0,
) -> Plan:
    """Find the pictures of a folder or archive, and split its classes.

    Folders named train, val and test with a folder for each class inside are taken as the splits. Otherwise classes are
    split by the given lists, or by fractions: each class draws a lot from its name and the seed, so that the same names
    give the same splits on any machine, and a class that is added moves few others.

    Args:
        files: the folder or archive.
        table: the name of a CSV file in it with the columns file (or filename) and label.
        classes: the classes of each split; classes that no split lists are left out.
        fractions: the share of the classes of each split; by default 64 %, 16 % and 20 %.
        seed: another seed gives other splits.
    """
    if classes is not None and fractions is not None:
        raise InputError("Classes are split by lists or by fractions; give one of the two.")
    if table is not None:
        groups = _from_table(files, table)
        layout = f"table {table}"
    else:
        by_split = _by_split_folders(files)
        if by_split is not None and classes is None and fractions is None:
            layout = "train, val and test folders with a folder for each class"
            return Plan(layout, by_split, _about_empty_folders(files))
        groups = pictures_by_folder(files)
        layout = "a folder for each class"
    if len(groups) < 2:
        raise FileFormatError(
            f"{files.label} has pictures of {counted(len(groups), 'class', 'classes')}; put those of each class into a "
            "folder of its own."
        )
    remarks = () if table is not None else _about_empty_folders(files)
    if classes is None:
        classes = split_by_lot(sorted(groups), fractions, seed)
        layout += f", classes split by lot (seed {seed})"
        remarks += _about_missing_splits(files, classes, len(groups), asked=fractions)
    for split, names in classes.items():
        missing = sorted(set(names) - set(groups))
        if missing:
            raise InputError(f"Split {split!r} asks for class {missing[0]!r}, of which {files.label} has no picture.")
    shared = [name for name in groups if sum(name in names for names in classes.values()) > 1]
    if shared:
        raise InputError(f"Class {shared[0]!r} is in more than one split; few-shot splits must not share classes.")
    return Plan(
        layout,
        {split: [p for name in sorted(set(names)) for p in groups[name]] for split, names in classes.items() if names},
        remarks,
    )


def split_by_lot(names: Sequence[str], fractions: Mapping[str, float] | None, seed: int) -> dict[str, list[str]]:
    """Share classes out by fractions that add up to 1, or in the usual way, reproducibly by their names.

    >>> split_by_lot(["ant", "bee", "cat", "dog", "elk"], {"train": 0.6, "test": 0.4}, seed=0)
    {'train': ['ant', 'dog', 'elk'], 'test': ['bee', 'cat']}
    """
    shares = DEFAULT_FRACTIONS if fractions is None else fractions
    if not (all(share >= 0 for share in shares.values()) and abs(sum(shares.values()) - 1) <= 1e-6):
        raise InputError(f"The fractions must be positive and add up to 1, not {dict(shares)}.")
    stops = [round(total * len(names)) for total in accumulate(shares.values())]
    sizes = {split: stop - start for split, start, stop in zip(shares, [0, *stops], stops, strict=False)}
    if fractions is None:
        sizes = _of_two_at_least(sizes)
    lots = iter(sorted(names, key=lambda name: hashlib.sha256(f"{seed} {name}".encode()).digest()))
    return {split: sorted(islice(lots, size)) for split, size in sizes.items()}


def _of_two_at_least(sizes: Mapping[str, int]) -> dict[str, int]:
    """Let no split have a single class, which makes no episode: training gives up some, or there is no such split.

    >>> [tuple(_of_two_at_least({"train": n - 1, "val": 0, "test": 1}).values()) for n in (3, 5, 6, 7)]
    [(3, 0, 0), (3, 0, 2), (2, 2, 2), (3, 2, 2)]
    """
    n_classes = sum(sizes.values())
    val = max(sizes["val"], 2) if n_classes >= 6 else 0
    test = max(sizes["test"], 2) if n_classes >= 4 else 0
    return {"train": n_classes - val - test, "val": val, "test": test}


def _about_empty_folders(files: Files) -> tuple[str, ...]:
    """Say which folders have no picture in them or below."""
    full = {str(folder) for name in files.names() if is_picture(name) for folder in PurePosixPath(name).parents}
    empty = [name for name in files.folders() if name not in full and not _is_of_a_system(name)]
    if not empty:
        return ()
    one = len(empty) == 1
    return (
        f"{counted(len(empty), 'folder')} of {files.label} {'has' if one else 'have'} no pictures and "
        f"{'is no class' if one else 'are no classes'}: {format_list(empty)}.",
    )


def _about_missing_splits(
    files: Files, classes: Mapping[str, Sequence[str]], n_classes: int, *, asked: Mapping[str, float] | None
) -> tuple[str, ...]:
    """Say which splits are left without a class, where they were not asked to be."""
    fractions = DEFAULT_FRACTIONS if asked is None else asked
    missing = [split for split, share in fractions.items() if share > 0 and not classes[split]]
    if not missing:
        return ()
    means = "; ".join(f"no {split!r} split{WITHOUT.get(split, '')}" for split in missing)
    return (
        f"The {counted(n_classes, 'class', 'classes')} of {files.label} do not go round: there is {means}. Add "
        "classes, or share them out in another way: with --fractions or lists of classes (in Python, fractions= or "
        "classes=).",
    )


def _is_of_a_system(folder: str) -> bool:
    """Whether a folder is hidden, or what an operating system puts into archives."""
    return any(part.startswith(".") or part == "__MACOSX" for part in PurePosixPath(folder).parts)


def _by_split_folders(files: Files) -> dict[str, list[Picture]] | None:
    """Return the pictures of <split>/<class>/<picture>, if all are laid out so."""
    groups = pictures_by_folder(files, depth=2)
    splits: dict[str, list[Picture]] = {}
    for folder in sorted(groups):
        split, name = folder.split("/")
        if split not in SPLITS:
            return None
        splits.setdefault(split, []).extend(replace(p, class_name=name) for p in groups[folder])
    return splits if len(splits) > 1 else None


def _from_table(files: Files, table: str) -> dict[str, list[Picture]]:
    if table not in files.names():
        raise InputError(f"{files.label} has no table {table!r}.")
    known = set(files.names())
    base = PurePosixPath(table).parent
    groups: dict[str, list[Picture]] = {}
    for number, file, label in read_table(files, table):
        path = next((p for p in (str(base / file), file) if p in known), None)
        if path is None or not is_picture(path):
            raise FileFormatError(f"Line {number} of {table} lists {file!r}, which is no picture of {files.label}.")
        groups.setdefault(label, []).append(picture_of(files, path, label))
    return {label: sorted(group, key=lambda picture: picture.name) for label, group in groups.items()}
