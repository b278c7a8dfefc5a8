"""Decode image files safely, and resize them to a square.

Pillow warns about odd metadata, such as a damaged EXIF tag, although the image is fine. A warnings
filter silences this once, when this module is imported. It comes last, so that every filter that a
user sets takes precedence.
"""

import io
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Literal, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt
from PIL import ExifTags, Image, UnidentifiedImageError

try:  # from Pillow 11.3 on
    from PIL import AvifImagePlugin
except ImportError:
    AvifImagePlugin = None  # type: ignore[assignment]

from nearshot.errors import FileFormatError, InputError, MissingExtraError, NearshotError
from nearshot.text import printable

Pixels = npt.NDArray[np.uint8]
Failure = TypeVar("Failure", bound=NearshotError)
Fit = Literal["crop", "stretch"]
Interpolation = Literal["bilinear", "bicubic"]

MOST_PIXELS = 100_000_000
MOST_FILE_BYTES = 1 << 28  # of an image
REDUCED_FROM = 25_000_000  # pixels of an image that is not a JPEG; cameras' photos have fewer
PIXELS_OF_A_STRIP = 1 << 20
# How many copies of the pixels a decoder has, where there is more than one.
BUFFERS = {"WEBP": 4, "AVIF": 4, "HEIF": 3, "TIFF": 2}
FORMATS: tuple[str, ...] = ("PNG", "JPEG", "BMP", "GIF", "TIFF", "WEBP", "PPM")
if AvifImagePlugin is not None and AvifImagePlugin.SUPPORTED:
    FORMATS = (*FORMATS, "AVIF")
