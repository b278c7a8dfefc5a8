"""A folder of pictures by class, and pictures given by files, folders and patterns."""

from __future__ import annotations

import glob
import os
import warnings
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from nearshot.data.pictures import FORMATS
from nearshot.data.sources.source import SPLITS, is_picture
from nearshot.errors import InputError

__all__ = ["SupportFolder", "find_pictures", "read_support"]


@dataclass(frozen=True)
class SupportFolder:
    """The labelled pictures of a folder with a folder for each class.

    Attributes:
        paths: the pictures, class after class in the order of names.
        labels: the class of each.
        ignored: files whose names do not say that they are pictures, and pictures outside of a class's folder.
    """

    paths: tuple[Path, ...]
    labels: tuple[str, ...]
    ignored: tuple[Path, ...] = ()

    @property
    def class_names(self) -> tuple[str, ...]:
        """The names of the classes, sorted."""
        return tuple(sorted(set(self.labels)))


@contextmanager
def _refusing_what_is_locked() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise InputError(f"{error.filename} cannot be read: {error.strerror}. Allow it, or leave it out.") from error


@_refusing_what_is_locked()
def read_support(folder: str | Path) -> SupportFolder:
    """Find the labelled pictures of a folder: a folder for each class, its name the label, pictures at any depth.

    Nothing is opened yet. A class without pictures is refused, rather than left out behind the user's back.
    """
    folder = Path(folder).expanduser()
    if not folder.is_dir():
        what = "is a file, not a folder" if folder.exists() else "does not exist"
        raise InputError(f"The support folder {folder} {what}. Give a folder with a folder of pictures for each class.")
    inside = sorted(path for path in folder.iterdir() if not path.name.startswith("."))
    classes = [path for path in inside if path.is_dir()]
    loose = [path for path in inside if path.is_file()]
    if not classes:
        raise InputError(f"{folder} has no folders; put the pictures of each class into a folder of its own.")
    if {path.name for path in classes} <= set(SPLITS):
        raise InputError(f"{folder} has splits, not classes: give {classes[0]}, or another one of them.")
    paths, labels, ignored = [], [], loose
    for class_folder in classes:
        pictures, others = _pictures_and_others(class_folder)
        if not pictures:
            raise InputError(
                f"The class folder {class_folder} has no pictures ({_kinds(others)}). Put some into it, or remove it."
            )
        paths += pictures
        labels += [class_folder.name] * len(pictures)
        ignored += others
    return SupportFolder(tuple(paths), tuple(labels), tuple(ignored))


@_refusing_what_is_locked()
def find_pictures(given: Iterable[str | Path]) -> list[Path]:
    """Return the files that are meant by files, folders (all pictures in them, at any depth) and patterns (*.jpg).

    A file that does not exist is among them, for whoever reads it to say so, and so is a link to nothing. A pattern or
    folder of nothing is refused; what is left out of a folder is warned of.
    """
    found: list[Path] = []
    for one in given:
        path = Path(one).expanduser()
        if os.path.isdir(path):  # noqa: PTH112 (Path's own raises where a folder above is locked)
            pictures, others = _pictures_and_others(path)
            if not pictures:
                raise InputError(f"The folder {path} has no pictures ({_kinds(others)}).")
            if others:
                many = "1 file" if len(others) == 1 else f"{len(others):,} files"
                warnings.warn(f"{many} in {path} left out ({_kinds(others)}).", stacklevel=2)
            found += pictures
        elif os.path.exists(path) or not glob.has_magic(str(path)):  # noqa: PTH110
            found.append(path)
        else:
            matches = sorted(Path(match) for match in glob.glob(str(path), recursive=True))  # noqa: PTH207
            files = [match for match in matches if _is_file(match)]
            if not files:
                raise InputError(f"No file matches {one}.")
            found += files
    return list(dict.fromkeys(found))


def _pictures_and_others(folder: Path) -> tuple[list[Path], list[Path]]:
    """Return the files under a folder that are pictures by their names, and the others; hidden ones are neither."""

    def refuse(error: OSError) -> None:
        raise error  # rather than leave out what is in a locked folder

    found: list[Path] = []
    for above, folders, names in os.walk(folder, onerror=refuse):
        folders[:] = [name for name in folders if not name.startswith(".")]
        found += [Path(above, name) for name in names if not name.startswith(".") and name != "Thumbs.db"]
    files = sorted(path for path in found if _is_file(path))
    return [file for file in files if is_picture(file.name)], [file for file in files if not is_picture(file.name)]


def _is_file(path: Path) -> bool:
    """Whether it is a file, or a link to nothing, of which there is something to say."""
    return path.is_file() or not path.exists()


def _kinds(files: Sequence[Path]) -> str:
    """Say what kinds of files there are, where no picture is among them."""
    kinds = sorted({path.suffix.lower() or "no suffix" for path in files})
    return f"it has files of {', '.join(kinds)}, and {', '.join(FORMATS)} can be read" if kinds else "it is empty"
