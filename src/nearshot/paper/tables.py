"""Tables for the terminal, Markdown, LaTeX and CSV, and figures as PNG and SVG."""

import csv
import io
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.figure import Figure as Drawing
from rich import box
from rich.table import Table as RichTable
from rich.text import Text

from nearshot.evaluation import PooledAccuracy
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
IMAGE_METADATA = {
    "png": ("Software",),
    "svg": ("Date", "Creator"),
}  # what matplotlib writes into images
LATEX = str.maketrans(
    {
        "&": r"\&",
        "%": r"\%",
        "_": r"\_",
        "#": r"\#",
        "±": r"$\pm$",
        "×": r"$\times$",
        "–": "--",
        "−": "$-$",
    }
)


@dataclass(frozen=True)
class Cell:
    """A cell of a table: what is shown, and the number behind it, for sorting and CSV.

    Attributes:
        accuracy: the accuracy that it shows, which has the runs behind it.
        details: further columns in CSV, such as intervals, for a number that is ours.
    """

    text: str
    value: float | None = None
    accuracy: PooledAccuracy | None = field(default=None, repr=False, compare=False)
    details: Mapping[str, float | str] = field(default_factory=dict, repr=False, compare=False)

    def __str__(self) -> str:
        return self.text


Row = tuple[Cell | str, ...]


@dataclass(frozen=True)
class Table:
    """A table, with the scale and seeds (`label`) below its title in every form, and sentences under it (`notes`)."""

    name: str
    title: str
    label: str
    headings: tuple[str, ...]
    rows: tuple[Row, ...]
    notes: tuple[str, ...] = ()

    @property
    def has_ours(self) -> bool:
        """Whether it shows any result of ours."""
        return any(_is_ours(row) for row in self.rows)

    def without_empty_rows(self) -> "Table":
        """Return the table without the rows that have no result, with a note of them; unchanged if none has."""
        if not self.has_ours:
            return self
        kept = tuple(row for row in self.rows if _is_ours(row) or "quoted" in str(row[0]))
        left_out = [row for row in self.rows if row not in kept]
        what = "One row is" if len(left_out) == 1 else f"{len(left_out)} rows are"
        names = (" ".join(item for item in row if isinstance(item, str)) for row in left_out)
        which = f": {'; '.join(names)}" if len(left_out) <= NAMED else ""
        note = (f"{what} not run yet, and left out{which}.",) if left_out else ()
        is_marked = any(str(item).endswith(" *") for row in kept for item in row)
        notes = tuple(text for text in self.notes if is_marked or not text.startswith("* "))
        return replace(self, rows=kept, notes=notes + note)

    def for_terminal(self) -> RichTable:
        """Return the table for rich to print. Texts fold; numbers and intervals stay in one piece, however narrow."""
        left: dict[str, Any] = {"title_justify": "left", "caption_justify": "left"}
        frame: dict[str, Any] = {"show_edge": False, "pad_edge": False, "padding": (0, 1, 0, 0)}
        caption = Text("\n".join(self.notes)) if self.notes else None
        shown = RichTable(
            title=Text(f"{self.title}\n{self.label}"),
            caption=caption,
            box=box.SIMPLE_HEAD,
            **frame,
            **left,
        )
        texts = [[str(item).replace("± ", "±") for item in row] for row in self.rows]
        for place, heading in enumerate(self.headings):
            title = SHORTER.get(heading, heading)
            longest = max(
                len(word)
                for text in (title, *(row[place] for row in texts))
                for word in (*text.split(), "")
            )
            is_number = place in self.number_columns
            width, side = (longest, "right") if is_number else (min(longest, LEAST_TEXT), "left")
            shown.add_column(Text(title), justify=side, overflow="fold", min_width=width)  # type: ignore[arg-type]
        for row in texts:
            shown.add_row(*map(Text, row))
        return shown

    def as_markdown(self) -> str:
        """Return Markdown."""
        rule = [
            "---:" if place in self.number_columns else "---" for place in range(len(self.headings))
        ]
        lines = [
            " | ".join(line)
            for line in (self.headings, rule, *(map(str, row) for row in self.rows))
        ]
        body = "\n".join(f"| {line} |" for line in lines)
        notes = "".join(f"\n\n{note}" for note in self.notes)
        return f"**{self.title}.** {self.label}.\n\n{body}{notes}\n"

    def as_latex(self) -> str:
        """Return a tabular in a table, with its caption."""
        lines = [
            " & ".join(str(item).translate(LATEX) for item in row) + r" \\" for row in self.rows
        ]
        head = " & ".join(heading.translate(LATEX) for heading in self.headings) + r" \\"
        caption = " ".join((f"{self.title}. {self.label}.", *self.notes)).translate(LATEX)
        columns = "".join(
            "r" if place in self.number_columns else "l" for place in range(len(self.headings))
        )
        body = "\n".join([r"\toprule", head, r"\midrule", *lines, r"\bottomrule"])
        return (
            f"\\begin{{table}}\n\\centering\n\\begin{{tabular}}{{{columns}}}\n{body}\n\\end{{tabular}}\n"
            f"\\caption{{{caption}}}\n\\end{{table}}\n"
        )

    def as_csv(self) -> str:
        """Return comma-separated values: numbers unrounded, with all intervals, and the scale in every row.

        The paper's formula for intervals is too small for models on the same episodes, but
        comparable with its own.
        """
        columns: list[list[float | str]] = []
        unique = ""  # precedes headings that are repeated, as in "1-shot paper"
        for place, heading in enumerate(self.headings):
            if self.headings.count(heading) == 1:
                unique = heading
            name = heading if heading == unique else f"{unique} {heading}".strip()
            items = [
                item if isinstance(item := row[place], Cell) else Cell(item) for row in self.rows
            ]
            columns.append(
                [name, *(str(item) if item.value is None else item.value for item in items)]
            )
            details = dict.fromkeys(detail for item in items for detail in item.details)
            columns += [
                [f"{name} {detail}", *(item.details.get(detail, "") for item in items)]
                for detail in details
            ]
        columns.append(["scale and seeds", *[self.label] * len(self.rows)])
        buffer = io.StringIO()
        csv.writer(buffer, lineterminator="\n").writerows(zip(*columns, strict=True))
        return buffer.getvalue()

    @property
    def number_columns(self) -> set[int]:
        """The places of the columns that hold numbers."""
        return {
            place for row in self.rows for place, item in enumerate(row) if isinstance(item, Cell)
        }

    def write(self, folder: Path) -> list[Path]:
        """Write Markdown, LaTeX and CSV; return the files."""
        forms = {".md": self.as_markdown(), ".tex": self.as_latex(), ".csv": self.as_csv()}
        return _write(folder, self.name, {suffix: text.encode() for suffix, text in forms.items()})


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
        return _write(
            folder, self.name, {f".{form}": self.image(form, drawing) for form in IMAGE_METADATA}
        )

    def image(self, form: str, drawing: Drawing | None = None) -> bytes:
        """Return the image in a format; the same figure has the same bytes."""
        metadata = dict.fromkeys(IMAGE_METADATA[form])  # without dates and versions
        with io.BytesIO() as buffer, mpl.rc_context({"svg.hashsalt": self.name}):
            (drawing or self.draw()).savefig(buffer, format=form, dpi=150, metadata=metadata)
            return buffer.getvalue()


