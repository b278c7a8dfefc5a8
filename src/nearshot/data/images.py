"""Decode image files safely, and resize them to a square.

Pillow warns about odd metadata, such as a damaged EXIF tag, although the image is fine. A warnings filter silences
this once, when this module is imported. It comes last, so that every filter that a user sets takes precedence.
"""

from __future__ import annotations

import io
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageOps, UnidentifiedImageError

from nearshot.errors import FileFormatError, InputError

Pixels = npt.NDArray[np.uint8]
Fit = Literal["crop", "stretch"]

MOST_PIXELS = 100_000_000
FORMATS = ("PNG", "JPEG", "BMP", "GIF", "TIFF", "WEBP", "PPM")


def ignore_metadata_warnings() -> None:
    """Ignore Pillow's warnings about metadata in this process, unless another filter matches them first."""
    warnings.filterwarnings("ignore", module=r"PIL\.", append=True)


ignore_metadata_warnings()


def decode(data: bytes, name: str) -> Image.Image:
    """Decode an image file to RGB: rotated by its EXIF orientation, its first frame, on white where it is transparent.

    Images of 32-bit or floating-point numbers are refused, since their range of values is unknown. `name` is the file's
    name in error messages.
    """
    with _naming_the_image(name):
        return upright_rgb(Image.open(io.BytesIO(data), formats=FORMATS), name)


def upright_rgb(image: Image.Image, name: str) -> Image.Image:
    """Convert an opened image of any mode as `decode` does; its pixels may not have been loaded yet."""
    with _naming_the_image(name):
        width, height = image.size
        if width * height > MOST_PIXELS:
            raise FileFormatError(
                f"{name} has {width}×{height} pixels, over the limit of {MOST_PIXELS:,}. Make it smaller first."
            )
        deep = _has_16_bits(image, name)
        image.load()
        image = ImageOps.exif_transpose(image)
        if deep:  # Pillow's own conversion to 8 bits would clip everything over 255
            values = np.asarray(image, dtype=np.float64) / 257
            image = Image.fromarray(np.clip(values, 0, 255).round().astype(np.uint8))
        if image.mode in ("RGBA", "LA", "PA") or "transparency" in image.info:
            image = image.convert("RGBA")
            image = Image.alpha_composite(Image.new("RGBA", image.size, "white"), image)
        return image.convert("RGB")


@contextmanager
def _naming_the_image(name: str) -> Iterator[None]:
    """Turn every error of Pillow into one sentence that names the image."""
    try:
        yield
    except FileFormatError:
        raise
    except UnidentifiedImageError:
        raise FileFormatError(f"{name} is not an image of a known format ({', '.join(FORMATS)}).") from None
    except Image.DecompressionBombError:
        raise FileFormatError(f"{name} has far too many pixels, over the limit of {MOST_PIXELS:,}.") from None
    except (OSError, SyntaxError, ValueError, EOFError, Warning) as error:
        raise FileFormatError(f"{name} is damaged: {error}.") from error


def fit_to_square(image: Image.Image, side: int, fit: Fit = "crop", name: str = "The image") -> Pixels:
    """Resize an image to `side` × `side`, bilinearly: (side, side, 3) uint8.

    "crop" scales the shorter side to `side` and cuts out the centre, as the paper's evaluation does; "stretch" changes
    the proportions. An image of this size is unchanged. A very long and thin one, which would need too much memory,
    is refused.
    """
    if fit not in ("crop", "stretch"):
        raise InputError(f"fit must be 'crop' or 'stretch', not {fit!r}.")
    if image.size != (side, side):
        if fit == "stretch":
            image = image.resize((side, side), Image.Resampling.BILINEAR)
        else:
            width, height = image.size
            scale = side / min(width, height)
            size = (max(side, round(width * scale)), max(side, round(height * scale)))
            if size[0] * size[1] > MOST_PIXELS:
                raise FileFormatError(
                    f"{name} is too long and thin: its {width}×{height} pixels would be {size[0]}×{size[1]} with a "
                    f"shorter side of {side}, over the limit of {MOST_PIXELS:,}. Crop it first."
                )
            image = image.resize(size, Image.Resampling.BILINEAR)
            left, top = (size[0] - side) // 2, (size[1] - side) // 2
            image = image.crop((left, top, left + side, top + side))
    return np.asarray(image, dtype=np.uint8)


def _has_16_bits(image: Image.Image, name: str) -> bool:
    """Return whether an image is grey with 16 bits; refuse one whose range of values is unknown."""
    # Some versions of Pillow decode the 16 bits of PNG and PPM into 32.
    if image.mode.startswith("I;16") or (image.mode == "I" and image.format in ("PNG", "PPM")):
        return True
    if image.mode not in ("I", "F"):
        return False
    kind = "floating-point" if image.mode == "F" else "32-bit"
    raise FileFormatError(
        f"{name} has {kind} numbers (Pillow's mode {image.mode!r}), and their range is unknown. Scale them to 0 to 255 "
        "and save the image with 8 bits first."
    )
