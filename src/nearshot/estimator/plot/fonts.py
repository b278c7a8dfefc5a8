"""Find installed fonts for the letters in a figure, in any script."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from matplotlib import font_manager
from matplotlib.figure import Figure
from matplotlib.text import Text

from nearshot.io import readable

__all__ = ["installed_fonts"]

DEFAULT = "DejaVu Sans"  # comes with matplotlib
PLACEHOLDERS = "Last Resort"  # draws a box for every letter
NAMED = 10  # missing letters that a warning names


@contextmanager
def installed_fonts(figure: Figure) -> Iterator[None]:
    """Set fonts for the texts of a figure while it is saved; warn once about letters that no installed font has.

    Texts are never parsed as formulas, and bytes in names that are not UTF-8 are escaped.
    """
    texts = [text for text in figure.findobj(Text) if isinstance(text, Text)]
    for text in texts:
        text.set_parse_math(False)
        text.set_text(readable(text.get_text()))
    used = {letter for text in texts for letter in text.get_text() if letter.isprintable()}
    families, left = _fonts_with(used - _letters_of(font_manager.findfont(DEFAULT)))
    if families:
        for text in texts:
            text.set_fontfamily([DEFAULT, *families])
    if left:
        some = "".join(sorted(left)[:NAMED]) + ("…" if len(left) > NAMED else "")
        warnings.warn(
            f"No installed font has {some}; boxes are drawn instead. An .html file shows all letters.",
            stacklevel=3,
        )
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing from font")
        warnings.filterwarnings("ignore", "Matplotlib currently does not support .* natively")
        log = logging.getLogger("matplotlib.font_manager")  # logs missing font weights
        before = log.level
        log.setLevel(logging.ERROR)
        try:
            yield
        finally:
            log.setLevel(before)


def _fonts_with(letters: set[str]) -> tuple[list[str], set[str]]:
    """Return fonts that cover letters, the one with the most first, and the letters that no font has."""
    has: dict[str, set[str]] = {}
    for entry in font_manager.fontManager.ttflist if letters else ():
        if not entry.name.startswith(PLACEHOLDERS):
            with suppress(OSError, RuntimeError):  # an unreadable font
                has[entry.name] = has.get(entry.name, set()) | (letters & _letters_of(entry.fname))
    families: list[str] = []
    while letters and (best := max(has, key=lambda name: len(has[name] & letters), default="")) and has[best] & letters:
        families.append(best)
        letters = letters - has[best]
    return families, letters


def _letters_of(file: str) -> set[str]:
    return {chr(code) for code in font_manager.get_font(file).get_charmap()}
