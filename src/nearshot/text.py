"""Sentences for people: what is said on the error output, and numbers and names in it."""

from __future__ import annotations

import unicodedata
from collections.abc import Callable, Iterable
from itertools import islice
from typing import Any

from rich.console import Console

from nearshot.io import readable

__all__ = ["counted", "format_list", "print_line", "print_message", "printable"]

SHOWN = 5


def printable(text: object) -> str:
    r"""Return text in one line, with control characters, such as a terminal's codes, and what is no text written out.

    >>> print(printable("two\nlines \x1b[31m日本"))
    two\nlines \x1b[31m日本
    """
    return "".join(
        one.encode("unicode_escape").decode() if unicodedata.category(one) in ("Cc", "Zl", "Zp") else one
        for one in readable(str(text))
    )


def print_message(text: object, *, show: bool | None = None) -> None:
    """Say a sentence on the error output, unless bars are not to be shown either: `show` is False."""
    print_line(Console(stderr=True, quiet=show is False), f"nearshot: {printable(text)}")


def print_line(console: Console, sentence: str) -> None:
    """Print a sentence in one line, which a terminal wraps and a log keeps whole; brackets in it are no markup."""
    console.print(sentence, markup=False, highlight=False, soft_wrap=True)


def counted(number: int, one: str, many: str | None = None) -> str:
    """Return a number with its noun.

    >>> counted(1, "class", "classes"), counted(1200, "image")
    ('1 class', '1,200 images')
    """
    return f"{number:,} {one if number == 1 else many or one + 's'}"


def format_list(values: Iterable[Any], in_words: Callable[[Any], str] = repr) -> str:
    """Return some values in a row, the first few if they are many.

    >>> format_list(["ant", 3]), format_list("abcdefg")
    ("'ant', 3", "'a', 'b', 'c', 'd', 'e' and 2 more")
    """
    values = list(values)
    more = f" and {len(values) - SHOWN:,} more" if len(values) > SHOWN else ""
    return ", ".join(map(in_words, islice(values, SHOWN))) + more
