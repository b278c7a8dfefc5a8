"""Lists of what there is to choose from."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from rich.console import Console
from rich.padding import Padding
from rich.text import Text

__all__ = ["Entry", "print_entries"]


class Entry(NamedTuple):
    """Something to choose.

    Attributes:
        name: which is typed again by whoever reads it, so it is never cut nor broken.
        state: how far it is.
        about: what it is.
    """

    name: str
    state: str
    about: str


def print_entries(title: str, entries: Iterable[Entry], console: Console) -> None:
    """Print a list that reads well in a terminal of any width: names and states, and below each what it is.

    A name that leaves no room for its state beside it has a line of its own, which may be longer than the terminal.
    """
    console.print(Text(title, style="italic"), soft_wrap=False)
    for name, state, about in entries:
        fits = len(name) < console.width * 3 // 4
        console.print(
            Text.assemble("\n", (name, "bold"), ":" if state else "", f" {state}" if fits and state else ""),
            soft_wrap=not fits,
        )
        below = about if fits or not state else f"{state}; {about}"
        console.print(Padding(Text(below), (0, 0, 0, 4)), soft_wrap=False)
