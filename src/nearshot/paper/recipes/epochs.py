"""Beyond the paper: validation accuracy against the epoch.

    nearshot reproduce epochs --dataset cifar-fs --seeds 3

The paper's tables report the epoch that was best on validation. Expected on CIFAR-FS, 240 epochs:
NCA is ahead of PN by 1.3 / 0.6 points at epoch 180 and behind by 0.5 / 0.9 at epoch 240. From the
logs of `comparison`: nothing is trained beyond it.
"""

from collections.abc import Mapping
from functools import partial
from itertools import product
from statistics import fmean

from matplotlib.axes import Axes
from matplotlib.figure import Figure as Drawing

from nearshot.evaluation.statistics import welch
from nearshot.paper.figures import GRID, finish, new_drawing, style_of
from nearshot.paper.numbers import SHOTS
from nearshot.paper.recipe import Recipe, Row
from nearshot.paper.recipes.comparison import PAIRS, ROWS, row_config
from nearshot.paper.results import Results
from nearshot.paper.tables import MISSING, Cell, Figure, Table, difference_cell, signed
from nearshot.training import TrainConfig

Curve = Mapping[int, float]  # accuracies by epoch
BySeed = Mapping[int, float]  # accuracies
SHOWN = (
    "NCA nearest centroid",
    "NCA soft assignment",
    "PN (our episodes)",
    "MN (our episodes)",
    "SimpleShot",
)
# Of the figure: the rows of the lines.
DRAWN = {
    "NCA": "NCA nearest centroid",
    "PN": "PN (our episodes)",
    "MN, soft assignment": "MN (our episodes)",
    "SimpleShot": "SimpleShot",
}
EARLY = 0.75  # of the epochs: after the learning rate's drop, where NCA is at its best
NOTE = (
    "Accuracies of all training seeds in brackets, from the runs' logs. MN, and NCA against it, "
    "with soft assignment. ± is Welch's interval between training seeds where both sides have "
    "several."
)


def rows(dataset: str) -> list[Row]:
    """Return the comparison's runs, of which validation during training is enough."""
    return [Row(label, row_config(dataset, label), from_validation=True) for label in SHOWN]


def curves_of(
    results: Results, config: TrainConfig, n_shot: int, classifier: str = "centroid"
) -> dict[int, Curve]:
    """Return the validation accuracies of each seed, from its log."""
    name = f"{n_shot}-shot {classifier}"
    curves: dict[int, Curve] = {}
    for run in results.runs(config):
        curve = {}
        for epoch in run.history:
            validation = epoch.get("validation") or {}
            if name in validation:
                curve[epoch["epoch"]] = validation[name]
        if curve:
            curves[run.seed] = curve
    return curves


def mean_cell(results: Results, by_seed: BySeed) -> Cell:
    """Return the mean over seeds, with those of each in brackets; a dash if there is none."""
    if not by_seed:
        return Cell(MISSING)
    accuracies = list(by_seed.values())
    n_requested = len(results.seeds)
    about = []
    if len(accuracies) < n_requested:
        about.append(f"{len(accuracies)} of {n_requested} seeds")
    if len(accuracies) > 1:
        about.append(", ".join(f"{accuracy:.2f}" for accuracy in accuracies))
    mean = fmean(accuracies)
    text = f"{mean:.2f} ({': '.join(about)})" if about else f"{mean:.2f}"
    details = {"by seed": " ".join(map(str, accuracies))}
    return Cell(text, mean, is_ours=True, details=details)


def difference_of_seeds_cell(firsts: BySeed, seconds: BySeed) -> Cell:
    """Return the difference with Welch's interval.

    If a side has one seed, return the difference of that seed, without an interval.
    """
    if min(len(firsts), len(seconds)) > 1:
        return difference_cell(welch(list(firsts.values()), list(seconds.values())))
    for seed, accuracy in firsts.items():
        if seed in seconds:
            difference = accuracy - seconds[seed]
            return Cell(signed(difference), difference, is_ours=True, details={"seeds": 1})
    return Cell(MISSING)


