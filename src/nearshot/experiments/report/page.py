"""The page: what its templates are given, from the results of all scales."""

import base64
import hashlib
import json
import math
import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from importlib import resources
from itertools import accumulate
from pathlib import Path
from typing import Any, NamedTuple, get_args

import jinja2

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
    environment.globals.update(compared_with_paper=compared_with_paper, flat=flat, image_of=image_of, used_by=used_by)
    environment.globals.update(SIGNS=SIGNS, WIDTH=WIDTH, HEIGHT=HEIGHT)
    files = resources.files("nearshot.experiments.report")
    style, script = (files.joinpath(name).read_text(encoding="utf-8") for name in ("style.css", "script.js"))
    studies = studies_of(scales)
    sizes = accumulate(len(study.judged) for study in studies)
    page = environment.get_template("page.html").render(
        script_hash=base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
        style=style,
        script=script,
        version=__version__,
        own=OWN,
        scales=scales,
        counted_part=outputs_of(RECIPES["pairs"], Found(Results(os.devnull), PAPER, (0,)), "cifar-fs"),
        studies=studies,
        n_unfolded=max(1, sum(size <= UNFOLDED for size in sizes)),
        axis=axis_of(studies),
        compared=[
            (scale, part, *one)
            for scale, _, parts in scales
            for part in parts
            for table in part.tables
            for one in compared_with_paper(table)
        ],
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


def compared_with_paper(table: Table) -> Iterator[tuple[str, str, list[Cell]]]:
    """Yield the numbers that the paper has too: names of row and column, then ours, the paper's, the difference."""
    for place in (i for i, heading in enumerate(table.headings) if heading == "difference"):
        for row in table.rows:
            cells = [item for item in row[place - 2 : place + 1] if isinstance(item, Cell)]
            if cells[2].value is not None:
                yield ", ".join(item for item in row if isinstance(item, str)), table.headings[place - 2], cells


def used_by(run: RunResult, parts: Sequence[RecipeOutputs]) -> list[str]:
    """Return the names of the recipes that show a run."""
    return list(dict.fromkeys(part.recipe.name for part in parts if run in part.runs))


# The first screen: each claim with its verdict, and the difference that decides it on an axis that all share.


class Study(NamedTuple):
    """The claims on a dataset at a scale."""

    found: Found
    dataset: str
    counts: Mapping[Status, int]  # claims of each status
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
            counts = Counter(verdict.status for _, verdict in checked)
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
    deciding = [verdict.judged[0] for study in studies for _, verdict in study.judged if verdict.judged]
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


def curves(history: Sequence[Mapping[str, Any]]) -> Iterator[tuple[str, dict[str, list[tuple[float, float]]]]]:
    """Yield the titles of charts with their lines by name: the loss and the validation accuracies by epoch."""
    charts = {"loss": [{"loss": line.get("loss")} for line in history]}
    charts["validation accuracy, %"] = [line.get("validation") or {} for line in history]
    for title, logged in charts.items():
        lines: dict[str, list[tuple[float, float]]] = {}
        for line, values in zip(history, logged, strict=True):
            for name, value in values.items():
                if value is not None and math.isfinite(value):
                    lines.setdefault(name, []).append((line["epoch"], value))
        if lines:
            yield title, lines


def episodes(accuracy: Accuracy) -> list[int]:
    """Return how many episodes have an accuracy in each bin. Each bin holds equally many possible values."""
    n_questions = accuracy.protocol.n_way * accuracy.protocol.n_query
    step = -(-n_questions // BINS)
    n_correct = (accuracy.per_episode * n_questions / 100).round().long()
    counts: list[int] = (n_correct // step).bincount(minlength=n_questions // step + 1).tolist()
    return counts


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


def image_of(figure: Figure) -> str:
    """Return a figure as the address of an image inside the page, so that nothing in it clashes with the page."""
    return "data:image/svg+xml;base64," + base64.b64encode(figure.image("svg")).decode()


def duration(seconds: float) -> str:
    """Return seconds in words, such as "7.2 s", "1.5 min" or "1.5 h"."""
    if seconds < 60:
        return f"{seconds:.1f} s"
    return f"{seconds / 60:.1f} min" if seconds < 3600 else f"{seconds / 3600:.1f} h"
