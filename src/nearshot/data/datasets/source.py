"""What the datasets share: images before they are read, plans of splits, and common layouts."""

import csv
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from importlib.resources import files as package_files
from pathlib import PurePosixPath
from typing import NamedTuple

from nearshot.data.downloads import Download
from nearshot.data.images import Pixels
from nearshot.data.readers import Files, is_image
from nearshot.errors import FileFormatError
from nearshot.text import counted, format_list, printable

SPLITS = ("train", "val", "test")


@dataclass(frozen=True)
class SourceImage:
    """An image of a dataset, before it is read.

    Attributes:
        class_name: the name of its class.
        name: its name in the source.
        read: a function that returns the file's bytes, or pixels (height, width, 3).
        n_bytes: the size of its file; 0 if it has no file of its own.
        stamp: a text that changes with the file's content; empty if it has no file of its own.
    """

    class_name: str
    name: str
    read: Callable[[], bytes | Pixels]
    n_bytes: int = 0
    stamp: str = ""


class Plan(NamedTuple):
    """The images that a source found."""

    layout: str  # in which they were found
    splits: dict[str, list[SourceImage]]  # in a fixed order
    remarks: tuple[str, ...] = ()  # sentences that the user should see


@dataclass(frozen=True)
class Source:
    """A dataset that nearshot knows.

    Attributes:
        name: its name on the command line.
        description: what it is, in one line.
        side: the usual side of its images.
        plan: a function that finds the images in some files.
        where: where to get it.
        downloads: the files that can be downloaded, if they are public.
        needs_files: whether it is made of files; if not, `plan` ignores them.
    """

    name: str
    description: str
    side: int
    plan: Callable[[Files], Plan]
    where: str
    downloads: tuple[Download, ...] = ()
    needs_files: bool = True


def standard_splits(name: str) -> dict[str, list[str]]:
    """Return the built-in classes of each split of a dataset."""
    folder = package_files("nearshot.data") / "splits"
    splits = {}
    for split in SPLITS:
        text = (folder / f"{name}-{split}.txt").read_text(encoding="utf-8")
        splits[split] = text.removesuffix("\n").split("\n")
    return splits


def by_class(images: Iterable[SourceImage]) -> dict[str, list[SourceImage]]:
    """Group images by class; each group is sorted by name."""
    groups: dict[str, list[SourceImage]] = {}
    for image in sorted(images, key=lambda image: image.name):
        groups.setdefault(image.class_name, []).append(image)
    return groups


def images_by_folder(files: Files, *, depth: int = 1) -> dict[str, list[SourceImage]]:
    """Group images by the last `depth` folders of their path."""
    images = []
    for path in files.members:
        folders = PurePosixPath(path).parts[:-1]
        if is_image(path) and len(folders) >= depth:
            images.append(source_image(files, path, "/".join(folders[-depth:])))
    return by_class(images)


def split_images(
    groups: Mapping[str, Sequence[SourceImage]],
    classes: Mapping[str, Sequence[str]],
    files: Files,
    dataset: str,
) -> dict[str, list[SourceImage]]:
    """Return the images of each split's classes, class by class; a missing class is an error."""
    missing = sorted(set().union(*classes.values()) - groups.keys())
    if missing:
        raise FileFormatError(
            f"{files.label} lacks {counted(len(missing), 'class', 'classes')} of {dataset}: "
            f"{format_list(missing)}. Is a part of the dataset missing?"
        )
    splits: dict[str, list[SourceImage]] = {}
    for split, names in classes.items():
        splits[split] = []
        for name in sorted(set(names)):
            splits[split] += groups[name]
    return splits


def paths_by_name(files: Files) -> dict[str, str]:
    """Return the path of each file by its name without folders."""
    return {PurePosixPath(path).name: path for path in files.members}


class TableRow(NamedTuple):
    """A line of a table of images."""

    file: str  # as the table names it
    path: str  # among the files
    label: str


def read_table(
    files: Files, table: str, path_of: Callable[[str], str | None]
) -> Iterator[TableRow]:
    """Yield the rows of a CSV file; `path_of` finds the path of a listed file."""
    lines = files.read(table).decode("utf-8-sig").splitlines()
    try:
        rows = list(csv.DictReader(lines))
    except csv.Error as error:
        raise FileFormatError(f"{table} in {files.label} is no table: {error}.") from error
    for number, row in enumerate(rows, 2):
        file = row.get("file") or row.get("filename")
        label = row.get("label")
        line = f"Line {number} of {table} in {files.label}"
        if not file or not label:
            raise FileFormatError(f"{line} needs the columns file (or filename) and label.")
        path = path_of(file)
        if path is None or not is_image(path):
            raise FileFormatError(f"{line} lists {file!r}, which is no image in it.")
        yield TableRow(printable(file), path, printable(label))


def source_image(files: Files, path: str, class_name: str, name: str | None = None) -> SourceImage:
    """Return the image in a file; by default it is named after the file."""
    member = files.members[path]
    return SourceImage(
        class_name, name or path, partial(files.read, path), member.n_bytes, member.stamp
    )
