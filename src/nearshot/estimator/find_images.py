"""Find images by files, folders and patterns; `data.readers` walks the folders."""

import glob
import os
import re
import warnings
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from nearshot.data.datasets.source import SPLITS
from nearshot.data.images import readable_formats
from nearshot.data.readers import Skipped, files_under, is_image
from nearshot.errors import InputError
from nearshot.estimator.novelty import NONE_OF_THESE
from nearshot.text import counted

UNREADABLE_PHOTO_SUFFIXES = (
    ".jxl",
    ".jp2",
    ".cr2",
    ".cr3",
    ".nef",
    ".arw",
    ".dng",
    ".raf",
    ".orf",
    ".rw2",
    ".pef",
    ".srw",
)
VIDEO_SUFFIXES = (".mov", ".mp4", ".m4v", ".avi", ".mkv", ".webm", ".3gp")


@dataclass(frozen=True)
class SupportFolder:
    """The labelled images of a folder with one folder per class.

    Attributes:
        paths: the images, class by class in alphabetical order.
        labels: the class of each image.
        ignored: files that are not images by their names, and files outside of the class folders.
        linked: links to folders inside of a class folder, which are not followed; a class folder
            may be a link.
        none_of_these: images of none of the classes, which lie in a folder of that name.
    """

    paths: tuple[Path, ...]
    labels: tuple[str, ...]
    ignored: tuple[Path, ...] = ()
    linked: tuple[Path, ...] = ()
    none_of_these: tuple[Path, ...] = ()

    @property
    def class_names(self) -> tuple[str, ...]:
        """The names of the classes, sorted."""
        return tuple(sorted(set(self.labels)))


@dataclass(frozen=True)
class FoundImages:
    """The images that `find_images` found.

    Attributes:
        paths: the images, each once.
        unread: what is missing from them: folders that could not be read, and photos and videos of
            formats that nearshot does not read.
    """

    paths: list[Path]
    unread: list[Path]


def read_support(folder: str | Path) -> SupportFolder:
    """Find the labelled images of a folder: one folder per class, whose name is the label.

    Images in the folder "none of these" belong to no class. Images may lie at any depth. No file is
    opened. A class without images, or a folder that cannot
    be read, is an error.
    """
    folder = Path(os.path.expanduser(folder))  # noqa: PTH111 (unknown users are kept)
    if not folder.is_dir():
        problem = "is a file, not a folder" if folder.exists() else "does not exist"
        raise InputError(
            f"The support folder {folder} {problem}. "
            "Give a folder with one folder of images per class."
        )
    entries = sorted(path for path in folder.iterdir() if not path.name.startswith("."))
    class_folders = [path for path in entries if path.is_dir()]
    if not class_folders:
        raise InputError(
            f"{folder} has no folders; put the images of each class into a folder of its own."
        )
    if {path.name for path in class_folders} <= set(SPLITS):
        raise InputError(
            f"{folder} has splits, not classes: give {class_folders[0]}, or another one of them."
        )
    paths: list[Path] = []
    labels: list[str] = []
    strays: list[Path] = []
    ignored = [path for path in entries if path not in class_folders]
    skipped = Skipped()
    for class_folder in class_folders:
        images, others = _images_and_others(class_folder, skipped)
        if class_folder.name == NONE_OF_THESE:
            strays += images
        else:
            paths += images
            labels += [class_folder.name] * len(images)
        ignored += others
    skipped.refuse_locked()
    if not paths:
        raise InputError(
            f"{folder} has no class but {NONE_OF_THESE!r}; put the images of each class into a "
            "folder of its own."
        )
    _refuse_folders_of_folders(folder, paths)
    return SupportFolder(
        tuple(paths), tuple(labels), tuple(ignored), tuple(skipped.linked), tuple(strays)
    )


def _refuse_folders_of_folders(folder: Path, paths: Sequence[Path]) -> None:
    """Raise an error if the folders of a support folder hold the folders of the classes.

    That is so if none of them has an image of its own, and all share the names of two folders or
    more. The folders of a single one are taken for the classes.
    """
    names_inside: dict[str, set[str]] = {}
    for path in paths:
        outer, inner, *rest = path.relative_to(folder).parts
        if not rest:
            return
        names_inside.setdefault(outer, set()).add(inner)
    shared = set.intersection(*names_inside.values())
    if len(shared) < 2:
        return
    examples = ", ".join(sorted(shared)[:3])
    choices = " or ".join(str(folder / outer) for outer in list(names_inside)[:3])
    raise InputError(
        f"{folder} must have one folder of images per class, but its folders hold the folders of "
        f"the classes ({examples}). Give {choices}."
    )


