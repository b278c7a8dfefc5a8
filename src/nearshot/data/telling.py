"""Sentences for whoever is watching a dataset being prepared, and numbers in them."""

from __future__ import annotations

from rich.console import Console

__all__ = ["counted", "listed", "tell"]

SHOWN = 5


def tell(sentence: str, *, show: bool | None = None) -> None:
    """Write a sentence to the error output, unless bars are not to be shown either: `show` is False."""
    Console(stderr=True, markup=False, highlight=False, soft_wrap=True, quiet=show is False).print(
        f"nearshot: {sentence}"
    )


def counted(number: int, one: str, many: str | None = None) -> str:
    """Return a number with its noun.

    >>> counted(1, "class", "classes"), counted(1200, "image")
    ('1 class', '1,200 images')
    """
    return f"{number:,} {one if number == 1 else many or one + 's'}"


def listed(names: list[str]) -> str:
    """Return some names in a row, the first few if they are many.

    >>> listed(["ant", "bee"]), listed(list("abcdefg"))
    ("'ant', 'bee'", "'a', 'b', 'c', 'd', 'e' and 2 more")
    """
    more = f" and {len(names) - SHOWN:,} more" if len(names) > SHOWN else ""
    return ", ".join(map(repr, names[:SHOWN])) + more