def tables(results: Results, dataset: str) -> list[Table]:
    """Return accuracies after three quarters of training and at the last epoch."""
    curves = {}
    validated: set[int] = set()
    for label in SHOWN:
        for n_shot in SHOTS:
            curves[label, n_shot] = _row_curves(results, dataset, label, n_shot)
            for curve in curves[label, n_shot].values():
                validated.update(curve)
    last = max(validated)
    early = [epoch for epoch in validated if epoch <= EARLY * last]
    epochs = [max(early), last] if early else [last]

    def at(label: str, n_shot: int, epoch: int) -> BySeed:
        by_seed = curves[label, n_shot]
        return {seed: curve[epoch] for seed, curve in by_seed.items() if epoch in curve}

    columns = list(product(SHOTS, epochs))
    name = results.dataset(dataset)
    table = Table(
        f"epochs-{name}",
        f"Accuracy at an early and at the last epoch: {name}, validation split",
        ("trained with", *(f"{n_shot}-shot, epoch {epoch}" for n_shot, epoch in columns)),
        results.label,
        [NOTE],
    )
    for label in SHOWN:
        cells = [mean_cell(results, at(label, *column)) for column in columns]
        table.add_row(label, *cells)
    for label, (first, second) in PAIRS.items():
        if first in SHOWN and second in SHOWN:
            cells = []
            for column in columns:
                sides = (at(first, *column), at(second, *column))
                cells.append(difference_of_seeds_cell(*sides))
            table.add_row(label, *cells)
    return [table]


def _row_curves(results: Results, dataset: str, label: str, n_shot: int) -> dict[int, Curve]:
    _, classifier = ROWS[label]
    return curves_of(results, row_config(dataset, label), n_shot, classifier)


def figures(results: Results, dataset: str) -> list[Figure]:
    """Return the accuracies by epoch."""
    name = results.dataset(dataset)
    title = f"Accuracy on the validation split of {name} by epoch"
    return [Figure(f"epochs-{name}", title, results.label, partial(_draw, results, dataset))]


def _draw(results: Results, dataset: str) -> Drawing:
    drawing = new_drawing(9.5, 3.9)
    for axes, n_shot in zip(drawing.subplots(1, 2), SHOTS, strict=True):
        _draw_panel(axes, results, dataset, n_shot)
    lines = "thick: mean over training seeds; thin: each seed; dotted: the learning rate drops"
    finish(drawing, f"{results.label}\n{lines}")
    return drawing


def _draw_panel(axes: Axes, results: Results, dataset: str, n_shot: int) -> None:
    config = results.size.change(row_config(dataset, SHOWN[0]))
    late = []
    for number, (name, label) in enumerate(DRAWN.items()):
        curves = list(_row_curves(results, dataset, label, n_shot).values())
        if not curves:
            continue
        style = style_of(number)
        shared = sorted(set.intersection(*map(set, curves)))
        means = [fmean(curve[epoch] for curve in curves) for epoch in shared]
        axes.plot(shared, means, label=name, **style)
        for curve in curves:
            accuracies = [curve[epoch] for epoch in shared]
            if len(curves) > 1:
                axes.plot(shared, accuracies, color=style["color"], linewidth=0.6, alpha=0.5)
            late += [curve[epoch] for epoch in curve if epoch >= config.epochs / 4]
    for fraction in config.milestones if config.schedule == "steps" else ():
        drop = fraction * config.epochs
        axes.axvline(drop, color="0.6", linewidth=0.8, linestyle=":", zorder=0.6)
    # The first epochs would hide the differences of the last.
    axes.set_ylim(bottom=min(late) - 0.5)
    axes.set_title(f"{n_shot}-shot", fontsize=10)
    axes.set_xlabel("epoch", fontsize=9)
    axes.set_ylabel("accuracy, %", fontsize=9)
    axes.tick_params(labelsize=8)
    axes.grid(axis="y", **GRID)


RECIPE = Recipe(
    "epochs",
    "Beyond the paper: validation accuracy against the epoch",
    ("cifar-fs", "mini-imagenet", "tiered-imagenet", "tiny-tiered"),
    rows,
    tables,
    figures,
)
