"""Tables for the terminal, Markdown and CSV, and figures as PNG and SVG."""

import csv
import io
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.figure import Figure as Drawing
from rich import box
from rich.table import Table as RichTable
from rich.text import Text

from nearshot.evaluation import PooledAccuracy
from nearshot.evaluation.statistics import Difference
from nearshot.io import atomic_write
from nearshot.paper.numbers import Number

MISSING = "–"
# Headings in a terminal.
SHORTER = {
    "difference": "diff.",
    "paired difference": "paired",
    "paper's difference": "paper",
    "row": "#",
}
NAMED = 3  # rows without results that a note names; more are counted
LEAST_TEXT = 10  # columns for a text in a terminal
# What matplotlib writes into images and changes from day to day or version to version.
IMAGE_METADATA = {"png": ("Software",), "svg": ("Date", "Creator")}


@dataclass(frozen=True)
class Cell:
    """A cell of a table: what is shown, and the number behind it, for sorting and CSV.

    Attributes:
        is_ours: whether it shows a result of ours, rather than a number of the paper or a count.
        details: further columns in CSV, such as intervals, for a number that is ours.
    """

    text: str
    value: float | None = None
    is_ours: bool = False
    details: Mapping[str, float | str] = field(default_factory=dict, compare=False)

    def __str__(self) -> str:
        return self.text


@dataclass(frozen=True)
class TableRow:
    """A row of a table; one of quoted numbers stays, whatever was run."""

    cells: tuple[Cell | str, ...]
    is_quoted: bool = False

    @property
    def is_ours(self) -> bool:
        """Whether it shows a result of ours."""
        return any(isinstance(cell, Cell) and cell.is_ours for cell in self.cells)

    @property
    def is_marked(self) -> bool:
        """Whether a cell has an asterisk, which a note explains."""
        return any(str(cell).endswith(" *") for cell in self.cells)


