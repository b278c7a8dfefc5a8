"""The rows of the table of runs: what is shown of each run, and what is folded away below it, with small charts."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from nearshot.evaluation import Accuracy
from nearshot.experiments.report.contents import ScaleContents
from nearshot.experiments.results import Measurement, RunResult
from nearshot.experiments.tables import Cell, cell
from nearshot.training.run_folder import run_name

COLUMNS = (("val", 1), ("val", 5), ("test", 1), ("test", 5))
BINS = 25
LEFT, RIGHT, TOP, BOTTOM = 42.0, 312.0, 8.0, 130.0  # of the area inside a chart's axes


class Chart(NamedTuple):
    """A chart: SVG paths, the names of several lines, and the numbers at the axes' ends; or a text in its place."""

    title: str
    paths: tuple[str, ...] = ()
    names: tuple[str, ...] = ()
    ends: tuple[str, str, str, str] = ("", "", "", "")  # left, right, low, high
    text: str = ""
    is_filled: bool = False


def run_rows(scales: Sequence[ScaleContents]) -> Iterator[dict[str, Any]]:
    """Yield what `templates/runs.html` shows of each run."""
    used_by: dict[tuple[str, str], dict[str, None]] = {}
    for scale in scales:
        for part in scale.parts:
            for run in part.runs:
                used_by.setdefault((run.scale, run.id), {})[part.recipe.name] = None
    for scale in scales:
        for run in scale.runs:
            provenance = {"result": run.id, "fingerprints": run.content["fingerprints"], **run.content["environment"]}
            accuracies = [(one.name, run.accuracy(one), run.epoch(one)) for one in run.measurements]
            yield {
                "run": run,
                "scale": scale,
                "name": run_name(run.config).split(","),  # a line may end between its parts
                "cells": [_cell(run, split, n_shot) for split, n_shot in COLUMNS],
                "used_by": list(used_by.get((run.scale, run.id), ())),
                "curves": _curves(run.history),
                "accuracies": accuracies,
                "episodes": [_episodes(name, accuracy) for name, accuracy, _ in accuracies],
                "classes": run.by_class,
                "config": _flat(run.content["config"]),
                "provenance": _flat(provenance),
            }


def _cell(run: RunResult, split: str, n_shot: int) -> Cell:
    """Return an accuracy by nearest centroid, or by another classifier with its name."""
    for classifier in ("centroid", "soft", "knn"):
        measured = Measurement(split, n_shot, classifier)
        if run.has(measured):
            found = run.content["accuracies"][measured.name]
            half = found["interval95"]  # None for a single episode
            other = "" if classifier == "centroid" else f" {classifier}"
            return Cell(f"{found['mean']:.2f}{'' if half is None else f' ± {half:.2f}'}{other}", found["mean"])
    return cell(None)


def _curves(history: Sequence[Mapping[str, Any]]) -> list[Chart]:
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


def _episodes(name: str, accuracy: Accuracy) -> Chart:
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


def _flat(values: Mapping[str, Any]) -> dict[str, str]:
    """Return names and texts, with one name for each value inside a value."""
    flat: dict[str, Any] = {}
    for name, value in values.items():
        flat |= {f"{name}: {inner}": one for inner, one in value.items()} if isinstance(value, dict) else {name: value}
    return {name: _text(value) for name, value in flat.items()}


def _text(value: object) -> str:
    if value is None:
        return "–"
    if isinstance(value, list) and all(isinstance(one, str) for one in value):
        return " ".join(value)  # a command
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
