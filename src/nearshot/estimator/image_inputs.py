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
import torch
from PIL import Image
from torch import Tensor

from nearshot.data.images import Interpolation, Pixels, decode, fit_to_square, upright_rgb
from nearshot.errors import FileFormatError, InputError, MissingExtraError, NearshotError

THREADS = 4
IN_FLIGHT = 8  # a phone's photo takes a hundred megabytes while it is read
PREPROCESSING = "centre, Pillow; 3"  # what `Content.square` does; increase the number with every change
SPARE_PIXELS = 2  # a JPEG is decoded at a fraction of its size that leaves this many times the pixels along an axis
HOLDS_PATHS = ("O", "U", "S", "T")  # NumPy's kinds of objects and strings
FOR_FEATURES = "To classify features, set backbone=None."

Made = TypeVar("Made")


class Content:
    """The content of an image before it is decoded, with a SHA-256 `digest` of its file or pixels.

    `image` decodes it; its argument is the number of pixels that the shorter side should keep, if it has as many.
    """

    def __init__(self, name: str, kind: str, data: bytes | memoryview, image: Callable[[int], Image.Image]) -> None:
        self.name = name
        self.digest = hashlib.sha256(kind.encode() + b"\0" + hashlib.sha256(data).digest()).hexdigest()
        self._image = image

    def square(self, side: int, *, interpolation: Interpolation = "bilinear", crop: float = 1.0) -> Pixels:
        """Return its centre as (side, side, 3) uint8 RGB: upright, on white, the first frame of an animation.

        `crop` is the fraction of the shorter side that the square shows; see `fit_to_square`.
        """
        image = self._image(SPARE_PIXELS * round(side / crop))
        return fit_to_square(image, side, name=self.name, interpolation=interpolation, crop=crop)


def image_list(images: Any) -> list[Any]:
    """Return images as a list, one entry each, without reading a file."""
    if isinstance(images, str | Path | bytes | Image.Image):
        one = repr(str(images)) if isinstance(images, str | Path) else "image"
        raise InputError(f"Images must be a list, even of one image: [{one}].")
    if hasattr(images, "shape") and getattr(images.dtype, "kind", "") not in HOLDS_PATHS:
        images = np.asarray(without_tensors(images))
        if images.dtype != np.uint8 or images.ndim not in (3, 4) or (images.ndim == 3 and images.shape[2] in (3, 4)):
            raise InputError(
                "An array of images must be uint8 of shape (image, height, width, 3), or (image, height, width) for "
                f"grey images (got {images.dtype} {images.shape}). Give one image as [array]. {FOR_FEATURES}"
            )
    try:
        return list(images)
    except TypeError:
        raise InputError(f"Images must be a list (got {type(images).__name__}).") from None


def are_images(given: Any) -> bool:
    """Return whether something is images, by its form: paths, Pillow images or pixels. Otherwise it is features."""
    if hasattr(given, "shape") and hasattr(given, "dtype"):
        is_paths = getattr(given.dtype, "kind", "") in HOLDS_PATHS and len(given.shape) == 1
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

    An image is a path, a Pillow image, or a uint8 array: (height, width, 3), with 4 channels for alpha, or (height,
    width) for grey.
    """
    if isinstance(image, str | Path):
        data = _read(Path(image), name)
        return Content(name, "file", data, lambda pixels: decode(data, name, shrink_to=pixels))
    opened = upright_rgb(image if isinstance(image, Image.Image) else _from_array(image, name), name)
    return Content(name, f"pixels {opened.size}", opened.tobytes(), lambda _: opened)


def read_each(images: Sequence[Any], make: Callable[[Content], Made]) -> Iterator[Made | NearshotError]:
    """Read images in threads, a few ahead, and yield what `make` returns for each in order, or its error."""

    def attempt(number: int) -> Made | NearshotError:
        name = name_of(images[number], number)
        try:
            return make(read_image(images[number], name))
        except (FileFormatError, InputError, MissingExtraError) as error:
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


def without_tensors(values: Any) -> Any:
    """Return a tensor, or a list of tensors, as NumPy arrays, and anything else unchanged."""
    if isinstance(values, Tensor):
        plain = values.detach().cpu()
        return (plain.float() if plain.dtype == torch.bfloat16 else plain).numpy()  # NumPy has no bfloat16
    if isinstance(values, list | tuple) and any(isinstance(one, Tensor) for one in values):
        return [without_tensors(one) for one in values]
    return values


def _from_array(values: Any, name: str) -> Image.Image:
    try:
        array = np.asarray(without_tensors(values))
    except (TypeError, ValueError) as error:
        raise InputError(f"{name} cannot be converted to an array: {error}.") from error
    if array.ndim == 3 and array.shape[2] == 1:
        array = array[:, :, 0]
    is_image = array.ndim == 2 or (array.ndim == 3 and array.shape[2] in (3, 4))
    if array.dtype != np.uint8 or not is_image or 0 in array.shape:
        got = f"{array.dtype} {array.shape}" if array.ndim else type(values).__name__
        raise InputError(
            f"{name} must be a path, a Pillow image, or a uint8 array of shape (height, width, 3), or (height, width) "
            f"for grey (got {got}). {FOR_FEATURES}"
        )
    return Image.fromarray(np.ascontiguousarray(array))
