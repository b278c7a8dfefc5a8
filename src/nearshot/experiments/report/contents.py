"""What the report shows: the runs of each scale, the recipes that have a number from them, small charts."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from nearshot.evaluation import Accuracy
from nearshot.experiments.recipe import ALL, Found, RecipeOutputs, outputs_of
from nearshot.experiments.recipes import RECIPES
from nearshot.experiments.results import Measurement, Results, RunResult
from nearshot.experiments.scales import PAPER, Scale, scale_named
from nearshot.experiments.tables import Cell, cell

COLUMNS = (("val", 1), ("val", 5), ("test", 1), ("test", 5))
BINS = 25
LEFT, RIGHT, TOP, BOTTOM = 42.0, 312.0, 8.0, 130.0  # of the area inside a chart's axes


class ScaleContents(NamedTuple):
    """A scale with its runs, and the recipes with a number on each dataset."""

    scale: Scale
    runs: Sequence[RunResult]
    parts: Sequence[RecipeOutputs]


def scales_of(results: Results) -> list[ScaleContents]:
    """Return the contents of each scale that has results, the paper's first."""
    by_scale: dict[str, list[RunResult]] = {}
    for run in results:
        by_scale.setdefault(run.scale, []).append(run)
    contents = []
    for name in sorted(by_scale, key=lambda name: (name != PAPER.name, name)):
        scale, runs = scale_named(name), by_scale[name]
        found = Found(results, scale, tuple(sorted({run.seed for run in runs})))
        contents.append(ScaleContents(scale, runs, _parts(found) if scale.has_recipes else []))
    return contents


def _parts(found: Found) -> list[RecipeOutputs]:
    """Return the outputs of all recipes that have runs, each for the seeds that it has."""
    parts = []
    for recipe in RECIPES.values():
        for dataset in recipe.on(ALL, found.scale):
            there = found.of_seeds_that_ran(recipe.wanted(dataset))
            parts.append(outputs_of(recipe, replace(there, n_asked=None), dataset))
    return [part for part in parts if part.runs]


def counted_parts() -> list[RecipeOutputs]:
    """Return the outputs of recipes that need neither runs nor their results."""
    nothing = Found(Results(os.devnull), PAPER, (0,))
    counted = [one for one in RECIPES.values() if not any(one.wanted(dataset) for dataset in one.datasets)]
    parts = (outputs_of(one, nothing, one.datasets[0]) for one in counted)
    return [part for part in parts if part.tables]


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


class Chart(NamedTuple):
    """A chart: SVG paths, the names of several lines, and the numbers at the axes' ends; or a text in its place."""

    title: str
    paths: tuple[str, ...] = ()
    names: tuple[str, ...] = ()
    ends: tuple[str, str, str, str] = ("", "", "", "")  # left, right, low, high
    text: str = ""
    is_filled: bool = False


def used_by(scales: Sequence[ScaleContents]) -> dict[tuple[str, str], list[str]]:
    """Return the names of the recipes that show a run, by the run's scale and identity."""
    names: dict[tuple[str, str], list[str]] = {}
    for part in (part for _, _, parts in scales for part in parts):
        for run in part.runs:
            names.setdefault((run.scale, run.id), []).append(part.recipe.name)
    return {key: list(dict.fromkeys(many)) for key, many in names.items()}


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
    """Return the loss and the validation accuracies over epochs."""
    loss = [(float(line["epoch"]), float(line["loss"])) for line in history if line.get("loss") is not None]
    validation: dict[str, list[tuple[float, float]]] = {}
    for line in history:
        for name, value in (line.get("validation") or {}).items():
            validation.setdefault(name, []).append((float(line["epoch"]), float(value)))
    charts = (_lines("loss", {"loss": loss}), _lines("validation accuracy, %", validation))
    return [chart for chart in charts if chart]


def _lines(title: str, series: Mapping[str, Sequence[tuple[float, float]]]) -> Chart | None:
    """Return lines over epochs; a single epoch in words."""
    points = [point for line in series.values() for point in line if math.isfinite(point[1])]
    if not points:
        return None
    xs, ys = ([point[axis] for point in points] for axis in (0, 1))
    if len(set(xs)) == 1:
        values = ", ".join(f"{name} {line[0][1]:.4g}" for name, line in series.items() if line)
        return Chart(title, text=f"after epoch {xs[0]:.4g}: {values}")
    across, up = _scaled(xs, LEFT, RIGHT), _scaled(ys, BOTTOM, TOP)
    paths = tuple(
        "M" + "L".join(f"{across(x):.1f} {up(y):.1f}" for x, y in line if math.isfinite(y)) for line in series.values()
    )
    ends = (f"{min(xs):.4g}", f"epoch {max(xs):.4g}", f"{min(ys):.4g}", f"{max(ys):.4g}")
    return Chart(title, paths, tuple(series) if len(series) > 1 else (), ends)


def _scaled(values: Sequence[float], start: float, end: float) -> Callable[[float], float]:
    low, high = min(values), max(values)
    return lambda value: start + (0.5 if high == low else (value - low) / (high - low)) * (end - start)


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
    """Return names and texts, with one name for each value inside a value."""
    found: dict[str, Any] = {}
    for name, value in values.items():
        found |= {f"{name}: {inner}": one for inner, one in value.items()} if isinstance(value, dict) else {name: value}
    return {name: _text(value) for name, value in found.items()}


def _text(value: object) -> str:
    if value is None:
        return "–"
    if isinstance(value, list) and all(isinstance(one, str) for one in value):
        return " ".join(value)  # a command
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
