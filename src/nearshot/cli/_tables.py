"""Lists and tables in a terminal."""

from collections.abc import Iterable, Sequence

from rich.cells import cell_len
from rich.console import Console
from rich.padding import Padding
from rich.text import Text

from nearshot.text import printable

INDENT = 4  # columns before the text below a name


def print_entries(title: str, entries: Iterable[tuple[str, str, str]], console: Console) -> None:
    """Print entries of a name, its state and its description, which is printed below.

    Names are never broken, so that they can be copied.
    """
    console.print(Text(title, style="italic"), soft_wrap=False)
    for name, state, description in entries:
        heading = ":"
        below = description
        if state and len(name) + len(state) < console.width - 2:
            heading = f": {state}"
        elif state:
            below = f"{state}\n{description}"
        console.print(Text.assemble("\n", (name, "bold"), heading), soft_wrap=True)
        console.print(Padding(Text(below), (0, 0, 0, INDENT)), soft_wrap=False)


def aligned(rows: Sequence[Sequence[object]]) -> list[str]:
    """Return a line per row, with its cells in columns."""
    columns = zip(*rows, strict=True)
    widths = [max(cell_len(printable(cell)) for cell in column) for column in columns]
    lines = []
    for row in rows:
        cells = [padded(cell, width) for cell, width in zip(row, widths, strict=True)]
        lines.append("  ".join(cells).rstrip())
    return lines


def padded(text: object, width: int) -> str:
    """Return text padded to a number of terminal columns; some letters take two."""
    text = printable(text)
    return text + " " * (width - cell_len(text))
