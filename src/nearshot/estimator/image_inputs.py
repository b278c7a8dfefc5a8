"""Read images from paths, Pillow images and arrays, as uint8 squares."""

from __future__ import annotations

import hashlib
import os
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from PIL import Image

from nearshot.data.images import Pixels, decode, fit_to_square, upright_rgb
from nearshot.errors import FileFormatError, InputError, NearshotError
from nearshot.estimator.settings import without_tensors

__all__ = ["Content", "image_list", "name_of", "read_each", "read_image"]

THREADS = 4
IN_FLIGHT = 8  # a phone's photo takes a hundred megabytes while it is read
PREPROCESSING = "centre, bilinear, Pillow; 2"  # what `Content.square` does; increase the number with every change
FOR_FEATURES = "To classify features, set backbone=None."

Made = TypeVar("Made")


class Content:
    """The content of an image before it is decoded, with a SHA-256 `digest` of its file or pixels."""

    def __init__(self, name: str, kind: str, data: bytes | memoryview, image: Callable[[], Image.Image]) -> None:
        self.name = name
        self.digest = hashlib.sha256(kind.encode() + b"\0" + hashlib.sha256(data).digest()).hexdigest()
        self._image = image

    def square(self, side: int) -> Pixels:
        """Return its centre as (side, side, 3) uint8 RGB: upright, on white, the first frame of an animation."""
        return fit_to_square(self._image(), side, name=self.name)


def image_list(images: Any) -> list[Any]:
    """Return images as a list, one entry each, without reading a file.

    >>> len(image_list(["cat.jpg", np.zeros((30, 40, 3), np.uint8)]))
    2
    >>> image_list("cat.jpg")
    Traceback (most recent call last):
    nearshot.errors.InputError: Images must be a list, even of one image: ['cat.jpg'].
    """
    if isinstance(images, str | Path):
        raise InputError(f"Images must be a list, even of one image: [{str(images)!r}].")
    if isinstance(images, bytes | Image.Image):
        raise InputError("Images must be a list, even of one image: [image].")
    holds_objects = getattr(getattr(images, "dtype", None), "kind", "") in ("O", "U", "S", "T")  # paths or images
    if hasattr(images, "shape") and hasattr(images, "ndim") and not holds_objects:
        if images.ndim not in (3, 4):
            raise InputError(
                "An array of images must have shape (image, height, width, 3), or (image, height, width) for grey "
                f"images (got {tuple(images.shape)}). {FOR_FEATURES}"
            )
        images = _array(images)
        if images.ndim == 3 and images.shape[2] in (3, 4):
            raise InputError(
                f"An array of shape {images.shape} is ambiguous: one colour image or {images.shape[0]} grey ones. Give "
                "[array] for one image, or a list of the grey ones."
            )
    try:
        return list(images)
    except TypeError:
        raise InputError(f"Images must be a list (got {type(images).__name__}).") from None


def name_of(image: Any, number: int) -> str:
    """Return the name of an image: its path, or its index in the list."""
    if isinstance(image, str | Path):
        return str(image)
    return str(getattr(image, "filename", "") or f"image {number}")


def read_image(image: Any, name: str) -> Content:
    """Read an image, without decoding it.

    Args:
        image: a path, a Pillow image, or a uint8 array (height, width, 3), with 4 channels for alpha, or (height,
            width) for grey.
        name: its name in messages.
    """
    if isinstance(image, str | Path):
        data = _read(Path(image), name)
        return Content(name, "file", data, lambda: decode(data, name))
    opened = upright_rgb(image if isinstance(image, Image.Image) else _from_array(_array(image, name), name), name)
    return Content(name, f"pixels {opened.size}", opened.tobytes(), lambda: opened)


def read_each(images: Sequence[Any], make: Callable[[Content], Made]) -> Iterator[Made | NearshotError]:
    """Read images in threads, a few ahead, and yield what `make` returns for each, in order.

    The entry of an image that cannot be read is its error.
    """

    def attempt(number: int) -> Made | NearshotError:
        name = name_of(images[number], number)
        try:
            return make(read_image(images[number], name))
        except (FileFormatError, InputError) as error:
            return error
        except MemoryError:
            return InputError(f"{name} needs more memory than is available. Make it smaller.")

    with ThreadPoolExecutor(THREADS) as threads:
        waiting: deque[Future[Made | NearshotError]] = deque()
        try:
            for number in range(len(images)):
                waiting.append(threads.submit(attempt, number))
                if len(waiting) == IN_FLIGHT:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        finally:
            threads.shutdown(cancel_futures=True)


def _read(path: Path, name: str) -> bytes:
    path = path.expanduser()
    if os.path.isdir(path):  # noqa: PTH112 (Path's own raises if a folder above is locked)
        raise InputError(f"{name} is a folder, not an image.")
    try:
        return path.read_bytes()
    except FileNotFoundError:
        raise InputError(f"There is no file {name}.") from None
    except (OSError, ValueError) as error:  # ValueError: an invalid name
        raise InputError(f"{name} cannot be read: {getattr(error, 'strerror', None) or error}.") from error


def _array(values: Any, name: str = "An array of images") -> Pixels:
    """Return pixels as a uint8 array."""
    try:
        array = np.asarray(without_tensors(values))
    except (TypeError, ValueError) as error:
        raise InputError(f"{name} cannot be converted to an array: {error}.") from error
    if array.dtype == object or array.dtype.kind in "USM":
        raise InputError(f"{name} must be a path, a Pillow image or a uint8 array (got {type(values).__name__}).")
    if array.ndim == 1:
        raise InputError(f"{name} must be an image (got {array.size} numbers in a row). {FOR_FEATURES}")
    if array.dtype != np.uint8:
        raise InputError(f"{name} must be uint8, 0 to 255 (got {array.dtype}). Do not normalise images yourself.")
    return array


def _from_array(array: Pixels, name: str) -> Image.Image:
    if array.ndim == 3 and array.shape[2] == 1:
        array = array[:, :, 0]
    if not (array.ndim == 2 or (array.ndim == 3 and array.shape[2] in (3, 4))) or 0 in array.shape:
        hint = " Put the channels last." if array.ndim == 3 and array.shape[0] in (1, 3, 4) else ""
        raise InputError(
            f"{name} must have shape (height, width, 3), or (height, width) for grey (got {array.shape}).{hint}"
        )
    return Image.fromarray(np.ascontiguousarray(array))
