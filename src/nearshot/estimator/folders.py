"""Find labelled images in one folder per class, and images by files, folders and patterns."""

from __future__ import annotations

import glob
import os
import warnings
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from nearshot.data.datasets.source import SPLITS
from nearshot.data.images import FORMATS
from nearshot.data.readers import Skipped, files_under, is_image, locked_error
from nearshot.errors import InputError
from nearshot.text import counted


@dataclass(frozen=True)
class SupportFolder:
    """The labelled images of a folder with one folder per class.

    Attributes:
        paths: the images, class by class in alphabetical order.
        labels: the class of each image.
        ignored: files that are not images by their names, and files outside of the class folders.
        linked: links to folders inside of a class folder, which are not followed; a class folder may be a link.
    """

    paths: tuple[Path, ...]
    labels: tuple[str, ...]
    ignored: tuple[Path, ...] = ()
    linked: tuple[Path, ...] = ()

    @property
    def class_names(self) -> tuple[str, ...]:
        """The names of the classes, sorted."""
        return tuple(sorted(set(self.labels)))


def read_support(folder: str | Path) -> SupportFolder:
    """Find the labelled images of a folder: one folder per class, its name the label, with images at any depth.

    No file is opened. A class without images, or a folder that cannot be read, is an error.
    """
    folder = Path(folder).expanduser()
    try:
        if not folder.is_dir():
            what = "is a file, not a folder" if folder.exists() else "does not exist"
            raise InputError(f"The support folder {folder} {what}. Give a folder with one folder of images per class.")
        inside = sorted(path for path in folder.iterdir() if not path.name.startswith("."))
        classes = [path for path in inside if path.is_dir()]
    except OSError as error:
        raise locked_error(error.filename, error.strerror) from error
    if not classes:
        raise InputError(f"{folder} has no folders; put the images of each class into a folder of its own.")
    if {path.name for path in classes} <= set(SPLITS):
        raise InputError(f"{folder} has splits, not classes: give {classes[0]}, or another one of them.")
    paths, labels, linked = [], [], []
    ignored = [path for path in inside if path not in classes]
    for class_folder in classes:
        skipped = Skipped()
        images, others = _images_and_others(class_folder, skipped)
        skipped.refuse_locked()
        if not images:
            what = f"The class folder {class_folder} has no images ({_found_instead(others, skipped)})"
            raise InputError(f"{what}. Add some, or remove the folder.")
        paths += images
        labels += [class_folder.name] * len(images)
        ignored += others
        linked += skipped.linked
    return SupportFolder(tuple(paths), tuple(labels), tuple(ignored), tuple(linked))


def find_images(given: Iterable[str | Path]) -> tuple[list[Path], list[Path]]:
    """Find files by paths, folders (all images in them, at any depth) and patterns (*.jpg).

    Returns the files, each once, and the folders that could not be read, whose files are missing. A given path that
    does not exist is included, so that reading it gives the error; so is a broken link. A pattern or folder without
    images is an error. Skipped files and folders are warned about: files that are no images, locked folders, and links
    to folders.
    """
    found: list[Path] = []
    skipped, folders = Skipped(), set()
    for one in given:
        path, here = Path(one).expanduser(), Skipped()
        if os.path.isdir(path):  # noqa: PTH112 (Path's own raises if a folder above is locked)
            folders.add(path)
            images, others = _images_and_others(path, here)
            if not images:
                here.refuse_locked()
                raise InputError(f"The folder {path} has no images ({_found_instead(others, here)}).")
            if others:
                what = f"{counted(len(others), 'file')} in {path} skipped"
                warnings.warn(f"{what} ({_found_instead(others, here)}).", stacklevel=2)
            found += images
        elif os.path.exists(path) or not glob.has_magic(str(path)):  # noqa: PTH110
            found.append(path)
        else:
            matches = Path(path.anchor).glob(str(path.relative_to(path.anchor)))
            files = [match for match in matches if not match.is_dir() and not match.name.startswith(".")]
            if not files:
                raise InputError(f"No file matches {one}.")
            found += sorted(files)
        skipped.locked |= here.locked
        skipped.linked += here.linked
    skipped.linked = [link for link in dict.fromkeys(skipped.linked) if link not in folders]
    for sentence in skipped.sentences():
        warnings.warn(sentence, stacklevel=2)
    return list(dict.fromkeys(found)), list(skipped.locked)


def _images_and_others(folder: Path, skipped: Skipped) -> tuple[list[Path], list[Path]]:
    files = files_under(folder, skipped)
    return [file for file in files if is_image(file.name)], [file for file in files if not is_image(file.name)]


def _found_instead(files: Sequence[Path], skipped: Skipped) -> str:
    kinds = sorted({path.suffix.lower() or "no suffix" for path in files})
    if kinds:
        return f"it has files of {', '.join(kinds)}, and {', '.join(FORMATS)} can be read"
    if skipped.linked:
        return f"{skipped.linked[0]} is a link, and links are not followed"
    return "it is empty"
