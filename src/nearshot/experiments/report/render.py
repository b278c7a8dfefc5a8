"""The page as a whole: what its templates are given."""

from __future__ import annotations

import base64
import hashlib
import io
from collections.abc import Sequence
from importlib import resources
from pathlib import Path

import jinja2
import matplotlib as mpl

from nearshot._version import __version__
from nearshot.errors import InputError
from nearshot.experiments.claims.verdict import about_intervals
from nearshot.experiments.report import contents, verdicts
from nearshot.experiments.results import Results
from nearshot.experiments.scales import OWN
from nearshot.experiments.tables import Cell, Figure, Table
from nearshot.io import atomic_write
from nearshot.text import counted
from nearshot.training.run_folder import run_name

SIGNS = {"confirmed": "✓", "contradicted": "✗", "undecided": "?", "not yet run": "·"}


def write_report(results: Results, output: str | Path) -> Path:
    """Write all results as one page of HTML, which fetches nothing; return its file.

    The same results give the same page, byte by byte.
    """
    shown = contents.scales_of(results)
    if not shown:
        raise InputError(f"There are no results in {results.folder}. Make some first: nearshot reproduce --all --quick")
    output = Path(output)
    with atomic_write(output) as file:
        file.write(_page(shown).encode())
    return output


def _page(scales: Sequence[contents.ScaleContents]) -> str:
    loader = jinja2.PackageLoader("nearshot.experiments.report")
    environment = jinja2.Environment(
        loader=loader, autoescape=True, trim_blocks=True, lstrip_blocks=True, undefined=jinja2.StrictUndefined
    )
    environment.globals.update(contents=contents, counted=counted, duration=duration, image_of=image_of)
    environment.globals.update(largest_difference=largest_difference, run_name=run_name)
    environment.globals.update(about_intervals=about_intervals, signs=SIGNS, verdicts=verdicts)
    files = resources.files("nearshot.experiments.report")
    style, script = (files.joinpath(name).read_text(encoding="utf-8") for name in ("style.css", "script.js"))
    studies, compared = verdicts.studies_of(scales), list(contents.compared_with_paper(scales))
    return environment.get_template("page.html").render(
        script_hash=base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
        style=style,
        script=script,
        version=__version__,
        own=OWN,
        scales=scales,
        studies=studies,
        axis=verdicts.axis_of(studies),
        compared=compared,
        largest=max((abs(cells[2].value or 0.0) for *_, cells in compared), default=0.0),
        used_by=contents.used_by(scales),
    )


def largest_difference(table: Table) -> float:
    """Return the largest difference from the paper in a table, whatever its sign."""
    places = [place for place, heading in enumerate(table.headings) if heading == "difference"]
    items = [row[place] for row in table.rows for place in places]
    return max((abs(item.value or 0.0) for item in items if isinstance(item, Cell)), default=0.0)


def image_of(figure: Figure) -> str:
    """Return a figure as the address of an image inside the page, so that nothing in it clashes with the page."""
    buffer = io.BytesIO()
    with mpl.rc_context({"svg.hashsalt": figure.name}):  # the same figure is the same file
        figure.draw().savefig(buffer, format="svg", metadata={"Date": None, "Creator": None})
    return "data:image/svg+xml;base64," + base64.b64encode(buffer.getvalue()).decode()


def duration(seconds: float) -> str:
    """Return seconds in words, such as "7.2 s", "1.5 min" or "1.5 h"."""
    if seconds < 60:
        return f"{seconds:.1f} s"
    return f"{seconds / 60:.1f} min" if seconds < 3600 else f"{seconds / 3600:.1f} h"
