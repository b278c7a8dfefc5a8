"""The page: what its templates are given, from the results of all scales."""

from __future__ import annotations

import base64
import hashlib
import io
import json
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from importlib import resources
from pathlib import Path
from typing import Any, NamedTuple, get_args

import jinja2
import matplotlib as mpl
import numpy as np

from nearshot._version import __version__
from nearshot.errors import InputError
from nearshot.evaluation import Accuracy
from nearshot.experiments.claims import Claim, Verdict, check_claims
from nearshot.experiments.claims.verdict import Status, about_intervals
from nearshot.experiments.differences import Difference
from nearshot.experiments.recipe import ALL, Found, RecipeOutputs, outputs_of
from nearshot.experiments.recipes import RECIPES
from nearshot.experiments.results import Measurement, Results, RunResult
from nearshot.experiments.scales import OWN, PAPER, Scale, scale_named
from nearshot.experiments.tables import Cell, Figure, Table, cell, signed
from nearshot.io import atomic_write
from nearshot.text import counted
from nearshot.training.run_folder import run_name

SIGNS = {"confirmed": "✓", "contradicted": "✗", "undecided": "?", "not yet run": "·"}
STATUSES = get_args(Status)  # the last is not yet run
WIDTH, HEIGHT = 210, 20  # of the picture of a claim
FARTHEST = 6  # points from zero that its axis shows; an arrow points to what is beyond
UNFOLDED = 32  # claims on the first screen
BINS = 25
LEFT, RIGHT, TOP, BOTTOM = 42.0, 312.0, 8.0, 130.0  # of the area inside a chart's axes


def write_report(results: Results, output: str | Path) -> Path:
    """Write all results as one page of HTML, which fetches nothing; return its file.

    The same results give the same page, byte by byte.
    """
    scales = scales_of(results)
    if not scales:
        raise InputError(f"There are no results in {results.folder}. Make some first: nearshot reproduce --all --quick")
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("nearshot.experiments.report"),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )
    environment.globals.update(about_intervals=about_intervals, counted=counted, numbers=numbers, run_name=run_name)
    environment.globals.update(accuracy_cell=accuracy_cell, curves=curves, duration=duration, episodes=episodes)
    environment.globals.update(
        flat=flat, image_of=image_of, largest_difference=largest_difference, provenance=provenance
    )
    environment.globals.update(SIGNS=SIGNS, WIDTH=WIDTH, HEIGHT=HEIGHT)
    files = resources.files("nearshot.experiments.report")
    style, script = (files.joinpath(name).read_text(encoding="utf-8") for name in ("style.css", "script.js"))
    studies, compared = studies_of(scales), list(compared_with_paper(scales))
    sizes = [len(study.judged) for study in studies]
    page = environment.get_template("page.html").render(
        script_hash=base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
        style=style,
        script=script,
        version=__version__,
        own=OWN,
        scales=scales,
        counted_part=outputs_of(RECIPES["pairs"], Found(Results(os.devnull), PAPER, (0,)), "cifar-fs"),
        studies=studies,
        n_unfolded=max(1, sum(sum(sizes[: i + 1]) <= UNFOLDED for i in range(len(sizes)))),
        axis=axis_of(studies),
        compared=compared,
        largest=max((abs(cells[2].value or 0.0) for *_, cells in compared), default=0.0),
        used_by=used_by(scales),
    )
    output = Path(output)
    with atomic_write(output) as file:
        file.write(page.encode())
    return output


class ScaleContents(NamedTuple):
    """A scale with its runs, and the recipes with a number on each dataset."""

    scale: Scale
    runs: Sequence[RunResult]
    parts: Sequence[RecipeOutputs]


def scales_of(results: Results) -> list[ScaleContents]:
    """Return the contents of each scale that has results, the paper's first; each recipe for the seeds that it has."""
    by_scale: dict[str, list[RunResult]] = {}
    for run in results:
        by_scale.setdefault(run.scale, []).append(run)
    contents = []
    for name in sorted(by_scale, key=lambda name: (name != PAPER.name, name)):
        scale, runs = scale_named(name), by_scale[name]
        found = Found(results, scale, tuple(sorted({run.seed for run in runs})))
        parts = []
        for recipe in RECIPES.values() if scale.has_recipes else ():
            for dataset in recipe.on(ALL, scale):
                there = found.of_seeds_that_ran(recipe.wanted(dataset))
                parts.append(outputs_of(recipe, replace(there, n_asked=None), dataset))
        contents.append(ScaleContents(scale, runs, [part for part in parts if part.runs]))
    return contents


