"""Letters of all scripts in a drawing: whatever is in the names of files and classes, as far as a font has it."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from matplotlib import font_manager
from matplotlib.figure import Figure
from matplotlib.text import Text

from nearshot.io import readable

__all__ = ["letters_that_there_are"]

USUAL = "DejaVu Sans"  # comes with matplotlib
PLACEHOLDERS = "Last Resort"  # has a box for every letter
NAMED = 10  # letters, of those that no font has


@contextmanager
def letters_that_there_are(figure: Figure) -> Iterator[None]:
    """Let a figure's texts be drawn with the fonts that are installed; where none has a letter, warn in one sentence.

    Names are text, never formulas, and bytes in them that are no UTF-8 are written out.
    """
    texts = [text for text in figure.findobj(Text) if isinstance(text, Text)]
    for text in texts:
        text.set_parse_math(False)
        text.set_text(readable(text.get_text()))
    missing = {letter for text in texts for letter in text.get_text() if letter.isprintable()} - _letters(USUAL)
    families, left = _fonts_with(missing)
    if families:
        for text in texts:
            text.set_fontfamily([USUAL, *families])
    if left:
        some = "".join(sorted(left)[:NAMED]) + ("…" if len(left) > NAMED else "")
        warnings.warn(
            f"No installed font has {some}, so boxes are drawn instead. An .html file shows all letters.", stacklevel=3
        )
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing from font")
        warnings.filterwarnings("ignore", "Matplotlib currently does not support .* natively")
        log = logging.getLogger("matplotlib.font_manager")  # which tells of weights that a font does not have
        before = log.level
        log.setLevel(logging.ERROR)
        try:
            yield
        finally:
            log.setLevel(before)


def _fonts_with(letters: set[str]) -> tuple[list[str], set[str]]:
    """Return fonts that have letters between them, the one with the most of them first; and letters that none has."""
    has: dict[str, set[str]] = {}
    for entry in font_manager.fontManager.ttflist if letters else ():
        if not entry.name.startswith(PLACEHOLDERS):
            with suppress(OSError, RuntimeError):  # a font that cannot be read
                has[entry.name] = has.get(entry.name, set()) | (letters & _letters_of(entry.fname))
    families: list[str] = []
    while letters and (best := max(has, key=lambda name: len(has[name] & letters), default="")) and has[best] & letters:
        families.append(best)
        letters = letters - has[best]
    return families, letters


def _letters(family: str) -> set[str]:
    return _letters_of(font_manager.findfont(family))


def _letters_of(file: str) -> set[str]:
    return {chr(code) for code in font_manager.get_font(file).get_charmap()}
