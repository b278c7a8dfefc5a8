"""The runs in the page: a row each, with everything that is known of it folded away beneath."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from nearshot.evaluation import Accuracy
from nearshot.experiments.report.charts import bars, histogram, line_chart
from nearshot.experiments.report.contents import Collected
from nearshot.experiments.report.parts import SHORT_ID, anchor_of, plain_cell, sortable
from nearshot.experiments.results import RunResult
from nearshot.html import Html, element, joined
from nearshot.training.run_folder import run_name

__all__ = ["runs_table"]

COLUMNS = (("val", 1), ("val", 5), ("test", 1), ("test", 5))
CLASSIFIERS = ("centroid", "soft", "knn")
BINS = 25


def runs_table(scales: Sequence[Collected]) -> Html:
    """Return the table of all runs."""
    wanted_by = _wanted_by(scales)
    bodies = [_body(run, scale, wanted_by.get(id(run), [])) for scale in scales for run in scale.runs]
    measured = (f"{split} {n_shot}-shot" for split, n_shot in COLUMNS)
    headings = ("run", "dataset", "scale", "seed", *measured, "epochs", "time", "images/s", "used by")
    caption = "Accuracies are of nearest centroid, where nothing else is said; each with half its 95 % interval."
    numbers = range(3, len(headings) - 1)
    return sortable(headings, bodies, name="runs-table", numbers=numbers, caption=caption)


def _wanted_by(scales: Iterable[Collected]) -> dict[int, list[str]]:
    """Return the recipes that use each run, by the run's id()."""
    names: dict[int, list[str]] = {}
    for scale in scales:
        for part in scale.parts:
            for run in part.runs:
                if part.recipe.name not in names.setdefault(id(run), []):
                    names[id(run)].append(part.recipe.name)
    return names


def _body(run: RunResult, scale: Collected, wanted_by: Sequence[str]) -> Html:
    name = joined([_breakable(run_name(run.config)), " ", element("code", run.id[:SHORT_ID])])
    mark = element("span", run.scale, class_="badge paper" if scale.is_papers else "badge", title=scale.label)
    row = element(
        "tr",
        plain_cell(name, heading=True),
        plain_cell(run.config.dataset),
        plain_cell(mark),
        plain_cell(str(run.seed), run.seed),
        *(_accuracy_cell(run, split, n_shot) for split, n_shot in COLUMNS),
        plain_cell(str(run.config.epochs), run.config.epochs),
        plain_cell(_time(run.seconds), run.seconds),
        plain_cell(f"{run.content['images_per_second']:,.0f}", run.content["images_per_second"]),
        plain_cell(", ".join(wanted_by) or "–"),
    )
    n_columns = len(COLUMNS) + 8
    summary = element("summary", "curves, episodes, classes, configuration, provenance")
    details = element("details", summary, element("div", _details(run), class_="behind"))
    more = element("tr", element("td", details, colspan=n_columns), class_="more")
    return element("tbody", row, more, id=anchor_of(run))


def _breakable(name: str) -> Html:
    """Return a run's name with places where a line may end: it is long, and without spaces."""
    first, *others = name.split(",")
    return joined([first, *(part for other in others for part in (",", Html("<wbr>"), other))])


def _accuracy_cell(run: RunResult, split: str, n_shot: int) -> Html:
    for classifier in CLASSIFIERS:
        found = run.content["accuracies"].get(f"{split} {n_shot}-shot {classifier}")
        if found is not None:
            other = f" {classifier}" if classifier != "centroid" else ""
            half = found["interval95"]  # one episode has none
            interval = "" if half is None else f" ± {half:.2f}"
            return plain_cell(f"{found['mean']:.2f}{interval}{other}", found["mean"])
    return plain_cell("–")


def _details(run: RunResult) -> Html:
    accuracies = {name: Accuracy.from_dict(values) for name, values in run.content["accuracies"].items()}
    classes = [
        bars(values, title=f"{name}: accuracy by class, %, hardest first") for name, values in run.by_class.items()
    ]
    return joined(
        [
            element("h4", "Training"),
            element("div", *_curves(run.history), class_="charts"),
            element("h4", "Episodes"),
            _accuracies(run, accuracies),
            element("div", *(_episodes(name, one) for name, one in accuracies.items()), class_="charts"),
            *([element("h4", "Classes"), element("div", *classes, class_="charts")] if classes else []),
            element("h4", "Configuration"),
            _pairs(run.content["config"]),
            element("h4", "Provenance"),
            _pairs({"result": run.id, "fingerprints": run.content["fingerprints"], **run.content["environment"]}),
        ]
    )


def _curves(history: Sequence[Mapping[str, Any]]) -> list[Html]:
    """Return the loss and the validation accuracies over epochs."""
    loss = [(float(line["epoch"]), float(line["loss"])) for line in history if line.get("loss") is not None]
    validation: dict[str, list[tuple[float, float]]] = {}
    for line in history:
        for name, value in (line.get("validation") or {}).items():
            validation.setdefault(name, []).append((float(line["epoch"]), float(value)))
    return [
        line_chart({"loss": loss}, title="loss"),
        line_chart(validation, title="validation accuracy, %"),
    ]


def _accuracies(run: RunResult, accuracies: Mapping[str, Accuracy]) -> Html:
    """Return all accuracies of a run, each with its epoch and its protocol."""
    rows = [
        element(
            "tr",
            element("th", name, scope="row"),
            element("td", str(one), class_="number"),
            element("td", str(run.content["accuracies"][name].get("epoch", "–")), class_="number"),
            element("td", str(one.protocol)),
        )
        for name, one in accuracies.items()
    ]
    head = element("tr", *(element("th", text, scope="col") for text in ("measured", "%", "epoch", "protocol")))
    return element("table", element("thead", head), element("tbody", *rows))


def _episodes(name: str, accuracy: Accuracy) -> Html:
    """Return how the episodes' accuracies are spread. Bins hold equally many of the values that there can be."""
    n_questions = accuracy.protocol.n_way * accuracy.protocol.n_query
    step = -(-n_questions // BINS)
    n_correct = (accuracy.per_episode * n_questions / 100).round().long()
    counts = (n_correct // step).bincount(minlength=n_questions // step + 1).tolist()
    return histogram(counts, title=f"{name}: episodes by accuracy, %", low="0", high="100")


def _pairs(values: Mapping[str, Any]) -> Html:
    """Return names and values, what is inside a value one by one."""
    flat: dict[str, Any] = {}
    for name, value in values.items():
        flat |= {f"{name}: {inner}": one for inner, one in value.items()} if isinstance(value, dict) else {name: value}
    rows = (element("div", element("dt", name), element("dd", _text(value))) for name, value in flat.items())
    return element("dl", *rows)


def _text(value: object) -> str:
    if value is None:
        return "–"
    if isinstance(value, list) and all(isinstance(one, str) for one in value):
        return " ".join(value)  # a command
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _time(seconds: float) -> str:
    if seconds < 60:
        return f"{seconds:.1f} s"
    return f"{seconds / 60:.1f} min" if seconds < 3600 else f"{seconds / 3600:.1f} h"