def compared_with_paper(
    scales: Sequence[ScaleContents],
) -> Iterator[tuple[Scale, RecipeOutputs, str, str, list[Cell]]]:
    """Yield all numbers that the paper has too: names of row and column, then ours, the paper's, the difference."""
    tables = ((scale, part, table) for scale, _, parts in scales for part in parts for table in part.tables)
    for scale, part, table in tables:
        for place in (i for i, heading in enumerate(table.headings) if heading == "difference"):
            for row in table.rows:
                cells = [item for item in row[place - 2 : place + 1] if isinstance(item, Cell)]
                if len(cells) == 3 and cells[2].value is not None:
                    name = ", ".join(item for item in row if isinstance(item, str))
                    yield scale, part, name, table.headings[place - 2], cells


def used_by(scales: Sequence[ScaleContents]) -> dict[tuple[str, str], list[str]]:
    """Return the names of the recipes that show a run, by the run's scale and identity."""
    names: dict[tuple[str, str], dict[str, None]] = {}
    for part in (part for _, _, parts in scales for part in parts):
        for run in part.runs:
            names.setdefault((run.scale, run.id), {})[part.recipe.name] = None
    return {key: list(many) for key, many in names.items()}


# The first screen: each claim with its verdict, and the difference that decides it on an axis that all share.


class Study(NamedTuple):
    """The claims on a dataset at a scale."""

    found: Found
    dataset: str
    counts: Mapping[str, int]  # claims of each status
    judged: Sequence[tuple[Claim, Verdict]]  # by verdict
    not_run: Sequence[tuple[Claim, Verdict]]


def studies_of(scales: Sequence[ScaleContents]) -> list[Study]:
    """Judge the paper's claims for every scale and dataset that has runs."""
    studies = []
    for _, _, parts in scales:
        for dataset in dict.fromkeys(part.dataset for part in parts):
            founds = [part.found for part in parts if part.dataset == dataset]
            seeds = tuple(sorted({seed for one in founds for seed in one.seeds}))
            found = replace(founds[0], seeds=seeds, n_asked=None)
            checked = sorted(check_claims(found, dataset), key=lambda one: STATUSES.index(one[1].status))
            statuses = [verdict.status for _, verdict in checked]
            counts = {status: statuses.count(status) for status in STATUSES}
            n_judged = len(checked) - counts["not yet run"]
            studies.append(Study(found, found.on(dataset), counts, checked[:n_judged], checked[n_judged:]))
    return studies


class Axis(NamedTuple):
    """The shared axis of all claims' pictures, in points of accuracy."""

    low: int
    high: int

    def x(self, points: float) -> float:
        """Return where a value is in a picture; at its edge if it is beyond."""
        return round(WIDTH * (min(max(points, self.low), self.high) - self.low) / (self.high - self.low), 1)

    @property
    def ticks(self) -> range:
        """The values with a line: every point, or every other one on a long axis."""
        step = 1 if self.high - self.low <= FARTHEST else 2
        return range(math.ceil(self.low / step) * step, self.high + 1, step)


def axis_of(studies: Sequence[Study]) -> Axis:
    """Return the axis for the deciding differences of some studies; two points on both sides of zero, at least."""
    deciding = [verdict.judged[0].difference for study in studies for _, verdict in study.judged if verdict.judged]
    ends = [end for one in deciding for end in (one.low, one.high) if math.isfinite(end)]  # one episode has no interval
    low, high = math.floor(min(ends, default=0.0)), math.ceil(max(ends, default=0.0))
    return Axis(max(-FARTHEST, min(-2, low)), min(FARTHEST, max(2, high)))


def numbers(one: Difference) -> str:
    """Return a difference with its interval and, if it has one, its margin.

    >>> numbers(Difference("a minus b", -0.5, 0.3, 1, allowed=2.5))
    '−0.50 ± 0.30 + 2.5'
    """
    return f"{signed(one.difference)} ± {one.interval95:.2f}" + (f" + {one.margin:.2g}" if one.margin else "")


# A run: its accuracies, its charts, and where it comes from.


