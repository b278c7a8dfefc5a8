"""A folder of pictures by class, and pictures given by files, folders and patterns."""

from __future__ import annotations

import glob
import os
import warnings
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from nearshot.data.datasets.source import SPLITS, is_image
from nearshot.data.images import FORMATS
from nearshot.data.walk import Skipped, files_matching, files_under, locked_error
from nearshot.errors import InputError

__all__ = ["Found", "SupportFolder", "find_pictures", "read_support"]


@dataclass(frozen=True)
class SupportFolder:
    """The labelled pictures of a folder with a folder for each class.

    Attributes:
        paths: the pictures, class after class in the order of names.
        labels: the class of each.
        ignored: files whose names do not say that they are pictures, and what is outside of a class's folder.
        linked: links to folders inside of a class's, which are not followed; a class's own may be a link.
    """

    paths: tuple[Path, ...]
    labels: tuple[str, ...]
    ignored: tuple[Path, ...] = ()
    linked: tuple[Path, ...] = ()

    @property
    def class_names(self) -> tuple[str, ...]:
        """The names of the classes, sorted."""
        return tuple(sorted(set(self.labels)))


@contextmanager
def _refusing_what_is_locked() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise locked_error(error.filename, error.strerror) from error


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
    loose = [path for path in inside if path not in classes]  # a link to nothing, too: it may have been a class
    if not classes:
        raise InputError(f"{folder} has no folders; put the pictures of each class into a folder of its own.")
    if {path.name for path in classes} <= set(SPLITS):
        raise InputError(f"{folder} has splits, not classes: give {classes[0]}, or another one of them.")
    paths, labels, ignored, linked = [], [], loose, []
    for class_folder in classes:
        skipped = Skipped()
        pictures, others = _pictures_and_others(class_folder, skipped)
        skipped.refuse_locked()
        if not pictures:
            what = f"The class folder {class_folder} has no pictures ({_instead(others, skipped)})"
            raise InputError(f"{what}. Put some into it, or remove it.")
        paths += pictures
        labels += [class_folder.name] * len(pictures)
        ignored += others
        linked += skipped.linked
    return SupportFolder(tuple(paths), tuple(labels), tuple(ignored), tuple(linked))


class Found(NamedTuple):
    """What was meant by files, folders and patterns.

    Attributes:
        paths: the files, each once.
        locked: the folders that could not be read, and what is in them is therefore not among the files.
    """

    paths: list[Path]
    locked: list[Path]


def find_pictures(given: Iterable[str | Path]) -> Found:
    """Find the files that are meant by files, folders (all pictures in them, at any depth) and patterns (*.jpg).

    A file that does not exist is among them, for whoever reads it to say so, and so is a link to nothing. A pattern or
    folder of nothing is refused; what is left out of a folder or pattern is warned of: files that are no pictures,
    locked folders, and linked ones.
    """
    found: list[Path] = []
    skipped, folders = Skipped(), set()
    for one in given:
        path, here = Path(one).expanduser(), Skipped()
        if os.path.isdir(path):  # noqa: PTH112 (Path's own raises where a folder above is locked)
            folders.add(path)
            pictures, others = _pictures_and_others(path, here)
            if not pictures:
                here.refuse_locked()
                raise InputError(f"The folder {path} has no pictures ({_instead(others, here)}).")
            if others:
                many = "1 file" if len(others) == 1 else f"{len(others):,} files"
                warnings.warn(f"{many} in {path} left out ({_instead(others)}).", stacklevel=2)
            found += pictures
        elif os.path.exists(path) or not glob.has_magic(str(path)):  # noqa: PTH110
            found.append(path)
        else:
            files = files_matching(path, here)
            if not files:
                here.refuse_locked()
                where = f" ({_instead([], here)})" if here.linked else ""
                raise InputError(f"No file matches {one}{where}.")
            found += files
        skipped.locked |= here.locked
        skipped.linked += here.linked
    skipped.linked = [link for link in dict.fromkeys(skipped.linked) if link not in folders]
    for sentence in skipped.sentences():
        warnings.warn(sentence, stacklevel=2)
    return Found(list(dict.fromkeys(found)), list(skipped.locked))


def _pictures_and_others(folder: Path, skipped: Skipped) -> tuple[list[Path], list[Path]]:
    """Return the files under a folder that are pictures by their names, and the others; hidden ones are neither."""
    files = files_under(folder, skipped)
    return [file for file in files if is_image(file.name)], [file for file in files if not is_image(file.name)]


def _instead(files: Sequence[Path], skipped: Skipped | None = None) -> str:
    """Say what there is, where no picture is."""
    kinds = sorted({path.suffix.lower() or "no suffix" for path in files})
    if kinds:
        return f"it has files of {', '.join(kinds)}, and {', '.join(FORMATS)} can be read"
    if skipped is not None and skipped.linked:
        return f"{skipped.linked[0]} is a link, and links are not followed"
    return "it is empty"
