"""Decode image files safely, and resize them to a square.

Pillow warns about odd metadata, such as a damaged EXIF tag, although the image is fine. A warnings
filter silences this once, when this module is imported. It comes last, so that every filter that a
user sets takes precedence.
"""

import io
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Literal

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageOps, UnidentifiedImageError

from nearshot.errors import FileFormatError, InputError, MissingExtraError

Pixels = npt.NDArray[np.uint8]
Fit = Literal["crop", "stretch"]
Interpolation = Literal["bilinear", "bicubic"]

MOST_PIXELS = 100_000_000
FORMATS = ("PNG", "JPEG", "BMP", "GIF", "TIFF", "WEBP", "PPM")
# The key of the full size in Pillow's metadata, for a JPEG that was decoded at a fraction of it.
FULL_SIZE = "nearshot_full_size"
# The brands of files of the format HEIC.
HEIF_BRANDS = (b"heic", b"heix", b"heim", b"heis", b"hevc", b"hevx", b"mif1", b"msf1")
FILTERS = {"bilinear": Image.Resampling.BILINEAR, "bicubic": Image.Resampling.BICUBIC}


def ignore_metadata_warnings() -> None:
    """Ignore Pillow's warnings about metadata, unless another filter matches them first."""
    warnings.filterwarnings("ignore", module=r"PIL\.", append=True)


ignore_metadata_warnings()


def decode(data: bytes, name: str, *, shrink_to: int | None = None) -> Image.Image:
    """Decode an image file to RGB: its first frame, upright, on white where it is transparent.

    It is rotated by its EXIF orientation. Images of 32-bit or floating-point numbers are refused,
    since their range of values is unknown. HEIC photos need the extra `photos`.

    Args:
        data: the file's content.
        name: the file's name, for error messages.
        shrink_to: decode a JPEG at a half, a quarter or an eighth of its size, which is faster, as
            long as its shorter side keeps that many pixels.
    """
    formats: tuple[str, ...] = FORMATS
    if data[4:8] == b"ftyp" and data[8:12] in HEIF_BRANDS:
        if not _can_read_heif():
            raise MissingExtraError(
                f"{name} is a HEIC photo. To read it: pip install 'nearshot[photos]'."
            )
        formats = ("HEIF",)
    with _naming_the_image(name):
        return upright_rgb(Image.open(io.BytesIO(data), formats=formats), name, shrink_to=shrink_to)


@cache
def _can_read_heif() -> bool:
    """Return whether pillow-heif is installed, and let Pillow use it."""
    try:
        import pillow_heif  # noqa: PLC0415 (an extra)
    except ImportError:
        return False
    pillow_heif.register_heif_opener(thumbnails=False)
    return True


def readable_formats() -> str:
    """Return the names of the formats that can be read, for messages."""
    formats = (*FORMATS, "HEIC") if _can_read_heif() else FORMATS
    return ", ".join(formats)


def upright_rgb(image: Image.Image, name: str, *, shrink_to: int | None = None) -> Image.Image:
    """Convert an opened image of any mode as `decode` does; its pixels need not be loaded yet."""
    with _naming_the_image(name):
        width, height = image.size
        if width * height > MOST_PIXELS:
            raise FileFormatError(
                f"{name} has {width}×{height} pixels, over the limit of {MOST_PIXELS:,}. "
                "Make it smaller first."
            )
        # Some versions of Pillow decode the 16 bits of grey PNG and PPM files into 32.
        is_grey_file = image.format in ("PNG", "PPM")
        has_16_bits = image.mode.startswith("I;16") or (image.mode == "I" and is_grey_file)
        if image.mode in ("I", "F") and not has_16_bits:
            kind = "floating-point" if image.mode == "F" else "32-bit"
            raise FileFormatError(
                f"{name} has {kind} numbers, and their range is unknown. Scale them to 0 to 255 "
                "and save the image with 8 bits first."
            )
        if shrink_to is not None:
            image.draft(None, (shrink_to, shrink_to))
        shrunk_size = image.size
        image.load()
        image = ImageOps.exif_transpose(image)
        if has_16_bits:  # Pillow's own conversion to 8 bits would clip everything over 255
            values = np.asarray(image, dtype=np.float64) / 257
            image = Image.fromarray(np.clip(values, 0, 255).round().astype(np.uint8))
        if image.mode in ("RGBA", "LA", "PA") or "transparency" in image.info:
            image = image.convert("RGBA")
            image = Image.alpha_composite(Image.new("RGBA", image.size, "white"), image)
        image = image.convert("RGB")
        if shrunk_size != (width, height):
            is_upright = image.size == shrunk_size
            image.info[FULL_SIZE] = (width, height) if is_upright else (height, width)
        return image