class Chart(NamedTuple):
    """A chart: SVG paths, the names of several lines, and the numbers at the axes' ends; or a text in its place."""

    title: str
    paths: tuple[str, ...] = ()
    names: tuple[str, ...] = ()
    ends: tuple[str, str, str, str] = ("", "", "", "")  # left, right, low, high
    text: str = ""
    is_filled: bool = False


def accuracy_cell(run: RunResult, split: str, n_shot: int) -> Cell:
    """Return an accuracy by nearest centroid, or by another classifier with its name."""
    for classifier in ("centroid", "soft", "knn"):
        measured = Measurement(split, n_shot, classifier)
        if run.has(measured):
            found = run.content["accuracies"][measured.name]
            half = found["interval95"]  # None for a single episode
            other = "" if classifier == "centroid" else f" {classifier}"
            return Cell(f"{found['mean']:.2f}{'' if half is None else f' ± {half:.2f}'}{other}", found["mean"])
    return cell(None)


def curves(history: Sequence[Mapping[str, Any]]) -> list[Chart]:
    """Return the loss and the validation accuracies over epochs; a single epoch in words."""
    loss = [(float(line["epoch"]), float(line["loss"])) for line in history if line.get("loss") is not None]
    validation: dict[str, list[tuple[float, float]]] = {}
    for epoch in history:
        for name, value in (epoch.get("validation") or {}).items():
            validation.setdefault(name, []).append((float(epoch["epoch"]), float(value)))
    charts = []
    for title, series in (("loss", {"loss": loss}), ("validation accuracy, %", validation)):
        points = [point for line in series.values() for point in line if math.isfinite(point[1])]
        if not points:
            continue
        xs, ys = ([point[axis] for point in points] for axis in (0, 1))
        if len(set(xs)) == 1:
            values = ", ".join(f"{name} {line[0][1]:.4g}" for name, line in series.items() if line)
            charts.append(Chart(title, text=f"after epoch {xs[0]:.4g}: {values}"))
            continue
        low, high = (min(ys), max(ys)) if min(ys) < max(ys) else (ys[0] - 1, ys[0] + 1)
        paths = []
        for line in series.values():
            line_xs, line_ys = zip(*(point for point in line if math.isfinite(point[1])), strict=True)
            across, up = (
                np.interp(line_xs, (min(xs), max(xs)), (LEFT, RIGHT)),
                np.interp(line_ys, (low, high), (BOTTOM, TOP)),
            )
            paths.append("M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in zip(across, up, strict=True)))
        ends = (f"{min(xs):.4g}", f"epoch {max(xs):.4g}", f"{min(ys):.4g}", f"{max(ys):.4g}")
        charts.append(Chart(title, tuple(paths), tuple(series) if len(series) > 1 else (), ends))
    return charts


def episodes(name: str, accuracy: Accuracy) -> Chart:
    """Return the distribution of the episodes' accuracies. Each bin holds equally many possible values."""
    n_questions = accuracy.protocol.n_way * accuracy.protocol.n_query
    step = -(-n_questions // BINS)
    n_correct = (accuracy.per_episode * n_questions / 100).round().long()
    counts = (n_correct // step).bincount(minlength=n_questions // step + 1).tolist()
    width, most = (RIGHT - LEFT) / len(counts), max(counts)
    path = "".join(
        f"M{LEFT + i * width:.1f} {BOTTOM:g}v{(TOP - BOTTOM) * count / most:.1f}h{0.9 * width:.1f}V{BOTTOM:g}"
        for i, count in enumerate(counts)
        if count
    )
    ends = ("0", "100", "0", f"{most:,}")
    return Chart(f"{name}: episodes by accuracy, %", (path,), ends=ends, is_filled=True)


def provenance(run: RunResult) -> dict[str, Any]:
    """Return where a run comes from: its identity, its data, and the environment that it was trained in."""
    return {"result": run.id, "fingerprints": run.content["fingerprints"], **run.content["environment"]}


def flat(values: Mapping[str, Any]) -> dict[str, str]:
    """Return names and texts, with one name for each value inside a value; a list of words is a command."""
    found: dict[str, str] = {}
    for name, value in values.items():
        if isinstance(value, dict):
            found |= flat({f"{name}: {inner}": one for inner, one in value.items()})
        elif isinstance(value, list) and all(isinstance(one, str) for one in value):
            found[name] = " ".join(value)
        else:
            is_text = isinstance(value, str)
            found[name] = "–" if value is None else value if is_text else json.dumps(value, ensure_ascii=False)
    return found


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
