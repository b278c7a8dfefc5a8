"""Read images: files, Pillow images and arrays become uint8 squares."""

import hashlib
import os
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from nearshot.data.images import (
    MOST_FILE_BYTES,
    Interpolation,
    Pixels,
    decoded,
    fit_to_square,
    upright_rgb,
    without_frames,
)
from nearshot.errors import InputError, NearshotError
from nearshot.io import read_file
from nearshot.text import printable

N_THREADS = 4
N_IN_FLIGHT = 8  # a phone's photo takes a hundred megabytes while it is read
# What `ImageContent.square` does: increase the number with every change.
PREPROCESSING = "centre, Pillow; 4"
# A JPEG is decoded at a fraction of its size that leaves this many times the pixels along an axis.
SPARE_PIXELS = 2

TEXT_KINDS = ("O", "U", "S", "T")  # NumPy's kinds of objects and strings

Item = TypeVar("Item")
Result = TypeVar("Result")


@dataclass(frozen=True)
class ImageContent:
    """The content of an image before it is decoded.

    Attributes:
        name: what messages call it.
        digest: a SHA-256 of its file or pixels.
        decoded: gives the image for a while; its shorter side keeps at least the given number of
            pixels, if it has as many.
    """

    name: str
    digest: str
    decoded: Callable[[int], AbstractContextManager[Image.Image]]

    def square(
        self, side: int, interpolation: Interpolation = "bilinear", crop: float = 1.0
    ) -> Pixels:
        """Return its centre, (side, side, 3) uint8 RGB: upright, and on white if transparent.

        Of an animation it is the first frame. `crop` is the fraction of the shorter side that the
        square shows; see `fit_to_square`.
        """
        with self.decoded(SPARE_PIXELS * round(side / crop)) as image:
            return fit_to_square(
                image, side, name=self.name, interpolation=interpolation, crop=crop
            )


def image_list(images: Any) -> list[Any]:
    """Return images as a list, one entry each, without reading a file."""
    images = only_column(images)
    shape: tuple[int, ...] = getattr(images, "shape", ())
    # One image, rather than grey ones that are 3 or 4 pixels wide.
    is_image_array = len(shape) == 3 and shape[2] in (3, 4)
    if is_image_array or isinstance(images, str | Path | bytes | Image.Image):
        example = repr(str(images)) if isinstance(images, str | Path) else "image"
        raise InputError(f"Images must be a list, even of one image: [{example}].")
    return list(images)


def are_images(values: Any) -> bool:
    """Return whether values are images by their form: paths, Pillow images or pixels.

    Otherwise they are features.
    """
    values = only_column(values)
    if hasattr(values, "shape") and hasattr(values, "dtype"):
        kind = getattr(values.dtype, "kind", "")
        holds_objects_or_strings = kind in TEXT_KINDS and len(values.shape) == 1
        holds_pixels = len(values.shape) > 2 and "uint8" in str(values.dtype)
        return holds_objects_or_strings or holds_pixels
    first = next(iter(values), None) if isinstance(values, Sequence) else None
    return isinstance(first, str | Path | Image.Image) or getattr(first, "ndim", 0) >= 2


def only_column(values: Any) -> Any:
    """Return the only column of a table, which holds one image a row; other values unchanged."""
    shape: tuple[int, ...] = getattr(values, "shape", ())
    if len(shape) != 2 or shape[1] != 1:
        return values
    if hasattr(values, "iloc"):  # of pandas
        return values.iloc[:, 0]
    holds_objects_or_strings = getattr(getattr(values, "dtype", None), "kind", "") in TEXT_KINDS
    return values[:, 0] if holds_objects_or_strings else values


def image_name(image: Any, number: int) -> str:
    """Return the name of an image: its path, or its index in the list."""
    if isinstance(image, str | Path):
        return str(image)
    return str(getattr(image, "filename", "") or f"image {number}")


def read_image(image: Any, name: str) -> ImageContent:
    """Read an image, without decoding it; `name` is for messages.

    An image is a path, a Pillow image, or a uint8 array: (height, width, 3), with 4 channels for
    alpha, or (height, width) for grey.
    """
    if isinstance(image, str | Path):
        return _read_file(Path(image), name)
    if not isinstance(image, Image.Image):
        image = _image_of_array(image, name)
    upright = upright_rgb(image, name)
    digest = _digest(f"pixels {upright.size}", upright.tobytes())
    return ImageContent(name, digest, lambda least_pixels: nullcontext(upright))


def _read_file(path: Path, name: str) -> ImageContent:
    try:
        # Unknown users, as in ~user, are kept.
        data = read_file(os.path.expanduser(path), most_bytes=MOST_FILE_BYTES)  # noqa: PTH111
    except OSError as error:
        raise InputError(f"{printable(name)} cannot be read: {error.strerror}.") from error

    def decoded_file(least_pixels: int) -> AbstractContextManager[Image.Image]:
        return decoded(data, name, shrink_to=least_pixels)

    return ImageContent(name, _digest("file", data), decoded_file)


def _image_of_array(values: Any, name: str) -> Image.Image:
    array = np.asarray(without_tensors(values))
    if array.ndim == 3 and array.shape[2] == 1:
        array = array[:, :, 0]
    is_grey = array.ndim == 2
    is_colour = array.ndim == 3 and array.shape[2] in (3, 4)
    if array.dtype != np.uint8 or not (is_grey or is_colour) or array.size == 0:
        raise InputError(
            f"{name} must be a path, a Pillow image, or a uint8 array of shape (height, width, 3), "
            f"or (height, width) for grey (got {array.dtype} {array.shape}). "
            "To classify features, set backbone=None."
        )
    return Image.fromarray(np.ascontiguousarray(array))


def _digest(kind: str, data: bytes) -> str:
    return hashlib.sha256(kind.encode() + b"\0" + hashlib.sha256(data).digest()).hexdigest()


def read_each(
    images: Sequence[Any], function: Callable[[ImageContent], Result]
) -> Iterator[Result | NearshotError]:
    """Yield what a function returns for the content of each image, in order, or the error.

    Images are read in threads, a few ahead.
    """

    def result_or_error(number: int) -> Result | NearshotError:
        try:
            content = read_image(images[number], image_name(images[number], number))
            return function(content)
        except NearshotError as error:
            return without_frames(error)
        except MemoryError:
            name = image_name(images[number], number)
            return InputError(f"{name} needs more memory than there is. Make it smaller first.")

    threads = ThreadPoolExecutor(N_THREADS)
    return map_ahead(threads, result_or_error, range(len(images)), N_IN_FLIGHT)


def map_ahead(
    threads: ThreadPoolExecutor,
    function: Callable[[Item], Result],
    items: Iterable[Item],
    n_ahead: int,
) -> Generator[Result]:
    """Yield the results of a function in order, computed in threads, a few ahead.

    The threads end with the last result.
    """
    waiting: deque[Future[Result]] = deque()
    try:
        for item in items:
            waiting.append(threads.submit(function, item))
            if len(waiting) == n_ahead:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    finally:
        threads.shutdown(cancel_futures=True)


def without_tensors(values: Any) -> Any:
    """Return a tensor, or a list of tensors, as NumPy arrays, and anything else unchanged."""
    if isinstance(values, Tensor):
        tensor = values.detach().cpu()
        if tensor.dtype == torch.bfloat16:  # NumPy has no bfloat16
            tensor = tensor.float()
        return tensor.numpy()
    if isinstance(values, list | tuple) and any(isinstance(value, Tensor) for value in values):
        return [without_tensors(value) for value in values]
    return values
