"""From the bytes of an image file to an RGB array of a given size, without trusting the file."""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageOps, UnidentifiedImageError

from nearshot.errors import FileFormatError, InputError
from nearshot.quiet import pillow_unheard

__all__ = ["Fit", "Pixels", "decode", "fit_to_square", "upright_rgb"]

Pixels = npt.NDArray[np.uint8]
Fit = Literal["crop", "stretch"]

# A 40,000-pixel panorama is 1.6 billion pixels; a photograph of 100 million is large already.
MOST_PIXELS = 100_000_000
FORMATS = ("PNG", "JPEG", "BMP", "GIF", "TIFF", "WEBP", "PPM")


def decode(data: bytes, name: str) -> Image.Image:
    """Decode an image file to RGB: turned upright by its EXIF data, its first frame, on white where it is transparent.

    One of 32-bit or floating-point numbers is refused: what is black and white in it, the file does not say.

    Args:
        data: the file's content.
        name: what to call it in an error.
    """
    with _refusing(name):
        return upright_rgb(Image.open(io.BytesIO(data), formats=FORMATS), name)


def upright_rgb(image: Image.Image, name: str) -> Image.Image:
    """Return an opened picture as `decode` does, whatever its mode; its pixels may not have been read yet."""
    with _refusing(name):
        width, height = image.size
        if width * height > MOST_PIXELS:
            raise FileFormatError(
                f"{name} has {width}×{height} pixels, over the limit of {MOST_PIXELS:,}. Make it smaller first."
            )
        deep = _has_16_bits(image, name)
        image.load()
        upright = ImageOps.exif_transpose(image)
        return _to_rgb(_with_8_bits(upright) if deep else upright)


@contextmanager
def _refusing(name: str) -> Iterator[None]:
    """Say in one sentence what is wrong with a picture."""
    try:
        with pillow_unheard():
            yield
    except FileFormatError:
        raise
    except UnidentifiedImageError:
        raise FileFormatError(f"{name} is not an image of a known format ({', '.join(FORMATS)}).") from None
    except Image.DecompressionBombError:
        raise FileFormatError(f"{name} has far too many pixels, over the limit of {MOST_PIXELS:,}.") from None
    except (OSError, SyntaxError, ValueError, EOFError, Warning) as error:
        raise FileFormatError(f"{name} is damaged: {error}.") from error


def fit_to_square(image: Image.Image, side: int, fit: Fit = "crop", name: str = "The picture") -> Pixels:
    """Resize a picture to `side` × `side`, bilinearly: (side, side, 3) uint8.

    "crop" brings the shorter side to `side` and cuts out the centre, as the paper's evaluation does; "stretch" changes
    the proportions. A picture of the right size is left as it is; one so long and thin that its shorter side cannot be
    brought to `side` in a sensible memory is refused by its `name`.
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
                    f"shorter side of {side}, over the limit of {MOST_PIXELS:,}. Cut out what it shows first."
                )
            image = image.resize(size, Image.Resampling.BILINEAR)
            left, top = (size[0] - side) // 2, (size[1] - side) // 2
            image = image.crop((left, top, left + side, top + side))
    return np.asarray(image, dtype=np.uint8)


def _has_16_bits(image: Image.Image, name: str) -> bool:
    """Whether a picture is grey with 16 bits; refuse one whose numbers may mean anything."""
    if image.mode.startswith("I;16"):
        return True
    if image.mode not in ("I", "F"):
        return False
    # Some of Pillow's versions put the 16 bits of these formats into 32.
    if image.mode == "I" and image.format in ("PNG", "PPM"):
        return True
    kind = "floating-point" if image.mode == "F" else "32-bit"
    raise FileFormatError(
        f"{name} has {kind} numbers (Pillow's mode {image.mode!r}), of which nobody knows what is black and what is "
        "white. Scale them to 0 to 255 and save it with 8 bits first."
    )


def _with_8_bits(image: Image.Image) -> Image.Image:
    """Return a 16-bit grey picture with 8; Pillow's own conversion would cut off everything over 255."""
    values = np.asarray(image, dtype=np.float64)
    return Image.fromarray(np.clip(values / 257, 0, 255).round().astype(np.uint8))


def _to_rgb(image: Image.Image) -> Image.Image:
    if image.mode in ("RGBA", "LA", "PA") or "transparency" in image.info:
        image = image.convert("RGBA")
        ground = Image.new("RGBA", image.size, "white")
        image = Image.alpha_composite(ground, image)
    return image.convert("RGB")