@contextmanager
def _naming_the_image(name: str) -> Iterator[None]:
    """Turn every error of Pillow into one sentence that names the image."""
    try:
        yield
    except FileFormatError:
        raise
    except UnidentifiedImageError:
        raise FileFormatError(
            f"{name} is not an image of a known format ({readable_formats()})."
        ) from None
    except Image.DecompressionBombError:
        raise FileFormatError(
            f"{name} has far too many pixels, over the limit of {MOST_PIXELS:,}."
        ) from None
    except (OSError, SyntaxError, ValueError, EOFError, Warning) as error:
        if "truncated" in str(error).lower():
            raise FileFormatError(f"{name} is incomplete; copy it again.") from error
        raise FileFormatError(f"{name} is damaged: {error}.") from error


def fit_to_square(
    image: Image.Image,
    side: int,
    fit: Fit = "crop",
    name: str = "The image",
    *,
    interpolation: Interpolation = "bilinear",
    crop: float = 1.0,
) -> Pixels:
    """Resize an image to `side` × `side`: (side, side, 3) uint8.

    An image of this size is unchanged. A very long and thin one, which would need too much memory,
    is refused.

    Args:
        image: the image, in RGB.
        side: the side of the square.
        fit: "crop" scales the shorter side to `side / crop` and cuts out the centre; "stretch"
            changes the proportions.
        name: the image's name, for error messages.
        interpolation: "bilinear" or "bicubic".
        crop: the share of the shorter side that the square shows; with 1.0 it is as large as
            possible, as in the paper's evaluation.
    """
    if fit not in ("crop", "stretch"):
        raise InputError(f"fit must be 'crop' or 'stretch', not {fit!r}.")
    resampling = FILTERS[interpolation]
    if image.size == (side, side):
        square = image
    elif fit == "stretch":
        square = image.resize((side, side), resampling)
    else:
        square = _cropped(image, side, name, resampling, crop)
    return np.asarray(square, dtype=np.uint8)


def _cropped(
    image: Image.Image, side: int, name: str, resampling: Image.Resampling, crop: float
) -> Image.Image:
    """Return the centre of an image whose shorter side is scaled to `side / crop`."""
    full_width, full_height = image.info.get(FULL_SIZE, image.size)
    shorter = round(side / crop)
    scale = shorter / min(full_width, full_height)
    width = max(shorter, round(full_width * scale))
    height = max(shorter, round(full_height * scale))
    if width * height > MOST_PIXELS:
        raise FileFormatError(
            f"{name} is too long and thin: its {full_width}×{full_height} pixels would be "
            f"{width}×{height} with a shorter side of {shorter}, over the limit of "
            f"{MOST_PIXELS:,}. Crop it first."
        )
    # A side of a shrunk image is rounded up: its last row and column may show part of a pixel.
    factor = round(max(full_width, full_height) / max(image.size))
    box = (0, 0, full_width / factor, full_height / factor)
    image = image.resize((width, height), resampling, box=box)
    left = (width - side) // 2
    top = (height - side) // 2
    return image.crop((left, top, left + side, top + side))
