"""Read images from paths, Pillow images and arrays, as uint8 squares."""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from nearshot.data.images import Interpolation, Pixels, decode, fit_to_square, upright_rgb
from nearshot.errors import InputError, NearshotError

THREADS = 4
IN_FLIGHT = 8  # a phone's photo takes a hundred megabytes while it is read
PREPROCESSING = "centre, Pillow; 3"  # what `Content.square` does; increase the number with every change
SPARE_PIXELS = 2  # a JPEG is decoded at a fraction of its size that leaves this many times the pixels along an axis
HOLDS_PATHS = ("O", "U", "S", "T")  # NumPy's kinds of objects and strings
FOR_FEATURES = "To classify features, set backbone=None."

Made = TypeVar("Made")


@dataclass(frozen=True)
class Content:
    """The content of an image before it is decoded."""

    name: str  # in messages
    digest: str  # a SHA-256 of its file or pixels
    image: Callable[[int], Image.Image]  # decodes it; its shorter side keeps that many pixels, if it has as many

    def square(self, side: int, interpolation: Interpolation = "bilinear", crop: float = 1.0) -> Pixels:
        """Return its centre as (side, side, 3) uint8 RGB: upright, on white, the first frame of an animation.

        `crop` is the fraction of the shorter side that the square shows; see `fit_to_square`.
        """
        image = self.image(SPARE_PIXELS * round(side / crop))
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
    return list(images)


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
        try:
            data = Path(image).expanduser().read_bytes()
        except OSError as error:
            raise InputError(f"{name} cannot be read: {error.strerror}.") from error
        return Content(name, _digest("file", data), lambda pixels: decode(data, name, shrink_to=pixels))
    if not isinstance(image, Image.Image):
        array = np.asarray(without_tensors(image))
        if array.ndim == 3 and array.shape[2] == 1:
            array = array[:, :, 0]
        has_shape = array.ndim == 2 or (array.ndim == 3 and array.shape[2] in (3, 4))
        if array.dtype != np.uint8 or not has_shape or 0 in array.shape:
            raise InputError(
                f"{name} must be a path, a Pillow image, or a uint8 array of shape (height, width, 3), or (height, "
                f"width) for grey (got {array.dtype} {array.shape}). {FOR_FEATURES}"
            )
        image = Image.fromarray(np.ascontiguousarray(array))
    opened = upright_rgb(image, name)
    return Content(name, _digest(f"pixels {opened.size}", opened.tobytes()), lambda _: opened)


def _digest(kind: str, data: bytes) -> str:
    return hashlib.sha256(kind.encode() + b"\0" + hashlib.sha256(data).digest()).hexdigest()


def read_each(images: Sequence[Any], make: Callable[[Content], Made]) -> Iterator[Made | NearshotError]:
    """Read images in threads, a few ahead, and yield what `make` returns for each in order, or its error."""

    def attempt(number: int) -> Made | NearshotError:
        try:
            return make(read_image(images[number], name_of(images[number], number)))
        except NearshotError as error:
            return error

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


def without_tensors(values: Any) -> Any:
    """Return a tensor, or a list of tensors, as NumPy arrays, and anything else unchanged."""
    if isinstance(values, Tensor):
        plain = values.detach().cpu()
        return (plain.float() if plain.dtype == torch.bfloat16 else plain).numpy()  # NumPy has no bfloat16
    if isinstance(values, list | tuple) and any(isinstance(one, Tensor) for one in values):
        return [without_tensors(one) for one in values]
    return values