def groups_of_paths(paths: Sequence[Path], folder: Path, pattern: str) -> list[str | None]:
    """Return the name of each image's group, for `FewShotClassifier.fit`; None where it has none.

    `pattern` is a regular expression with one group in parentheses, whose text is the name. It is
    searched in the path of the image inside of `folder`, such as "terns/bird2_017.jpg".
    """
    try:
        expression = re.compile(pattern)
    except re.error as error:
        raise InputError(
            f"groups must be a regular expression (got {pattern!r}: {error})."
        ) from error
    if expression.groups != 1:
        raise InputError(
            "groups must be a regular expression with one group in parentheses, such as "
            rf"'(bird\d+)_' (got {pattern!r}, with {expression.groups})."
        )
    names: list[str | None] = []
    for path in paths:
        match = expression.search(path.relative_to(folder).as_posix())
        names.append(None if match is None else match.group(1))
    if not any(names):
        raise InputError(
            f"groups must match the name of an image in {folder} (got {pattern!r}, which matches "
            f"none, such as {paths[0].relative_to(folder).as_posix()!r})."
        )
    return names


def find_images(paths_or_patterns: Iterable[str | Path]) -> FoundImages:
    """Find images by files, folders (all images in them, at any depth) and patterns (*.jpg).

    A path that does not exist is included, and so is a broken link: reading it gives the error. A
    pattern or folder without images is an error. Skipped files and folders are warned about: files
    that are not images, locked folders, and links to folders.
    """
    images: list[Path] = []
    unreadable_files: list[Path] = []
    folders: set[Path] = set()
    skipped = Skipped()
    for path_or_pattern in paths_or_patterns:
        path = Path(os.path.expanduser(path_or_pattern))  # noqa: PTH111 (as above)
        if os.path.isdir(path):  # noqa: PTH112 (Path's own raises if a folder above is locked)
            images_in_folder, others = _images_and_others(path, skipped)
            if others:
                files = counted(len(others), "file")
                verb = "was" if len(others) == 1 else "were"
                warnings.warn(
                    f"{files} in {path} {verb} skipped ({_suffixes(others)}). "
                    f"Readable: {readable_formats()}.",
                    stacklevel=2,
                )
            folders.add(path)
            images += images_in_folder
            unreadable_files += [file for file in others if _is_photo_or_video(file)]
        elif os.path.exists(path) or not glob.has_magic(str(path)):  # noqa: PTH110 (as above)
            images.append(path)
        else:
            images += _files_matching(path)
    skipped.linked = [link for link in dict.fromkeys(skipped.linked) if link not in folders]
    for sentence in skipped.sentences():
        warnings.warn(sentence, stacklevel=2)
    return FoundImages(list(dict.fromkeys(images)), [*skipped.locked, *unreadable_files])


def _files_matching(pattern: Path) -> list[Path]:
    """Return the files of a pattern, sorted; hidden files and folders do not match."""
    matches = Path(pattern.anchor).glob(str(pattern.relative_to(pattern.anchor)))
    files = [path for path in matches if not path.is_dir() and not path.name.startswith(".")]
    if not files:
        raise InputError(f"No file matches {pattern}.")
    return sorted(files)


def _images_and_others(folder: Path, skipped: Skipped) -> tuple[list[Path], list[Path]]:
    """Return the images in a folder, at any depth, and its other files; no image is an error."""
    files = files_under(folder, skipped)
    images = [file for file in files if is_image(file.name)]
    others = [file for file in files if not is_image(file.name)]
    if images:
        return images, others
    skipped.refuse_locked()
    links = [link for link in skipped.linked if link.is_relative_to(folder)]
    if links:
        reason = f"{links[0]} is a link, and links are not followed"
    elif others:
        reason = f"only {_suffixes(others)}"
    else:
        reason = "it is empty"
    readable = f" Readable: {readable_formats()}." if others else ""
    raise InputError(f"The folder {folder} has no images ({reason}).{readable}")


def _suffixes(files: Sequence[Path]) -> str:
    return ", ".join(sorted({file.suffix.lower() or "no suffix" for file in files}))


def _is_photo_or_video(file: Path) -> bool:
    return file.suffix.lower() in UNREADABLE_PHOTO_SUFFIXES + VIDEO_SUFFIXES
