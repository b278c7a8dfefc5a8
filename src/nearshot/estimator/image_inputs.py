"""Find images by files, folders and patterns, and read them, Pillow images and arrays as uint8 squares."""

import glob
import hashlib
import os
import warnings
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from nearshot.data.datasets.source import SPLITS
from nearshot.data.images import (
    Interpolation,
    Pixels,
    decode,
    fit_to_square,
    readable_formats,
    upright_rgb,
)
from nearshot.data.readers import Skipped, files_under, is_image
from nearshot.errors import InputError, NearshotError
from nearshot.text import counted

THREADS, IN_FLIGHT = 4, 8  # a phone's photo takes a hundred megabytes while it is read
PREPROCESSING = (
    "centre, Pillow; 3"  # what `Content.square` does; increase the number with every change
)
SPARE_PIXELS = 2  # a JPEG is decoded at a fraction of its size that leaves this many times the pixels along an axis
# Suffixes of photos and videos that cannot be read.
PHOTOS = (
    ".avif",
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
VIDEOS = (".mov", ".mp4", ".m4v", ".avi", ".mkv", ".webm", ".3gp")

Given = TypeVar("Given")
Made = TypeVar("Made")


@dataclass(frozen=True)
class SupportFolder:
    """The labelled images of a folder with one folder per class.

    Attributes:
        paths: the images, class by class in alphabetical order.
        labels: the class of each image.
        ignored: files that are not images by their names, and files outside of the class folders.
        linked: links to folders inside of a class folder, which are not followed; a class folder
            may be a link.
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
    if not folder.is_dir():
        what = "is a file, not a folder" if folder.exists() else "does not exist"
        raise InputError(
            f"The support folder {folder} {what}. Give a folder with one folder of images per class."
        )
    inside = sorted(path for path in folder.iterdir() if not path.name.startswith("."))
    classes = [path for path in inside if path.is_dir()]
    if not classes:
        raise InputError(
            f"{folder} has no folders; put the images of each class into a folder of its own."
        )
    if {path.name for path in classes} <= set(SPLITS):
        raise InputError(
            f"{folder} has splits, not classes: give {classes[0]}, or another one of them."
        )
    paths, labels, skipped = list[Path](), list[str](), Skipped()
    ignored = [path for path in inside if path not in classes]
    for class_folder in classes:
        images, others = _images_and_others(class_folder, skipped)
        paths += images
        labels += [class_folder.name] * len(images)
        ignored += others
    skipped.refuse_locked()
    return SupportFolder(tuple(paths), tuple(labels), tuple(ignored), tuple(skipped.linked))


def find_images(given: Iterable[str | Path]) -> tuple[list[Path], list[Path]]:
    """Find files by paths, folders (all images in them, at any depth) and patterns (*.jpg).

    Returns the files, each once, and what could not be read: folders, whose files are missing, and
    photos and videos of other formats. A given path that does not exist is included, so that
    reading it gives the error; so is a broken link. A pattern or folder without images is an error.
    Skipped files and folders are warned about: files that are no images, locked folders, and links
    to folders.
    """
    found, unread, folders, skipped = list[Path](), list[Path](), set[Path](), Skipped()
    for one in given:
        path = Path(one).expanduser()
        if os.path.isdir(path):  # noqa: PTH112 (Path's own raises if a folder above is locked)
            images, others = _images_and_others(path, skipped)
            if others:
                what = f"{counted(len(others), 'file')} in {path} {'was' if len(others) == 1 else 'were'} skipped"
                warnings.warn(
                    f"{what} ({_kinds(others)}). Readable: {readable_formats()}.", stacklevel=2
                )
            unread += [one for one in others if one.suffix.lower() in PHOTOS + VIDEOS]
            folders.add(path)
            found += images
        elif os.path.exists(path) or not glob.has_magic(str(path)):  # noqa: PTH110
            found.append(path)
        else:
            matches = Path(path.anchor).glob(str(path.relative_to(path.anchor)))
            files = [
                match for match in matches if not match.is_dir() and not match.name.startswith(".")
            ]
            if not files:
                raise InputError(f"No file matches {one}.")
            found += sorted(files)
    skipped.linked = [link for link in dict.fromkeys(skipped.linked) if link not in folders]
    for sentence in skipped.sentences():
        warnings.warn(sentence, stacklevel=2)
    return list(dict.fromkeys(found)), [*skipped.locked, *unread]


def _images_and_others(folder: Path, skipped: Skipped) -> tuple[list[Path], list[Path]]:
    """Return the images in a folder, at any depth, and its other files; a folder without images is an error."""
    files = files_under(folder, skipped)
    images, others = (
        [one for one in files if is_image(one.name)],
        [one for one in files if not is_image(one.name)],
    )
    if not images:
        skipped.refuse_locked()
        links = [link for link in skipped.linked if link.is_relative_to(folder)]
        what = f"only {_kinds(others)}" if others else "it is empty"
        what = f"{links[0]} is a link, and links are not followed" if links else what
        readable = f" Readable: {readable_formats()}." if others else ""
        raise InputError(f"The folder {folder} has no images ({what}).{readable}")
    return images, others


def _kinds(files: Sequence[Path]) -> str:
    return ", ".join(sorted({path.suffix.lower() or "no suffix" for path in files}))


@dataclass(frozen=True)
class Content:
    """The content of an image before it is decoded."""

    name: str  # in messages
    digest: str  # a SHA-256 of its file or pixels
    image: Callable[
        [int], Image.Image
    ]  # decodes it; its shorter side keeps that many pixels, if it has as many

    def square(
        self, side: int, interpolation: Interpolation = "bilinear", crop: float = 1.0
    ) -> Pixels:
        """Return its centre as (side, side, 3) uint8 RGB: upright, on white, the first frame of an animation.

        `crop` is the fraction of the shorter side that the square shows; see `fit_to_square`.
        """
        image = self.image(SPARE_PIXELS * round(side / crop))
        return fit_to_square(image, side, name=self.name, interpolation=interpolation, crop=crop)


def image_list(images: Any) -> list[Any]:
    """Return images as a list, one entry each, without reading a file."""
    shape: tuple[int, ...] = getattr(images, "shape", ())
    is_array = len(shape) == 3 and shape[2] in (
        3,
        4,
    )  # of one image, not of grey ones that are 3 pixels wide
    if is_array or isinstance(images, str | Path | bytes | Image.Image):
        one = repr(str(images)) if isinstance(images, str | Path) else "image"
        raise InputError(f"Images must be a list, even of one image: [{one}].")
    return list(images)


def are_images(given: Any) -> bool:
    """Return whether something is images, by its form: paths, Pillow images or pixels. Otherwise it is features."""
    if hasattr(given, "shape") and hasattr(given, "dtype"):
        is_paths = (
            getattr(given.dtype, "kind", "-") in "OUST" and len(given.shape) == 1
        )  # objects and strings
        return is_paths or (len(given.shape) > 2 and "uint8" in str(given.dtype))
    first = next(iter(given), None) if isinstance(given, Sequence) else None
    return isinstance(first, str | Path | Image.Image) or getattr(first, "ndim", 0) >= 2


def name_of(image: Any, number: int) -> str:
    """Return the name of an image: its path, or its index in the list."""
    if isinstance(image, str | Path):
        return str(image)
    return str(getattr(image, "filename", "") or f"image {number}")


def read_image(image: Any, name: str) -> Content:
    """Read an image, without decoding it; `name` is for messages.

    An image is a path, a Pillow image, or a uint8 array: (height, width, 3), with 4 channels for
    alpha, or (height, width) for grey.
    """
    if isinstance(image, str | Path):
        try:
            data = Path(image).expanduser().read_bytes()
        except OSError as error:
            raise InputError(f"{name} cannot be read: {error.strerror}.") from error
        return Content(
            name, _digest("file", data), lambda pixels: decode(data, name, shrink_to=pixels)
        )
    if not isinstance(image, Image.Image):
        array = np.asarray(without_tensors(image))
        if array.ndim == 3 and array.shape[2] == 1:
            array = array[:, :, 0]
        has_shape = array.ndim == 2 or (array.ndim == 3 and array.shape[2] in (3, 4))
        if array.dtype != np.uint8 or not has_shape or 0 in array.shape:
            raise InputError(
                f"{name} must be a path, a Pillow image, or a uint8 array of shape (height, width, 3), or (height, "
                f"width) for grey (got {array.dtype} {array.shape}). To classify features, set backbone=None."
            )
        image = Image.fromarray(np.ascontiguousarray(array))
    opened = upright_rgb(image, name)
    return Content(name, _digest(f"pixels {opened.size}", opened.tobytes()), lambda _: opened)


def _digest(kind: str, data: bytes) -> str:
    return hashlib.sha256(kind.encode() + b"\0" + hashlib.sha256(data).digest()).hexdigest()


def read_each(
    images: Sequence[Any], make: Callable[[Content], Made]
) -> Iterator[Made | NearshotError]:
    """Read images in threads, a few ahead, and yield what `make` returns for each in order, or its error."""

    def attempt(number: int) -> Made | NearshotError:
        try:
            return make(read_image(images[number], name_of(images[number], number)))
        except NearshotError as error:
            return error

    return map_ahead(ThreadPoolExecutor(THREADS), attempt, range(len(images)), IN_FLIGHT)


def map_ahead(
    threads: ThreadPoolExecutor,
    function: Callable[[Given], Made],
    given: Iterable[Given],
    n_ahead: int,
) -> Generator[Made]:
    """Yield the results of a function in order, computed in threads, a few ahead; then end the threads."""
    waiting: deque[Future[Made]] = deque()
    try:
        for one in given:
            waiting.append(threads.submit(function, one))
            if len(waiting) == n_ahead:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    finally:
        threads.shutdown(cancel_futures=True)


def without_tensors(values: Any) -> Any:
    """Return a tensor, or a list of tensors, as NumPy arrays, and anything else unchanged."""
    if isinstance(values, Tensor):
        plain = values.detach().cpu()
        return (
            plain.float() if plain.dtype == torch.bfloat16 else plain
        ).numpy()  # NumPy has no bfloat16
    if isinstance(values, list | tuple) and any(isinstance(one, Tensor) for one in values):
        return [without_tensors(one) for one in values]
    return values
