"""Lists of what there is to choose from."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from rich.console import Console, Group
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
    """Print a list that reads well in a terminal of any width: names and states, and below each what it is."""
    lines: list[Text | Padding] = [Text(title, style="italic")]
    for name, state, about in entries:
        lines += [
            Text.assemble("\n", (name, "bold"), f": {state}" if state else ""),
            Padding(Text(about), (0, 0, 0, 4)),
        ]
    console.print(Group(*lines), soft_wrap=False)
