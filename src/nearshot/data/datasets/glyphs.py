"""Glyphs: characters of many scripts, rendered from the fonts that matplotlib ships. Nothing is downloaded.

A class is a character. An image shows it in one of several fonts, slightly rotated, sheared, scaled
and shifted. Training, validation and test have different scripts, as Omniglot has different
alphabets. Of characters that look alike, such as A, Α and А or c and C, only the first is kept, so
that no training class appears in the test split. Images should not be flipped: many scripts have
letters that are each other's mirror image.
"""

import unicodedata
from functools import cache, partial
from itertools import chain
from pathlib import Path

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageDraw, ImageFont

from nearshot.data.datasets.source import Plan, Source, SourceImage
from nearshot.data.images import Pixels

GLYPHS_SIDE = 28
IMAGES_PER_CLASS = 40
SEED = 0  # of the variations
SCRIPTS = {
    "train": ("LATIN", "GREEK", "CYRILLIC", "COPTIC", "LISU", "GEORGIAN", "CANADIAN"),
    "val": ("ARABIC", "OGHAM", "OLD", "NKO"),
    "test": ("ARMENIAN", "HEBREW", "TIFINAGH", "LAO"),
}
FACES = [f"DejaVuSans{style}" for style in ("", "-Bold", "-Oblique", "Mono", "Mono-Bold")]
FACES += ["DejaVuSerif", "DejaVuSerif-Bold", "DejaVuSerif-Italic", "STIXGeneral", "STIXGeneralBol"]
FEWEST_FACES = 2
CANVAS = 96  # side of the image that variations are cut from
FONT_SIZE = 48
THUMBNAIL = 16
# Cosine similarity of two thumbnails from which on they count as the same letter.
ALIKE = 0.93


def plan_glyphs() -> Plan:
    """List the characters and their images. An image is drawn when it is read."""
    splits = {
        split: [
            SourceImage(
                _class_name(letter), f"{_class_name(letter)}/{i:03}", partial(_draw, letter, i)
            )
            for letter in letters
            for i in range(IMAGES_PER_CLASS)
        ]
        for split, letters in _letters().items()
    }
    return Plan(f"drawn from matplotlib's typefaces, seed {SEED}", splits)


@cache
def _letters() -> dict[str, tuple[str, ...]]:
    """Return the letters of each split, without letters that look like an earlier one."""
    by_script: dict[str, list[str]] = {}
    for letter in map(chr, sorted(_font(FACES[0])[1])):
        # Letters without accents, which Unicode decomposes; the first word of a letter's Unicode
        # name is its script.
        is_letter = unicodedata.category(letter).startswith("L") and not unicodedata.decomposition(
            letter
        )
        if is_letter and len(_faces_with(letter)) >= FEWEST_FACES:
            by_script.setdefault(unicodedata.name(letter, "").split(" ")[0], []).append(letter)
    thumbnails: npt.NDArray[np.float32] = np.zeros((0, THUMBNAIL**2), dtype=np.float32)
    kept: dict[str, tuple[str, ...]] = {}
    for split, scripts in SCRIPTS.items():
        kept[split] = ()
        for letter in chain.from_iterable(by_script[script] for script in scripts):
            looks = np.stack(
                [_thumbnail(letter, face) for face in _faces_with(letter)]
            )  # (face, pixel)
            if looks.any(1).all() and float((thumbnails @ looks.T).max(initial=0)) <= ALIKE:
                kept[split] += (letter,)
                thumbnails = np.concatenate([thumbnails, looks])
    return kept


@cache
def _font(face: str) -> tuple[ImageFont.FreeTypeFont, frozenset[int]]:
    """Return a font and its characters; others would be drawn as a box."""
    import matplotlib  # noqa: PLC0415 (slow to import, and needed here only)
    from matplotlib.ft2font import FT2Font  # noqa: PLC0415

    file = str(Path(matplotlib.get_data_path(), "fonts", "ttf", f"{face}.ttf"))
    font = ImageFont.truetype(file, FONT_SIZE, layout_engine=ImageFont.Layout.BASIC)
    return font, frozenset(FT2Font(file).get_charmap())


@cache
def _faces_with(letter: str) -> tuple[str, ...]:
    return tuple(face for face in FACES if ord(letter) in _font(face)[1])


@cache
def _glyph(letter: str, face: str) -> Image.Image:
    """Draw a letter in white on black, centred on the canvas."""
    image = Image.new("L", (CANVAS, CANVAS))
    pen, (font, _) = ImageDraw.Draw(image), _font(face)
    left, top, right, bottom = pen.textbbox((0, 0), letter, font=font)
    pen.text(
        ((CANVAS - left - right) / 2, (CANVAS - top - bottom) / 2), letter, fill=255, font=font
    )
    return image


def _thumbnail(letter: str, face: str) -> npt.NDArray[np.float32]:
    """Return a letter scaled to a small square, as a vector of unit length."""
    image = _glyph(letter, face)
    box = image.getbbox()
    if box is None:
        return np.zeros(THUMBNAIL**2, dtype=np.float32)
    # Proportions are kept: l is not o. The longer side of the letter fills the square.
    width, height = box[2] - box[0], box[3] - box[1]
    longer = max(width, height)
    square = Image.new("L", (longer, longer))
    square.paste(image.crop(box), ((longer - width) // 2, (longer - height) // 2))
    look = np.asarray(
        square.resize((THUMBNAIL, THUMBNAIL), Image.Resampling.BOX), dtype=np.float32
    ).ravel()
    length = np.linalg.norm(look)
    return look / length if length else look


def _draw(letter: str, index: int) -> Pixels:
    """Draw one image of a letter: fonts in turn, with a small random rotation, shear, scale and shift."""
    faces = _faces_with(letter)
    random = (
        np.random.Generator(np.random.PCG64([SEED, ord(letter), index])).random(6) * 2 - 1
    )  # in [−1, 1)
    angle, shear = 0.2 * random[0], 0.2 * random[1]
    across, down = 1 + 0.15 * random[2], 1 + 0.15 * random[3]
    # Maps a point of the result to one of the canvas, both relative to their centres.
    pixel = 60 / GLYPHS_SIDE  # a letter of 48 canvas pixels has room to move in 60
    turn = np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])
    matrix = turn @ np.array([[1, shear], [0, 1]]) @ np.diag([pixel * across, pixel * down])
    shift = 3 * random[4:6] + CANVAS / 2 - matrix @ np.array([GLYPHS_SIDE / 2] * 2)
    large = _glyph(letter, faces[index % len(faces)]).transform(
        (3 * GLYPHS_SIDE, 3 * GLYPHS_SIDE),
        Image.Transform.AFFINE,
        (*(matrix[0] / 3), shift[0], *(matrix[1] / 3), shift[1]),
        Image.Resampling.BILINEAR,
    )
    small = np.asarray(
        large.resize((GLYPHS_SIDE, GLYPHS_SIDE), Image.Resampling.BOX), dtype=np.uint8
    )
    return np.repeat(small[:, :, None], 3, axis=2)


def _class_name(letter: str) -> str:
    return f"U+{ord(letter):04X} {unicodedata.name(letter).lower()}"


GLYPHS = Source(
    name="glyphs",
    description="Glyphs: over 1,000 letters of 15 scripts, 40 images each, 28×28; scripts differ between splits",
    side=GLYPHS_SIDE,
    plan=lambda _: plan_glyphs(),
    where="nothing to get: drawn here from matplotlib's fonts",
    needs_files=False,
)