@dataclass
class Table:
    """A table, with the size and seeds (`label`) below its title, and notes under it.

    Attributes:
        columns: the headings. In CSV a heading that is repeated, such as "paper", gets the last
            one before it that is not: "1-shot paper".
    """

    name: str
    title: str
    columns: Sequence[str]
    label: str
    notes: Sequence[str] = ()
    rows: list[TableRow] = field(default_factory=list)

    def add_row(self, *cells: Cell | str, is_quoted: bool = False) -> None:
        """Add a row, with a cell for each column."""
        if len(cells) != len(self.columns):
            raise ValueError(
                f"A row of {self.name} must have {len(self.columns)} cells, one for each column "
                f"(got {len(cells)})."
            )
        self.rows.append(TableRow(cells, is_quoted))

    @property
    def has_ours(self) -> bool:
        """Whether it shows any result of ours."""
        return any(row.is_ours for row in self.rows)

    def without_empty_rows(self) -> "Table":
        """Return the table without the rows that have no result, with a note of them."""
        if not self.has_ours:
            return self
        kept = [row for row in self.rows if row.is_ours or row.is_quoted]
        missing = [row for row in self.rows if not row.is_ours and not row.is_quoted]
        is_marked = any(row.is_marked for row in kept)
        notes = [note for note in self.notes if is_marked or not note.startswith("* ")]
        if missing:
            notes.append(_about_missing(missing))
        return replace(self, rows=kept, notes=notes)

    def for_terminal(self) -> RichTable:
        """Return the table for rich to print: texts fold, numbers with their intervals do not."""
        shown = RichTable(
            title=Text(f"{self.title}\n{self.label}"),
            caption=Text("\n".join(self.notes)) if self.notes else None,
            title_justify="left",
            caption_justify="left",
            box=box.SIMPLE_HEAD,
            show_edge=False,
            pad_edge=False,
            padding=(0, 1, 0, 0),
        )
        for heading, cells in self._columns():
            title = SHORTER.get(heading, heading)
            words = " ".join([title, *map(_in_terminal, cells)]).split()
            longest = max((len(word) for word in words), default=0)
            if _has_numbers(cells):
                shown.add_column(Text(title), justify="right", overflow="fold", min_width=longest)
            else:
                width = min(longest, LEAST_TEXT)
                shown.add_column(Text(title), justify="left", overflow="fold", min_width=width)
        for row in self.rows:
            shown.add_row(*(Text(_in_terminal(cell)) for cell in row.cells))
        return shown

    def as_markdown(self) -> str:
        """Return Markdown."""
        rule = ["---:" if _has_numbers(cells) else "---" for _, cells in self._columns()]
        lines = [self.columns, rule]
        lines += [[str(cell) for cell in row.cells] for row in self.rows]
        body = "\n".join(f"| {' | '.join(line)} |" for line in lines)
        notes = "".join(f"\n\n{note}" for note in self.notes)
        return f"**{self.title}.** {self.label}.\n\n{body}{notes}\n"

    def as_csv(self) -> str:
        """Return comma-separated values: unrounded, with all intervals, and the size in every row.

        The paper's formula for intervals is too small for models on the same episodes, but
        comparable with its own.
        """
        columns: list[list[float | str]] = []
        last_unique = ""
        for heading, items in self._columns():
            if self.columns.count(heading) == 1:
                last_unique = heading
                name = heading
            else:
                name = f"{last_unique} {heading}".strip()
            cells = [item if isinstance(item, Cell) else Cell(item) for item in items]
            values = [cell.text if cell.value is None else cell.value for cell in cells]
            columns.append([name, *values])
            details: dict[str, None] = {}
            for cell in cells:
                details |= dict.fromkeys(cell.details)
            for detail in details:
                values = [cell.details.get(detail, "") for cell in cells]
                columns.append([f"{name} {detail}", *values])
        columns.append(["size and seeds", *[self.label] * len(self.rows)])
        buffer = io.StringIO()
        csv.writer(buffer, lineterminator="\n").writerows(zip(*columns, strict=True))
        return buffer.getvalue()

    def write(self, folder: Path) -> list[Path]:
        """Write Markdown and CSV; return the files."""
        markdown = _write(folder / f"{self.name}.md", self.as_markdown().encode())
        return [markdown, _write(folder / f"{self.name}.csv", self.as_csv().encode())]

    def _columns(self) -> Iterator[tuple[str, list[Cell | str]]]:
        """Yield each heading with its column's cells."""
        for number, heading in enumerate(self.columns):
            yield heading, [row.cells[number] for row in self.rows]


@dataclass(frozen=True, eq=False)
class Figure:
    """A figure: a name, a title and a function that draws it."""

    name: str
    title: str
    label: str
    draw: Callable[[], Drawing]

    def write(self, folder: Path) -> list[Path]:
        """Write it as PNG and SVG; return the files."""
        drawing = self.draw()
        return [
            _write(folder / f"{self.name}.{form}", self.image(form, drawing))
            for form in IMAGE_METADATA
        ]

    def image(self, form: str, drawing: Drawing | None = None) -> bytes:
        """Return the image in a format; the same figure has the same bytes."""
        metadata: dict[str, Any] = dict.fromkeys(IMAGE_METADATA[form])
        with io.BytesIO() as buffer, mpl.rc_context({"svg.hashsalt": self.name}):
            (drawing or self.draw()).savefig(buffer, format=form, dpi=150, metadata=metadata)
            return buffer.getvalue()


def _write(path: Path, content: bytes) -> Path:
    with atomic_write(path) as file:
        file.write(content)
    return path


def _has_numbers(cells: Sequence[Cell | str]) -> bool:
    return any(isinstance(cell, Cell) for cell in cells)


def _in_terminal(cell: Cell | str) -> str:
    return str(cell).replace("± ", "±")


def _about_missing(rows: Sequence[TableRow]) -> str:
    what = "One row is" if len(rows) == 1 else f"{len(rows)} rows are"
    if len(rows) > NAMED:
        return f"{what} not run yet, and skipped."
    names = [" ".join(cell for cell in row.cells if isinstance(cell, str)) for row in rows]
    return f"{what} not run yet, and skipped: {'; '.join(names)}."


