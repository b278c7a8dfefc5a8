"""Glyphs: characters of many scripts, rendered from the fonts that matplotlib ships.

Nothing is downloaded. A class is a character. An image shows it in one of several fonts, slightly
rotated, sheared, scaled and shifted. Training, validation and test have different scripts, as
Omniglot has different alphabets. Of characters that look alike, such as A, Α and А or c and C, only
the first is kept, so that no training class appears in the test split. Images should not be
flipped: many scripts have letters that are each other's mirror image.
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
from nearshot.data.readers import Files
from nearshot.errors import MissingExtraError

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
    splits: dict[str, list[SourceImage]] = {}
    for split, letters in _letters().items():
        splits[split] = []
        for letter in letters:
            class_name = _class_name(letter)
            for i in range(IMAGES_PER_CLASS):
                draw = partial(_draw, letter, i)
                splits[split].append(SourceImage(class_name, f"{class_name}/{i:03}", draw))
    return Plan(f"drawn from matplotlib's typefaces, seed {SEED}", splits)


@cache
def _letters() -> dict[str, tuple[str, ...]]:
    """Return the letters of each split, without letters that look like an earlier one."""
    by_script: dict[str, list[str]] = {}
    for letter in map(chr, sorted(_font(FACES[0])[1])):
        is_letter = unicodedata.category(letter).startswith("L")
        has_accent = unicodedata.decomposition(letter) != ""
        if is_letter and not has_accent and len(_faces_with(letter)) >= FEWEST_FACES:
            # The first word of a letter's Unicode name is its script.
            script = unicodedata.name(letter, "").split(" ")[0]
            by_script.setdefault(script, []).append(letter)
    thumbnails: npt.NDArray[np.float32] = np.zeros((0, THUMBNAIL**2), dtype=np.float32)
    kept: dict[str, tuple[str, ...]] = {}
    for split, scripts in SCRIPTS.items():
        kept[split] = ()
        for letter in chain.from_iterable(by_script[script] for script in scripts):
            looks = np.stack([_thumbnail(letter, face) for face in _faces_with(letter)])
            similarities = thumbnails @ looks.T  # (kept face, face)
            if looks.any(1).all() and float(similarities.max(initial=0)) <= ALIKE:
                kept[split] += (letter,)
                thumbnails = np.concatenate([thumbnails, looks])
    return kept


@cache
def _font(face: str) -> tuple[ImageFont.FreeTypeFont, frozenset[int]]:
    """Return a font and its characters; others would be drawn as a box."""
    try:
        import matplotlib  # noqa: PLC0415 (slow to import, and needed here only)
        from matplotlib.ft2font import FT2Font  # noqa: PLC0415
    except ImportError as error:
        raise MissingExtraError(
            "glyphs are drawn with the fonts of matplotlib: "
            "pip install '.[reproduce]' in the clone."
        ) from error

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
    pen = ImageDraw.Draw(image)
    font, _ = _font(face)
    left, top, right, bottom = pen.textbbox((0, 0), letter, font=font)
    x = (CANVAS - left - right) / 2
    y = (CANVAS - top - bottom) / 2
    pen.text((x, y), letter, fill=255, font=font)
    return image


def _thumbnail(letter: str, face: str) -> npt.NDArray[np.float32]:
    """Return a letter scaled to a small square, as a vector of unit length."""
    image = _glyph(letter, face)
    box = image.getbbox()
    if box is None:
        return np.zeros(THUMBNAIL**2, dtype=np.float32)
    # Proportions are kept: l is not o. The longer side of the letter fills the square.
    left, top, right, bottom = box
    width = right - left
    height = bottom - top
    longer = max(width, height)
    square = Image.new("L", (longer, longer))
    square.paste(image.crop(box), ((longer - width) // 2, (longer - height) // 2))
    small = square.resize((THUMBNAIL, THUMBNAIL), Image.Resampling.BOX)
    look = np.asarray(small, dtype=np.float32).ravel()
    length = np.linalg.norm(look)
    return look / length if length else look


def _draw(letter: str, index: int) -> Pixels:
    """Draw one image of a letter, slightly rotated, sheared, scaled and shifted at random.

    Fonts take turns by `index`.
    """
    faces = _faces_with(letter)
    generator = np.random.Generator(np.random.PCG64([SEED, ord(letter), index]))
    random = generator.random(6) * 2 - 1  # in [−1, 1)
    angle = 0.2 * random[0]
    shear = 0.2 * random[1]
    across = 1 + 0.15 * random[2]
    down = 1 + 0.15 * random[3]
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
    small = large.resize((GLYPHS_SIDE, GLYPHS_SIDE), Image.Resampling.BOX)
    grey = np.asarray(small, dtype=np.uint8)
    return np.repeat(grey[:, :, None], 3, axis=2)


def _class_name(letter: str) -> str:
    return f"U+{ord(letter):04X} {unicodedata.name(letter).lower()}"


def _plan_without_files(_: Files) -> Plan:
    return plan_glyphs()


GLYPHS = Source(
    name="glyphs",
    description="Glyphs: over 1,000 letters of 15 scripts, 40 images each, 28×28; scripts differ "
    "between splits",
    side=GLYPHS_SIDE,
    plan=_plan_without_files,
    where="nothing to get: drawn here from matplotlib's fonts",
    needs_files=False,
)
