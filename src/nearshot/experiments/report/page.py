"""The page as a whole."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Sequence
from importlib import resources
from pathlib import Path
from string import Template

from nearshot._version import __version__
from nearshot.errors import InputError
from nearshot.experiments.claims.verdict import count_statuses
from nearshot.experiments.report.contents import Collected, Part, collect, counted_parts
from nearshot.experiments.report.parts import (
    ClaimRow,
    badge,
    claims_table,
    claims_to_show,
    differences_table,
    part_section,
)
from nearshot.experiments.report.run_rows import runs_table
from nearshot.experiments.results import Results
from nearshot.experiments.scales import OWN, Scale
from nearshot.html import Html, element, joined
from nearshot.io import atomic_write
from nearshot.text import counted

__all__ = ["write_report"]


def write_report(results: Results, output: str | Path, *, scales: Sequence[Scale] = ()) -> Path:
    """Write all that was run so far as one page of HTML, which fetches nothing; return its file.

    The same results give the same page, byte by byte.

    Args:
        results: the folder of results.
        output: the file to write.
        scales: scales of one's own; those of `nearshot reproduce` are known by their names.
    """
    collected = collect(results, scales)
    if not collected:
        raise InputError(f"There are no results in {results.folder}. Make some first: nearshot reproduce --all --quick")
    output = Path(output)
    with atomic_write(output) as file:
        file.write(_page(collected).encode())
    return output


def _page(scales: Sequence[Collected]) -> str:
    claims, pairs = claims_to_show(scales), counted_parts()
    style, script = (_file(name) for name in ("style.css", "script.js"))
    return Template(_file("template.html")).substitute(
        script_hash=base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
        style=style,
        script=script,
        summary=_summary(scales, claims),
        contents=_contents(scales, pairs),
        claims=claims_table(claims),
        differences=differences_table(scales),
        scales=joined(_scale_section(scale) for scale in scales),
        counted=joined(part_section(part, None) for part in pairs),
        runs=runs_table(scales),
        version=__version__,
    )


def _summary(scales: Sequence[Collected], claims: Sequence[ClaimRow]) -> Html:
    """Return what was run in a few lines, each scale with its label."""
    lines = [
        element(
            "li", badge(scale), f" {counted(len(scale.runs), 'run')}, {_hours(scale)} of training; ", _recipes(scale)
        )
        for scale in scales
    ]
    if claims:
        lines.append(element("li", f"Claims of the paper: {count_statuses(row[4] for row in claims)}."))
    return element("ul", *lines)


def _recipes(scale: Collected) -> str:
    if scale.scale is None:
        return "in the table of runs." if scale.name == OWN else "no tables, since the scale is not known."
    n_tables, n_figures = (sum(len(getattr(part, kind)) for part in scale.parts) for kind in ("tables", "figures"))
    return f"{counted(n_tables, 'table')} and {counted(n_figures, 'figure')}."


def _hours(scale: Collected) -> str:
    seconds = sum(run.seconds for run in scale.runs)
    return f"{seconds / 3600:.1f} h" if seconds >= 3600 else f"{seconds / 60:.1f} min"


def _contents(scales: Sequence[Collected], pairs: Sequence[Part]) -> Html:
    """Return links to the sections of recipes."""
    items = [
        element("li", element("a", part.recipe.name, href=f"#{_place(part, scale.name)}"), f" {_what(part, scale)}")
        for scale in scales
        for part in scale.parts
    ]
    items += [
        element("li", element("a", part.recipe.name, href=f"#{_place(part, 'counted')}"), " counted") for part in pairs
    ]
    return element("ul", *items)


def _place(part: Part, scale: str) -> str:
    return "-".join([part.recipe.name, part.dataset, scale])


def _what(part: Part, scale: Collected) -> str:
    return scale.name if scale.scale and scale.scale.dataset else f"{part.dataset}, {scale.name}"


def _scale_section(scale: Collected) -> Html:
    if not scale.parts:
        return Html("")
    heading = element("h2", "Tables and figures ", badge(scale))
    return element("section", heading, *(part_section(part, scale) for part in scale.parts), class_="scale")


def _file(name: str) -> str:
    return resources.files("nearshot.experiments.report").joinpath(name).read_text(encoding="utf-8")
