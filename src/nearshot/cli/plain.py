"""Text for a terminal, whatever the names of files have in them."""

from __future__ import annotations

import unicodedata

from rich.console import Console

from nearshot.files import readable

__all__ = ["plain", "say"]


def plain(text: object) -> str:
    r"""Return text in one line, with control characters, such as a terminal's codes, and what is no text written out.

    >>> print(plain("two\nlines \x1b[31m日本"))
    two\nlines \x1b[31m日本
    """
    return "".join(
        one.encode("unicode_escape").decode() if unicodedata.category(one) in ("Cc", "Zl", "Zp") else one
        for one in readable(str(text))
    )


def say(text: object) -> None:
    """Say a sentence on the error output; brackets in it are no markup, and the terminal wraps it."""
    Console(stderr=True, markup=False, highlight=False, soft_wrap=True).print(f"nearshot: {plain(text)}")
