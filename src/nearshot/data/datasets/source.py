"""What the datasets share: images before they are read, a plan of the splits, and the layouts that recur."""

from __future__ import annotations

import _codecs
import collections
import csv
import io
import pickle
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from importlib.resources import files as package_files
from pathlib import PurePosixPath
from typing import Any, NamedTuple

import numpy as np
from numpy._core import multiarray, numeric

from nearshot.data.downloads import Download
from nearshot.data.images import Pixels
from nearshot.data.readers import Files, is_image
from nearshot.errors import FileFormatError
from nearshot.text import counted, format_list

SPLITS = ("train", "val", "test")
# All that the datasets' pickles need beyond plain containers, strings and numbers: NumPy arrays, and the bytes of
# Python 2's and 3's protocols. Each of these only builds a value.
ALLOWED: dict[tuple[str, str], Any] = {
    ("numpy", "ndarray"): np.ndarray,
    ("numpy", "dtype"): np.dtype,
    ("_codecs", "encode"): _codecs.encode,
    ("collections", "OrderedDict"): collections.OrderedDict,
}
for package in ("numpy.core", "numpy._core"):
    ALLOWED[f"{package}.multiarray", "_reconstruct"] = multiarray._reconstruct
    ALLOWED[f"{package}.multiarray", "scalar"] = multiarray.scalar
    ALLOWED[f"{package}.numeric", "_frombuffer"] = numeric._frombuffer  # type: ignore[attr-defined]


@dataclass(frozen=True)
class SourceImage:
    """An image of a dataset, before it is read."""

    class_name: str
    name: str  # in the source
    read: Callable[[], bytes | Pixels]  # returns the file's bytes, or pixels (height, width, 3)
    stamp: str = ""  # the file's size, with its time or checksum; empty if the image has no file of its own

    @property
    def n_bytes(self) -> int:
        """The size of the file; 0 if it is not known."""
        size = self.stamp.split(" ")[0]
        return int(size) if size.isdecimal() else 0


class Plan(NamedTuple):
    """The images that a source found.

    Attributes:
        layout: the name of the layout that they were found in.
        splits: the images of each split, in a fixed order.
        remarks: sentences that the user should see.
    """

    layout: str
    splits: dict[str, list[SourceImage]]
    remarks: tuple[str, ...] = ()


@dataclass(frozen=True)
class Source:
    """A dataset that nearshot knows.

    Attributes:
        name: its name on the command line.
        description: one line about it.
        side: the usual side of its images.
        plan: finds the images in some files.
        where: where to get it.
        downloads: the files that can be downloaded, if they are public.
        needs_files: whether it is read from files; if not, `plan` ignores them.
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
    texts = {split: (folder / f"{name}-{split}.txt").read_text(encoding="utf-8") for split in SPLITS}
    return {split: text.removesuffix("\n").split("\n") for split, text in texts.items()}


def images_by_folder(files: Files, *, depth: int = 1) -> dict[str, list[SourceImage]]:
    """Group images by the last `depth` folders of their path; each group is sorted by name."""
    groups: dict[str, list[SourceImage]] = {}
    for name in files.names():
        parts = PurePosixPath(name).parts
        if is_image(name) and len(parts) > depth:
            folder = "/".join(parts[-1 - depth : -1])
            groups.setdefault(folder, []).append(source_image(files, name, folder))
    return groups


def split_images(
    groups: Mapping[str, Sequence[SourceImage]], classes: Mapping[str, Sequence[str]], files: Files, dataset: str
) -> dict[str, list[SourceImage]]:
    """Return the images of each split's classes, class by class; a missing class is an error."""
    missing = sorted({name for names in classes.values() for name in names} - groups.keys())
    if missing:
        raise FileFormatError(
            f"{files.label} lacks {counted(len(missing), 'class', 'classes')} of {dataset}: {format_list(missing)}. "
            "Is a part of the dataset missing?"
        )
    return {split: [p for name in sorted(set(names)) for p in groups[name]] for split, names in classes.items()}


def paths_by_name(files: Files) -> dict[str, str]:
    """Return the path of each file by its name without folders."""
    return {PurePosixPath(path).name: path for path in files.names()}


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in ALLOWED:
            raise FileFormatError(f"asks for {module}.{name}, which no dataset needs. It was not run")
        return ALLOWED[module, name]


def load_pickle(data: bytes, name: str) -> Any:
    """Load a pickle of containers, strings, numbers and NumPy arrays; anything else is refused and not run."""
    try:
        return _Unpickler(io.BytesIO(data), encoding="latin1").load()  # keeps every byte of Python 2's strings
    except FileFormatError as error:
        raise FileFormatError(f"{name} {error}; do not trust the file.") from None
    except Exception as error:  # a damaged pickle can raise anything
        raise FileFormatError(f"{name} is damaged, or not a pickle: {type(error).__name__} {error}.") from error


def read_table(files: Files, table: str) -> Iterator[tuple[int, str, str]]:
    """Yield the line number, file and label of each line of a CSV file."""
    for number, row in enumerate(csv.DictReader(files.read(table).decode("utf-8-sig").splitlines()), 2):
        file, label = row.get("file") or row.get("filename"), row.get("label")
        if not file or not label:
            raise FileFormatError(
                f"Line {number} of {table} in {files.label} needs the columns file (or filename) and label."
            )
        yield number, file, label


def source_image(files: Files, path: str, class_name: str, name: str | None = None) -> SourceImage:
    """Return the image in a file; by default it is named after the file."""
    return SourceImage(class_name, path if name is None else name, partial(files.read, path), files.members[path].stamp)