def _write(folder: Path, name: str, forms: Mapping[str, bytes]) -> list[Path]:
    for suffix, content in forms.items():
        with atomic_write(folder / f"{name}{suffix}") as file:
            file.write(content)
    return [folder / f"{name}{suffix}" for suffix in forms]


def _is_ours(row: Row) -> bool:
    return any(
        isinstance(item, Cell) and (item.accuracy is not None or item.details) for item in row
    )


def cell(accuracy: PooledAccuracy | Number | None) -> Cell:
    """Return an accuracy with its interval; a dash for None."""
    if accuracy is None:
        return Cell(MISSING)
    if isinstance(accuracy, Number):
        return Cell(str(accuracy), accuracy.mean)
    details: dict[str, float | str] = {
        "±": accuracy.interval95,
        "± between seeds": "" if math.isnan(accuracy.between_seeds95) else accuracy.between_seeds95,
        "± as the paper has it": accuracy.paper95,
        "seeds": len(accuracy.per_seed),
    }
    return Cell(str(accuracy), accuracy.mean, accuracy, details)


def number_cell(value: float | None, form: str = "{:,}") -> Cell:
    """Return a formatted number; a dash for None."""
    return Cell(MISSING) if value is None else Cell(form.format(value), value)


def signed(number: float, digits: int = 2) -> str:
    """Return a number with its sign, as in −0.50."""
    return f"{number:+.{digits}f}".replace("-", "−")


def difference(one: PooledAccuracy | Number | None, paper: Number | None) -> Cell:
    """Return our accuracy, or another of the paper, minus the paper's, with no more digits than either has."""
    if one is None or paper is None:
        return Cell(MISSING)
    digits, ours = (one.digits, None) if isinstance(one, Number) else (2, one)
    return Cell(
        signed(one.mean - paper.mean, min(paper.digits, digits)), one.mean - paper.mean, ours
    )


def marked(item: Cell) -> Cell:
    """Return a cell with an asterisk, which a note below the table explains."""
    return item if item.text == MISSING else replace(item, text=f"{item.text} *")
