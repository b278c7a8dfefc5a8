"""Beyond the paper: validation accuracy against the epoch, for the runs of the comparison.

    nearshot reproduce epochs --dataset cifar-fs --seeds 3

The paper reports the epoch that was best on the validation split, and so does `comparison`. This figure shows what that
choice hides. It needs the logs alone, so it trains and measures nothing beyond `comparison`. Expected on CIFAR-FS, 240
epochs: NCA is ahead of PN by 1.3 / 0.6 points at epoch 180 and behind by 0.5 / 0.9 at epoch 240.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure as Drawing

from nearshot.experiments.differences import difference_cell, welch_difference
from nearshot.experiments.figures import GRID, new_drawing, style_of
from nearshot.experiments.paper import SHOTS
from nearshot.experiments.recipe import Found, Recipe
from nearshot.experiments.recipes.comparison import PAIRS, ROWS
from nearshot.experiments.tables import Cell, Figure, Row, Table, cell, signed
from nearshot.training import PRESETS, TrainConfig

SHOWN = ("NCA nearest centroid", "NCA soft assignment", "PN (our episodes)", "MN (our episodes)", "SimpleShot")
DRAWN = {"NCA": SHOWN[0], "PN": SHOWN[2], "MN, soft assignment": SHOWN[3], "SimpleShot": SHOWN[4]}
COMPARED = {name: rows for name, rows in PAIRS.items() if set(rows) <= set(SHOWN)}
EARLY = 0.75  # of the epochs: after the learning rate's drop, where NCA is at its best
Curve = Mapping[int, float]  # accuracies in per cent, by epoch


def _config(dataset: str, row: str) -> TrainConfig:
    return PRESETS[f"{dataset}-{ROWS[row][0]}"]


def _curves(found: Found, dataset: str, row: str, shot: int) -> list[Curve]:
    """Return the validation accuracies of each seed, from its log."""
    name = f"{shot}-shot {ROWS[row][1]}"
    return [
        {line["epoch"]: line["validation"][name] for line in run.history if name in (line.get("validation") or {})}
        for run in found.runs(_config(dataset, row))
    ]


def _epochs(found: Found, dataset: str) -> list[int]:
    """Return the epochs of the table: the last that was validated by three quarters of training, and the last."""
    curves = [curve for row in SHOWN for curve in _curves(found, dataset, row, SHOTS[0])]
    validated = sorted({epoch for curve in curves for epoch in curve})
    early = [epoch for epoch in validated if epoch <= EARLY * validated[-1]]
    return [*early[-1:], *validated[-1:]]


def _table(found: Found, dataset: str) -> Table:
    on, epochs = found.on(dataset), _epochs(found, dataset)
    places = [(shot, epoch) for shot in SHOTS for epoch in epochs]

    def at(row: str, shot: int, epoch: int) -> list[float]:
        return [curve[epoch] for curve in _curves(found, dataset, row, shot) if epoch in curve]

    rows: list[Row] = [(row, *(_accuracies(at(row, *place)) for place in places)) for row in SHOWN]
    for name, pair in COMPARED.items():
        rows.append((name, *(_difference(*(at(row, *place) for row in pair)) for place in places)))
    return Table(
        f"epochs-{on}",
        f"Accuracy at an early and at the last epoch: {on}, validation split",
        found.label,
        ("trained with", *(f"{shot}-shot, epoch {epoch}" for shot, epoch in places)),
        tuple(rows),
        (
            "Accuracies of all training seeds in brackets, from the runs' logs. MN, and NCA against it, with soft "
            "assignment. ± is Welch's interval between training seeds where both sides have several.",
        ),
    )


def _accuracies(means: Sequence[float]) -> Cell:
    """Return the mean over seeds, with that of each."""
    if not means:
        return cell(None)
    seeds = f" ({', '.join(f'{mean:.2f}' for mean in means)})" if len(means) > 1 else ""
    return Cell(f"{fmean(means):.2f}{seeds}", fmean(means), details={"by seed": " ".join(map(str, means))})


def _difference(firsts: Sequence[float], seconds: Sequence[float]) -> Cell:
    if min(len(firsts), len(seconds)) > 1:
        return difference_cell(welch_difference("", firsts, seconds))
    if not firsts or not seconds:
        return cell(None)
    value = firsts[0] - seconds[0]
    return Cell(signed(value), value, details={"seeds": 1})


def _figures(found: Found, dataset: str) -> Sequence[Figure]:
    on = found.on(dataset)
    title = f"Accuracy on the validation split of {on} by epoch"
    return [Figure(f"epochs-{on}", title, found.label, lambda: _draw(found, dataset))]


def _draw(found: Found, dataset: str) -> Drawing:
    drawing = new_drawing(9.5, 3.9)
    config = found.scale.change(_config(dataset, SHOWN[0]))
    for axes, shot in zip(drawing.subplots(1, 2), SHOTS, strict=True):
        late = []
        for number, (name, row) in enumerate(DRAWN.items()):
            if curves := _curves(found, dataset, row, shot):
                _draw_method(axes, curves, name, style_of(number))
            late += [value for curve in curves for epoch, value in curve.items() if epoch >= config.epochs / 4]
        for fraction in config.milestones if config.schedule == "steps" else ():
            axes.axvline(fraction * config.epochs, color="0.6", linewidth=0.8, linestyle=":", zorder=0.6)
        axes.set_ylim(bottom=min(late) - 0.5)  # the first epochs would hide the differences of the last
        axes.set_title(f"{shot}-shot", fontsize=10)
        axes.set_xlabel("epoch", fontsize=9)
        axes.set_ylabel("accuracy, %", fontsize=9)
        axes.tick_params(labelsize=8)
        axes.grid(axis="y", **GRID)
    handles, names = axes.get_legend_handles_labels()
    drawing.legend(handles, names, loc="outside lower center", ncols=4, fontsize=9, frameon=False, handlelength=3)
    drawing.suptitle(
        f"{found.label}\nthick: mean over training seeds; thin: each seed; dotted: the learning rate drops", fontsize=8
    )
    return drawing


def _draw_method(axes: Axes, curves: Sequence[Curve], name: str, style: dict[str, Any]) -> None:
    """Draw the mean over seeds, and each seed as a thin line where there are several."""
    shared = sorted(set.intersection(*map(set, curves)))
    axes.plot(shared, [fmean(curve[epoch] for curve in curves) for epoch in shared], label=name, **style)
    for curve in curves if len(curves) > 1 else ():
        axes.plot(shared, [curve[epoch] for epoch in shared], color=style["color"], linewidth=0.6, alpha=0.5)


RECIPE = Recipe(
    name="epochs",
    title="Beyond the paper: validation accuracy against the epoch",
    datasets=("cifar-fs", "mini-imagenet", "tiered-imagenet"),
    wanted=lambda dataset: {_config(dataset, row): () for row in SHOWN},
    tables=lambda found, dataset: [_table(found, dataset)],
    figures=_figures,
)
