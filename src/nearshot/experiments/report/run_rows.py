"""The rows of the table of runs: what is shown of each run, and what is folded away below it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from nearshot.evaluation import Accuracy
from nearshot.experiments.report.charts import Bar, Chart, bar_chart, histogram, line_chart
from nearshot.experiments.report.contents import ScaleContents
from nearshot.experiments.results import Measurement, RunResult
from nearshot.experiments.tables import Cell, cell
from nearshot.training.run_folder import run_name

__all__ = ["COLUMNS", "RunRow", "run_rows"]

COLUMNS = (("val", 1), ("val", 5), ("test", 1), ("test", 5))
BINS = 25


class RunRow(NamedTuple):
    """A run in the page.

    Attributes:
        run: the run.
        scale: its scale.
        name: its name, in parts between which a line may end.
        cells: its accuracies for `COLUMNS`.
        used_by: the recipes that use it.
        curves: the loss and the validation accuracies over epochs.
        accuracies: everything that was measured: name, accuracy, epoch.
        episodes: how the accuracies of the episodes are distributed.
        classes: accuracies by class, with titles.
        config: the settings, as names and texts.
        provenance: where the result is from.
    """

    run: RunResult
    scale: ScaleContents
    name: list[str]
    cells: list[Cell]
    used_by: list[str]
    curves: list[Chart]
    accuracies: list[tuple[str, Accuracy, Any]]
    episodes: list[Chart]
    classes: dict[str, list[Bar]]
    config: dict[str, str]
    provenance: dict[str, str]


def run_rows(scales: Sequence[ScaleContents]) -> Iterator[RunRow]:
    """Yield the rows of all runs."""
    used_by: dict[tuple[str, str], dict[str, None]] = {}
    for scale in scales:
        for part in scale.parts:
            for run in part.runs:
                used_by.setdefault((run.scale, run.id), {})[part.recipe.name] = None
    for scale in scales:
        for run in scale.runs:
            yield _row(run, scale, list(used_by.get((run.scale, run.id), ())))


def _row(run: RunResult, scale: ScaleContents, used_by: list[str]) -> RunRow:
    content = run.content
    accuracies = [(one.name, run.accuracy(one), run.epoch(one)) for one in run.measurements]
    episodes = (_episodes(name, accuracy) for name, accuracy, _ in accuracies)
    return RunRow(
        run,
        scale,
        run_name(run.config).split(","),
        [_cell(run, split, n_shot) for split, n_shot in COLUMNS],
        used_by,
        _curves(run.history),
        accuracies,
        [chart for chart in episodes if chart],
        {f"{name}: accuracy by class, %, hardest first": bar_chart(values) for name, values in run.by_class.items()},
        _flat(content["config"]),
        _flat({"result": run.id, "fingerprints": content["fingerprints"], **content["environment"]}),
    )


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
    charts = (line_chart("loss", {"loss": loss}), line_chart("validation accuracy, %", validation))
    return [chart for chart in charts if chart]


def _episodes(name: str, accuracy: Accuracy) -> Chart | None:
    """Return the distribution of the episodes' accuracies. Each bin holds equally many possible values."""
    n_questions = accuracy.protocol.n_way * accuracy.protocol.n_query
    step = -(-n_questions // BINS)
    n_correct = (accuracy.per_episode * n_questions / 100).round().long()
    counts = (n_correct // step).bincount(minlength=n_questions // step + 1).tolist()
    return histogram(f"{name}: episodes by accuracy, %", counts)


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
