"""What the datasets share: images before they are read, a plan of the splits, and the layouts that recur."""

import _codecs
import collections
import csv
import io
import pickle
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
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
# All that the datasets' pickles need beyond plain containers, strings and numbers: NumPy arrays,
# and the bytes of Python 2's and 3's protocols. Each of these only builds a value.
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
    stamp: str = (
        ""  # the file's size, with its time or checksum; empty if the image has no file of its own
    )

    @property
    def n_bytes(self) -> int:
        """The size of the file; 0 if it is not known."""
        size = self.stamp.split(" ")[0]
        return int(size) if size.isdecimal() else 0


class Plan(NamedTuple):
    """The images that a source found."""

    layout: str  # in which they were found
    splits: dict[str, list[SourceImage]]  # in a fixed order
    remarks: tuple[str, ...] = ()  # sentences that the user should see


@dataclass(frozen=True)
class Source:
    """A dataset that nearshot knows."""

    name: str  # on the command line
    description: str  # one line
    side: int  # the usual side of its images
    plan: Callable[[Files], Plan]  # finds the images in some files
    where: str  # to get it
    downloads: tuple[Download, ...] = ()  # the files that can be downloaded, if they are public
    needs_files: bool = True  # if not, `plan` ignores the files


def standard_splits(name: str) -> dict[str, list[str]]:
    """Return the built-in classes of each split of a dataset."""
    folder = package_files("nearshot.data") / "splits"
    texts = {
        split: (folder / f"{name}-{split}.txt").read_text(encoding="utf-8") for split in SPLITS
    }
    return {split: text.removesuffix("\n").split("\n") for split, text in texts.items()}


def by_class(images: Iterable[SourceImage]) -> dict[str, list[SourceImage]]:
    """Group images by class; each group is sorted by name."""
    groups: dict[str, list[SourceImage]] = {}
    for image in sorted(images, key=lambda image: image.name):
        groups.setdefault(image.class_name, []).append(image)
    return groups


def images_by_folder(files: Files, *, depth: int = 1) -> dict[str, list[SourceImage]]:
    """Group images by the last `depth` folders of their path."""
    images = []
    for name in filter(is_image, files.members):
        folders = PurePosixPath(name).parts[:-1]
        if len(folders) >= depth:
            images.append(source_image(files, name, "/".join(folders[-depth:])))
    return by_class(images)


def split_images(
    groups: Mapping[str, Sequence[SourceImage]],
    classes: Mapping[str, Sequence[str]],
    files: Files,
    dataset: str,
) -> dict[str, list[SourceImage]]:
    """Return the images of each split's classes, class by class; a missing class is an error."""
    missing = sorted({name for names in classes.values() for name in names} - groups.keys())
    if missing:
        raise FileFormatError(
            f"{files.label} lacks {counted(len(missing), 'class', 'classes')} of {dataset}: {format_list(missing)}. "
            "Is a part of the dataset missing?"
        )
    return {
        split: [p for name in sorted(set(names)) for p in groups[name]]
        for split, names in classes.items()
    }


def paths_by_name(files: Files) -> dict[str, str]:
    """Return the path of each file by its name without folders."""
    return {PurePosixPath(path).name: path for path in files.members}


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in ALLOWED:
            raise FileFormatError(
                f"asks for {module}.{name}, which no dataset needs. It was not run"
            )
        return ALLOWED[module, name]


def load_pickle(data: bytes, name: str) -> Any:
    """Load a pickle of containers, strings, numbers and NumPy arrays; anything else is refused and not run."""
    try:
        return _Unpickler(
            io.BytesIO(data), encoding="latin1"
        ).load()  # keeps every byte of Python 2's strings
    except FileFormatError as error:
        raise FileFormatError(f"{name} {error}; do not trust the file.") from None
    except Exception as error:  # a damaged pickle can raise anything
        raise FileFormatError(
            f"{name} is damaged, or not a pickle: {type(error).__name__} {error}."
        ) from error


def read_table(
    files: Files, table: str, path_of: Callable[[str], str | None]
) -> Iterator[tuple[str, str, str]]:
    """Yield the file, its path and the label of each line of a CSV file; `path_of` finds the path of a listed file."""
    for number, row in enumerate(
        csv.DictReader(files.read(table).decode("utf-8-sig").splitlines()), 2
    ):
        file, label = row.get("file") or row.get("filename"), row.get("label")
        line = f"Line {number} of {table} in {files.label}"
        if not file or not label:
            raise FileFormatError(f"{line} needs the columns file (or filename) and label.")
        path = path_of(file)
        if path is None or not is_image(path):
            raise FileFormatError(f"{line} lists {file!r}, which is no image in it.")
        yield file, path, label


def source_image(files: Files, path: str, class_name: str, name: str | None = None) -> SourceImage:
    """Return the image in a file; by default it is named after the file."""
    return SourceImage(
        class_name, name or path, partial(files.read, path), files.members[path].stamp
    )