def accuracy_cell(accuracy: PooledAccuracy | None, n_seeds: int = 1) -> Cell:
    """Return an accuracy; a dash for None. Its ± is as in `about_intervals` for so many seeds."""
    if accuracy is None:
        return Cell(MISSING)
    n_run = len(accuracy.per_seed)
    between_seeds = accuracy.between_seeds95
    details: dict[str, float | str] = {
        "±": accuracy.interval95,
        "± between seeds": "" if math.isnan(between_seeds) else between_seeds,
        "± as the paper has it": accuracy.paper95,
        "seeds": n_run,
    }
    text = f"{accuracy.mean:.2f}"
    if n_seeds == 1:
        text += f" ± {accuracy.interval95:.2f}"
    elif n_run > 2:
        text += f" ± {between_seeds:.2f}"
    if n_run < n_seeds or n_run == 2:
        text += f" ({_about_seeds(accuracy, n_seeds)})"
    return Cell(text, accuracy.mean, is_ours=True, details=details)


def _about_seeds(accuracy: PooledAccuracy, n_seeds: int) -> str:
    """Return how many seeds there are of `n_seeds`.

    Of two seeds, both means are shown: their interval is thirteen times their difference.
    """
    n_run = len(accuracy.per_seed)
    number = f"{n_run} of {n_seeds} seeds" if n_run != n_seeds else f"{n_run} seeds"
    if n_run == 2:
        return f"{number}: {', '.join(f'{mean:.2f}' for mean in accuracy.per_seed)}"
    return number


def about_intervals(n_seeds: int) -> str:
    """Return a note on what ± is in a table of results with so many training seeds."""
    if n_seeds == 1:
        return "± is the 95 % interval over episodes. It does not cover training seeds."
    return (
        "± is the 95 % interval between training seeds; a result of one seed has none. The "
        "paper's ± is over episodes."
    )


def number_cell(value: float | None, form: str = "{:,}") -> Cell:
    """Return a formatted number; a dash for None."""
    return Cell(MISSING) if value is None else Cell(form.format(value), value)


def paper_cell(number: Number | None) -> Cell:
    """Return a number of the paper as printed; a dash for None."""
    return Cell(MISSING) if number is None else Cell(str(number), number.mean)


def signed(number: float, digits: int = 2) -> str:
    """Return a number with its sign, as in −0.50."""
    return f"{number:+.{digits}f}".replace("-", "−")


def difference_cell(difference: Difference | None, n_seeds: int = 1) -> Cell:
    """Return a difference of ours; a dash for None. Its ± is as in `about_intervals`."""
    if difference is None:
        return Cell(MISSING)
    n_run = min(difference.n_first, difference.n_second)
    details: dict[str, float | str] = {
        "±": difference.half_width,
        "± is over": "training seeds" if n_run > 1 else "episodes",
        "seeds": n_run,
    }
    text = signed(difference.mean)
    if math.isnan(difference.half_width):
        details["±"] = details["± is over"] = ""
    elif n_run > 1 or n_seeds == 1:
        text += f" ± {difference.half_width:.2f}"
    if n_run == 1 and n_seeds > 1:
        text += f" (1 of {n_seeds} seeds)"
    return Cell(text, difference.mean, is_ours=True, details=details)


def difference_from_paper_cell(ours: PooledAccuracy | None, paper: Number | None) -> Cell:
    """Return our accuracy minus the paper's, with its digits; a dash if either is missing."""
    if ours is None or paper is None:
        return Cell(MISSING)
    difference = ours.mean - paper.mean
    return Cell(signed(difference, min(paper.digits, 2)), difference, is_ours=True)


def paper_difference_cell(first: Number | None, second: Number | None) -> Cell:
    """Return one of the paper's numbers minus another; a dash if either is missing."""
    if first is None or second is None:
        return Cell(MISSING)
    difference = first.mean - second.mean
    return Cell(signed(difference, min(first.digits, second.digits)), difference)


def marked(cell: Cell) -> Cell:
    """Return a cell with an asterisk, which a note below the table explains."""
    return cell if cell.text == MISSING else replace(cell, text=f"{cell.text} *")
