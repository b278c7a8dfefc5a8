"""Whatever people have their pictures in, as uint8 squares: files, Pillow's images, arrays, or a mix of them."""

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
from nearshot.estimator.arrays import without_tensors

__all__ = ["Content", "name_of", "picture_list", "read_each", "read_picture"]

THREADS = 4
IN_FLIGHT = 8  # a phone's photograph takes a hundred megabytes while it is read
PREPROCESSING = "centre, bilinear, Pillow; 2"  # what `Content.square` does; another number for every change of it
FOR_FEATURES = "To classify features, give no backbone (backbone=None)."

Made = TypeVar("Made")


class Content:
    """What a picture holds, before it is decoded.

    Attributes:
        name: its path, or "image 3" where it has none.
        digest: a SHA-256 of the file, or of the pixels where there is none: the same for the same content.
    """

    def __init__(self, name: str, kind: str, data: bytes | memoryview, image: Callable[[], Image.Image]) -> None:
        self.name = name
        self.digest = hashlib.sha256(kind.encode() + b"\0" + hashlib.sha256(data).digest()).hexdigest()
        self._image = image

    def square(self, side: int) -> Pixels:
        """Return its centre as (side, side, 3) uint8: upright, in colour, on white, the first frame if it moves."""
        return fit_to_square(self._image(), side, name=self.name)


def picture_list(pictures: Any) -> list[Any]:
    """Return pictures as a list, one entry each, without reading a file; refuse what is not several pictures.

    >>> len(picture_list(["cat.jpg", np.zeros((30, 40, 3), np.uint8)]))
    2
    >>> picture_list("cat.jpg")
    Traceback (most recent call last):
    nearshot.errors.InputError: Give a list of pictures, even of one: ['cat.jpg'].
    """
    if isinstance(pictures, str | Path):
        raise InputError(f"Give a list of pictures, even of one: [{str(pictures)!r}].")
    if isinstance(pictures, bytes | Image.Image):
        raise InputError("Give a list of pictures, even of one: [picture].")
    if hasattr(pictures, "shape") and hasattr(pictures, "ndim") and not _holds_objects(pictures):
        if pictures.ndim not in (3, 4):
            raise InputError(
                f"An array of pictures has shape (picture, height, width, 3), or (picture, height, width) for grey "
                f"ones, not {tuple(pictures.shape)}. {FOR_FEATURES}"
            )
        pictures = _array(pictures)
        if pictures.ndim == 3 and pictures.shape[2] in (3, 4):
            raise InputError(
                f"An array of shape {pictures.shape} may be one colour picture or {pictures.shape[0]} grey ones. "
                "Give [array] for the one, or a list of the many."
            )
    try:
        return list(pictures)
    except TypeError:
        raise InputError(f"Give a list of pictures, not {type(pictures).__name__}.") from None


def name_of(picture: Any, number: int) -> str:
    """Return what to call a picture: its path, or its place in the list, counted from 0."""
    if isinstance(picture, str | Path):
        return str(picture)
    return str(getattr(picture, "filename", "") or f"image {number}")


def read_picture(picture: Any, name: str) -> Content:
    """Read a picture, without decoding it.

    Args:
        picture: a path, a Pillow image, or a uint8 array (height, width, 3), with 4 for colour and alpha, or
            (height, width) for grey.
        name: what to call it in an error.
    """
    if isinstance(picture, str | Path):
        data = _read(Path(picture), name)
        return Content(name, "file", data, lambda: decode(data, name))
    image = upright_rgb(picture if isinstance(picture, Image.Image) else _image(_array(picture, name), name), name)
    return Content(name, f"pixels {image.size}", image.tobytes(), lambda: image)


def read_each(pictures: Sequence[Any], make: Callable[[Content], Made]) -> Iterator[Made | NearshotError]:
    """Read pictures and make something of each, in their order, in several threads and a little ahead.

    A picture that cannot be read is there as its error: a thousand others need not wait for it.
    """

    def attempt(number: int) -> Made | NearshotError:
        name = name_of(pictures[number], number)
        try:
            return make(read_picture(pictures[number], name))
        except (FileFormatError, InputError) as error:
            return error
        except MemoryError:
            return InputError(f"{name} takes more memory than there is. Make it smaller first.")

    with ThreadPoolExecutor(THREADS) as threads:
        waiting: deque[Future[Made | NearshotError]] = deque()
        try:
            for number in range(len(pictures)):
                waiting.append(threads.submit(attempt, number))
                if len(waiting) == IN_FLIGHT:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        finally:
            threads.shutdown(cancel_futures=True)


def _read(path: Path, name: str) -> bytes:
    path = path.expanduser()
    if os.path.isdir(path):  # noqa: PTH112 (Path's own raises where a folder above is locked)
        raise InputError(f"{name} is a folder, not a picture.")
    try:
        return path.read_bytes()
    except FileNotFoundError:
        raise InputError(f"There is no file {name}.") from None
    except (OSError, ValueError) as error:  # the second: a name that no file can have
        raise InputError(f"{name} cannot be read: {getattr(error, 'strerror', None) or error}.") from error


def _holds_objects(array: Any) -> bool:
    """Whether an array or a column of a table holds paths or pictures rather than pixels."""
    return getattr(getattr(array, "dtype", None), "kind", "") in ("O", "U", "S", "T")


def _array(values: Any, name: str = "The pictures") -> Pixels:
    """Return pixels as an array, from whatever can be one; anything but whole numbers up to 255 is refused."""
    try:
        array = np.asarray(without_tensors(values))
    except (TypeError, ValueError) as error:
        raise InputError(f"{name} cannot be made an array: {error}.") from error
    if array.dtype == object or array.dtype.kind in "USM":
        raise InputError(f"{name} must be a path, a Pillow image or a uint8 array, not {type(values).__name__}.")
    if array.ndim == 1:
        raise InputError(f"{name} must be a picture, not {array.size} numbers in a row. {FOR_FEATURES}")
    if array.dtype != np.uint8:
        raise InputError(
            f"{name} must be uint8, 0 to 255, not {array.dtype}. Scale and round them first; normalising is done here."
        )
    return array


def _image(array: Pixels, name: str) -> Image.Image:
    if array.ndim == 3 and array.shape[2] == 1:
        array = array[:, :, 0]
    if not (array.ndim == 2 or (array.ndim == 3 and array.shape[2] in (3, 4))) or 0 in array.shape:
        hint = " Put the channels last." if array.ndim == 3 and array.shape[0] in (1, 3, 4) else ""
        raise InputError(
            f"{name} must have shape (height, width, 3), or (height, width) for a grey one, not {array.shape}.{hint}"
        )
    return Image.fromarray(np.ascontiguousarray(array))
