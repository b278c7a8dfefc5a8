"""Lists and tables."""

from collections.abc import Iterable, Sequence

from rich.cells import cell_len
from rich.console import Console
from rich.padding import Padding
from rich.text import Text

from nearshot.text import printable


def print_entries(title: str, entries: Iterable[tuple[str, str, str]], console: Console) -> None:
    """Print names, and below each its state and what it is. Names are never broken, so that they can be copied."""
    console.print(Text(title, style="italic"), soft_wrap=False)
    for name, state, about in entries:
        fits = bool(state) and len(name) + len(state) < console.width - 2
        console.print(
            Text.assemble("\n", (name, "bold"), f": {state}" if fits else ":"), soft_wrap=True
        )
        below = about if fits or not state else f"{state}\n{about}"
        console.print(Padding(Text(below), (0, 0, 0, 4)), soft_wrap=False)


def aligned(rows: Sequence[Sequence[object]]) -> list[str]:
    """Return a line per row, with its cells in columns."""
    widths = [
        max(cell_len(printable(cell)) for cell in column) for column in zip(*rows, strict=True)
    ]
    return ["  ".join(map(padded, row, widths)).rstrip() for row in rows]


def padded(text: object, width: int) -> str:
    """Return text padded to a number of terminal columns; some letters take two."""
    text = printable(text)
    return text + " " * (width - cell_len(text))
