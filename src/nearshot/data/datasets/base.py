"""What a source is: a way to find the pictures of a dataset's splits in the layouts that it is distributed in."""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from importlib.resources import files as package_files
from pathlib import PurePosixPath
from typing import NamedTuple

from nearshot.data.downloads import Download
from nearshot.data.readers import Files, is_picture
from nearshot.data.writer import Picture
from nearshot.errors import FileFormatError
from nearshot.text import counted, format_list

__all__ = [
    "SPLITS",
    "Plan",
    "Source",
    "class_list",
    "is_picture",
    "picture_of",
    "pictures_by_folder",
    "read_table",
    "split_pictures",
    "standard_splits",
]

SPLITS = ("train", "val", "test")


class Plan(NamedTuple):
    """What a source found.

    Attributes:
        layout: which of the known layouts it is, in words, for the record.
        splits: the pictures of each split, in a fixed order.
        remarks: what whoever prepares it should know, a sentence each.
    """

    layout: str
    splits: dict[str, list[Picture]]
    remarks: tuple[str, ...] = ()


@dataclass(frozen=True)
class Source:
    """A dataset that nearshot knows.

    Attributes:
        name: its name on the command line.
        description: a line about it.
        side: the side that its images have by nature, or are usually brought to.
        plan: finds the pictures in some files.
        where: where to get it, in a sentence.
        downloads: the files that can be fetched, if a public address exists.
        needs_files: whether there are files to be given; if not, `plan` ignores them.
    """

    name: str
    description: str
    side: int
    plan: Callable[[Files], Plan]
    where: str
    downloads: tuple[Download, ...] = ()
    needs_files: bool = True


def class_list(name: str) -> list[str]:
    """Return a built-in list of the classes of a standard split, such as "cifar-fs-train"."""
    text = package_files("nearshot.data").joinpath("splits", f"{name}.txt").read_text(encoding="utf-8")
    return text.split("\n")[: text.count("\n")] if text.endswith("\n") else text.split("\n")


def pictures_by_folder(files: Files, *, depth: int = 1) -> dict[str, list[Picture]]:
    """Group the pictures of some files by the last `depth` folders they are in, each group in the order of names."""
    groups: dict[str, list[Picture]] = {}
    for name in files.names():
        parts = PurePosixPath(name).parts
        if is_picture(name) and len(parts) > depth:
            folder = "/".join(parts[-1 - depth : -1])
            groups.setdefault(folder, []).append(picture_of(files, name, folder))
    return groups


def standard_splits(name: str) -> dict[str, list[str]]:
    """Return the built-in classes of each split of a dataset."""
    return {split: class_list(f"{name}-{split}") for split in SPLITS}


def split_pictures(
    groups: dict[str, list[Picture]], classes: Mapping[str, Sequence[str]], files: Files, dataset: str
) -> dict[str, list[Picture]]:
    """Return the pictures of each split's classes, class after class; classes that are missing are an error."""
    missing = sorted({name for names in classes.values() for name in names} - groups.keys())
    if missing:
        raise FileFormatError(
            f"{files.label} lacks {counted(len(missing), 'class', 'classes')} of {dataset}: {format_list(missing)}. "
            "Is a part of the dataset missing?"
        )
    return {split: [p for name in sorted(names) for p in groups[name]] for split, names in classes.items()}


def read_table(files: Files, table: str) -> Iterator[tuple[int, str, str]]:
    """Yield the line number, file and label of each line of a CSV file with such columns."""
    for number, row in enumerate(csv.DictReader(files.read(table).decode("utf-8-sig").splitlines()), 2):
        file, label = row.get("file") or row.get("filename"), row.get("label")
        if not file or not label:
            raise FileFormatError(
                f"Line {number} of {table} in {files.label} needs the columns file (or filename) and label."
            )
        yield number, file, label


def picture_of(files: Files, path: str, class_name: str, name: str | None = None) -> Picture:
    """Return the picture that is a file, of a class; by default its name is the file's."""
    return Picture(class_name, path if name is None else name, partial(files.read, path), files.stamp(path))