# Keys in the metadata of an image that was reduced: its full size, and where in the reduced one
# its pixels are, since a side is rounded up.
FULL_SIZE = "nearshot_full_size"
BOX = "nearshot_box"
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
        shrink_to: decode a JPEG at a half, a quarter or an eighth of its size, which is faster, and
            reduce other large images, as long as the shorter side keeps that many pixels.
    """
    with decoded(data, name, shrink_to=shrink_to) as image:
        return image


@contextmanager
def decoded(data: bytes, name: str, *, shrink_to: int | None = None) -> Iterator[Image.Image]:
    """Decode an image file as `decode` does, to use it for a while.

    What all threads decode together has a budget of memory: for a large image, others wait.
    """
    with _naming_the_image(name):
        image = _open(data, name)
        _check_size(image, name)
        full_size = image.size
        if shrink_to is not None:
            image.draft(None, (shrink_to, shrink_to))
        factor = _reduction(image, shrink_to)
    with BUDGET.claimed(_n_bytes(image, full_size, factor)):
        with _naming_the_image(name):
            image = _upright_rgb(image, name, full_size, factor)
        yield image


def _open(data: bytes, name: str) -> Image.Image:
    formats: tuple[str, ...] = FORMATS
    if data[4:8] == b"ftyp" and data[8:12] in HEIF_BRANDS:
        if not _can_read_heif():
            raise MissingExtraError(
                f"{name} is a HEIC photo. To read it: pip install '.[photos]' in the clone."
            )
        formats = ("HEIF",)
    return Image.open(io.BytesIO(data), formats=formats)


def _check_size(image: Image.Image, name: str) -> None:
    width, height = image.size
    if width * height > MOST_PIXELS:
        raise FileFormatError(
            f"{name} has {width}×{height} pixels, over the limit of {MOST_PIXELS:,}. "
            "Make it smaller first."
        )


def _reduction(image: Image.Image, shrink_to: int | None) -> int:
    """Return the factor by which an image is reduced: 1, unless it is large."""
    width, height = image.size
    if shrink_to is None or width * height < REDUCED_FROM:
        return 1
    return max(1, min(width, height) // shrink_to)


def _n_bytes(image: Image.Image, full_size: tuple[int, int], factor: int) -> int:
    """Return about how much memory it takes to decode an opened image."""
    width, height = image.size
    if image.mode in ("1", "L", "P"):
        per_pixel = 1
    elif image.mode.startswith("I;16"):
        per_pixel = 2
    else:
        per_pixel = 4
    per_pixel *= BUFFERS.get(image.format or "", 1)
    n_bytes = width * height * per_pixel + 2 * 4 * width * height // factor**2
    if "progressive" in image.info:  # a JPEG; all its coefficients are kept, of 16 bits
        n_bytes += 3 * 2 * full_size[0] * full_size[1]
    return n_bytes


class MemoryBudget:
    """An amount of memory that threads share. Who needs more than is free waits for the others.

    >>> budget = MemoryBudget(100)
    >>> with budget.claimed(70):
    ...     budget.free
    30
    """

    def __init__(self, n_bytes: int) -> None:
        self.n_bytes = n_bytes
        self.free = n_bytes
        self.condition = threading.Condition()

    @contextmanager
    def claimed(self, n_bytes: int) -> Iterator[None]:
        """Claim memory for a while; who needs more than there is gets all of it."""
        n_bytes = min(n_bytes, self.n_bytes)
        with self.condition:
            self.condition.wait_for(lambda: self.free >= n_bytes)
            self.free -= n_bytes
        try:
            yield
        finally:
            with self.condition:
                self.free += n_bytes
                self.condition.notify_all()


BUDGET = MemoryBudget(1 << 30)


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


def upright_rgb(image: Image.Image, name: str) -> Image.Image:
    """Return an image of Pillow, of any mode, as `decode` does."""
    with _naming_the_image(name):
        _check_size(image, name)
        upright = _upright_rgb(image, name, image.size, 1)
        return image.copy() if upright is image else upright


def _upright_rgb(
    image: Image.Image, name: str, full_size: tuple[int, int], factor: int
) -> Image.Image:
    """Load an image, reduce it, and convert it to RGB."""
    # Some versions of Pillow decode the 16 bits of grey PNG and PPM files into 32.
    is_grey_file = image.format in ("PNG", "PPM")
    has_16_bits = image.mode.startswith("I;16") or (image.mode == "I" and is_grey_file)
    if image.mode in ("I", "F") and not has_16_bits:
        kind = "floating-point" if image.mode == "F" else "32-bit"
        raise FileFormatError(
            f"{name} has {kind} numbers, and their range is unknown. Scale them to 0 to 255 "
            "and save the image with 8 bits first."
        )
    image.load()
    orientation = image.getexif().get(ExifTags.Base.Orientation)
    turn = None if orientation is None else TURNS.get(orientation)
    image = _reduced_rgb(image, factor, has_16_bits=has_16_bits)
    reduced_size = image.size
    if turn is not None:
        image = image.transpose(turn.method)
    if reduced_size != full_size:
        width, height = full_size
        reduction = round(max(full_size) / max(reduced_size))
        size = (width / reduction, height / reduction)
        is_turned = turn is not None and turn.is_turned
        image.info[FULL_SIZE] = (height, width) if is_turned else (width, height)
        image.info[BOX] = _box(image.size, size[::-1] if is_turned else size, turn)
    return image


def _box(
    size: tuple[int, int], used: tuple[float, float], turn: "_Turn | None"
) -> tuple[float, float, float, float]:
    """Return where in an upright image of a size its pixels are, which begin at a corner."""
    left = size[0] - used[0] if turn is not None and turn.from_right else 0
    top = size[1] - used[1] if turn is not None and turn.from_bottom else 0
    return left, top, left + used[0], top + used[1]


class _Turn(NamedTuple):
    """How an image is made upright.

    Attributes:
        method: the transposition.
        is_turned: whether width and height are exchanged.
        from_right: whether the first pixel of the file is on the right.
        from_bottom: whether the first pixel of the file is at the bottom.
    """

    method: Image.Transpose
    is_turned: bool
    from_right: bool
    from_bottom: bool


TURNS = {  # by the orientation in EXIF
    2: _Turn(Image.Transpose.FLIP_LEFT_RIGHT, False, True, False),
    3: _Turn(Image.Transpose.ROTATE_180, False, True, True),
    4: _Turn(Image.Transpose.FLIP_TOP_BOTTOM, False, False, True),
    5: _Turn(Image.Transpose.TRANSPOSE, True, False, False),
    6: _Turn(Image.Transpose.ROTATE_270, True, True, False),
    7: _Turn(Image.Transpose.TRANSVERSE, True, True, True),
    8: _Turn(Image.Transpose.ROTATE_90, True, False, True),
}


def _reduced_rgb(image: Image.Image, factor: int, *, has_16_bits: bool) -> Image.Image:
    """Return a loaded image in RGB and reduced.

    A large one is converted in strips: the steps of a conversion would each take a copy.
    """
    has_colours_only = image.mode == "RGB" and "transparency" not in image.info
    if has_colours_only:
        return image if factor == 1 else image.reduce(factor)
    width, height = image.size
    rows = max(1, PIXELS_OF_A_STRIP // (width * factor)) * factor
    if rows >= height:
        return _rgb(image, has_16_bits=has_16_bits).reduce(factor)
    result = Image.new("RGB", (-(-width // factor), -(-height // factor)))
    for top in range(0, height, rows):
        strip = image.crop((0, top, width, min(top + rows, height)))
        result.paste(_rgb(strip, has_16_bits=has_16_bits).reduce(factor), (0, top // factor))
    return result


def _rgb(image: Image.Image, *, has_16_bits: bool) -> Image.Image:
    """Return an image in RGB, on white where it is transparent."""
    if has_16_bits:  # Pillow's own conversion to 8 bits would clip everything over 255
        values = np.clip(np.asarray(image).astype(np.int32), 0, 65_535)
        rounded = (values + 128) // 257
        return Image.fromarray(rounded.astype(np.uint8)).convert("RGB")
    if image.mode in ("RGBA", "LA", "PA") or "transparency" in image.info:
        image = image.convert("RGBA")
        image = Image.alpha_composite(Image.new("RGBA", image.size, "white"), image)
    return image.convert("RGB")


def without_frames(error: Failure) -> Failure:
    """Return an error to keep: its frames would keep the image that it is about."""
    error.__cause__ = None
    error.__context__ = None
    return error.with_traceback(None)


@contextmanager
def _naming_the_image(name: str) -> Iterator[None]:
    """Turn every error of Pillow into one sentence that names the image."""
    try:
        yield
    except NearshotError:
        raise
    except UnidentifiedImageError:
        raise FileFormatError(
            f"{name} is not an image of a known format ({readable_formats()})."
        ) from None
    except Image.DecompressionBombError:
        raise FileFormatError(
            f"{name} has far too many pixels, over the limit of {MOST_PIXELS:,}."
        ) from None
    except MemoryError as error:
        raise FileFormatError(
            f"{name} needs more memory than there is. Make it smaller first."
        ) from error
    except Exception as error:  # the readers of damaged files raise anything
        if "truncated" in str(error).lower():
            raise FileFormatError(f"{name} is incomplete; copy it again.") from error
        reason = printable(error) or type(error).__name__
        raise FileFormatError(f"{name} is damaged: {reason}.") from error


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
    image = image.resize((width, height), resampling, box=image.info.get(BOX))
    left = (width - side) // 2
    top = (height - side) // 2
    return image.crop((left, top, left + side, top + side))
