"""Beyond the paper: accuracy against the epoch, and what keeps NCA's advantage until the last one.

    nearshot reproduce epochs last-epoch --dataset cifar-fs --seeds 3

Validation split. The paper's tables report the epoch that was best on validation.

**epochs**: accuracy by epoch, from the logs of `comparison`. Expected on CIFAR-FS, 240 epochs: NCA
is ahead of PN by 1.3 / 0.6 points at epoch 180 and behind by 0.5 / 0.9 at epoch 240.

**last-epoch**: NCA and PN at their last epoch with a warm-up, a learnt temperature, a cosine
schedule or an average of the weights. Batches of 512 and 120 epochs, as in Figure 2, or 240. Five
minutes a run on an H200 at 84×84, ten for 240 epochs.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import product
from statistics import fmean
from typing import Any

from matplotlib.figure import Figure as Drawing

from nearshot.paper.accuracy_table import PAPER_DATASETS
from nearshot.paper.differences import difference_cell, welch_difference
from nearshot.paper.figures import GRID, finish, new_drawing, style_of
from nearshot.paper.numbers import SHOTS, figure_config
from nearshot.paper.recipe import Found, Recipe
from nearshot.paper.recipes.choices import FLOORS
from nearshot.paper.recipes.comparison import PAIRS, ROWS, row_config
from nearshot.paper.tables import Cell, Figure, Row, Table, cell, signed
from nearshot.training import TrainConfig

# Of the figure and table by epoch.
SHOWN = (
    "NCA nearest centroid",
    "NCA soft assignment",
    "PN (our episodes)",
    "MN (our episodes)",
    "SimpleShot",
)
DRAWN = {"NCA": SHOWN[0], "PN": SHOWN[2], "MN, soft assignment": SHOWN[3], "SimpleShot": SHOWN[4]}
EARLY = 0.75  # of the epochs: after the learning rate's drop, where NCA is at its best
# Of the table of last epochs: what differs from the settings of Figure 2.
LASTING: dict[str, dict[str, Any]] = {
    "as published": {},
    "240 epochs": {"epochs": 240},
    "warm-up of 10 epochs": FLOORS["floor, warm-up of 10 epochs"],
    "temperature learnt from 640, exact loss": FLOORS["exact, temperature learnt from 640"],
    "cosine schedule": {"schedule": "cosine"},
    "average of the weights": {"ema_decay": 0.999},
}


Curve = Mapping[int, float]  # accuracies by epoch
BySeed = Mapping[int, float]  # accuracies


def _curves(
    found: Found, config: TrainConfig, shot: int, classifier: str = "centroid"
) -> dict[int, Curve]:
    """Return the validation accuracies of each seed, from its log."""
    name = f"{shot}-shot {classifier}"
    curves = {}
    for run in found.runs(config):
        validated = (line for line in run.history if name in (line.get("validation") or {}))
        curves[run.seed] = {line["epoch"]: line["validation"][name] for line in validated}
    return {seed: curve for seed, curve in curves.items() if curve}


def _row_curves(found: Found, dataset: str, row: str, shot: int) -> dict[int, Curve]:
    return _curves(found, row_config(dataset, row), shot, ROWS[row][1])


def _epochs_table(found: Found, dataset: str) -> Table:
    """Return accuracies at the last epoch that was validated by three quarters of training, and at the last."""
    curves = {
        (row, shot): _row_curves(found, dataset, row, shot) for row in SHOWN for shot in SHOTS
    }
    validated = sorted(
        {epoch for row in SHOWN for curve in curves[row, SHOTS[0]].values() for epoch in curve}
    )
    early = [epoch for epoch in validated if epoch <= EARLY * validated[-1]]
    places = [(shot, epoch) for shot in SHOTS for epoch in (*early[-1:], *validated[-1:])]

    def at(row: str, shot: int, epoch: int) -> BySeed:
        return {seed: curve[epoch] for seed, curve in curves[row, shot].items() if epoch in curve}

    rows: list[Row] = [
        (row, *(_mean_of_seeds(found, at(row, *place)) for place in places)) for row in SHOWN
    ]
    for name, pair in PAIRS.items():
        if set(pair) <= set(SHOWN):
            rows.append(
                (name, *(_difference(*(at(row, *place) for row in pair)) for place in places))
            )
    return Table(
        f"epochs-{found.on(dataset)}",
        f"Accuracy at an early and at the last epoch: {found.on(dataset)}, validation split",
        found.label,
        ("trained with", *(f"{shot}-shot, epoch {epoch}" for shot, epoch in places)),
        tuple(rows),
        (
            "Accuracies of all training seeds in brackets, from the runs' logs. MN, and NCA against it, with soft "
            "assignment. ± is Welch's interval between training seeds where both sides have several.",
        ),
    )


def _mean_of_seeds(found: Found, by_seed: BySeed) -> Cell:
    if not by_seed:
        return cell(None)
    means, n_asked = [*by_seed.values()], len(found.seeds)
    about = [f"{len(means)} of {n_asked} seeds"] if len(means) < n_asked else []
    about += [", ".join(f"{mean:.2f}" for mean in means)] if len(means) > 1 else []
    text = f"{fmean(means):.2f}" + (f" ({': '.join(about)})" if about else "")
    return Cell(text, fmean(means), details={"by seed": " ".join(map(str, means))})


def _difference(firsts: BySeed, seconds: BySeed) -> Cell:
    """Return the difference with Welch's interval; without one where a side has one seed, of the same seed."""
    if min(len(firsts), len(seconds)) > 1:
        return difference_cell(welch_difference("", [*firsts.values()], [*seconds.values()]))
    both = [seed for seed in firsts if seed in seconds]
    if not both:
        return cell(None)
    value = firsts[both[0]] - seconds[both[0]]
    return Cell(signed(value), value, details={"seeds": 1})


def _draw_epochs(found: Found, dataset: str) -> Drawing:
    drawing = new_drawing(9.5, 3.9)
    config = found.scale.change(row_config(dataset, SHOWN[0]))
    for axes, shot in zip(drawing.subplots(1, 2), SHOTS, strict=True):
        late = []
        for number, (name, row) in enumerate(DRAWN.items()):
            curves, style = [*_row_curves(found, dataset, row, shot).values()], style_of(number)
            late += [
                value
                for curve in curves
                for epoch, value in curve.items()
                if epoch >= config.epochs / 4
            ]
            if not curves:
                continue
            shared = sorted(set.intersection(*map(set, curves)))
            axes.plot(
                shared,
                [fmean(curve[epoch] for curve in curves) for epoch in shared],
                label=name,
                **style,
            )
            for curve in curves if len(curves) > 1 else ():
                axes.plot(
                    shared,
                    [curve[epoch] for epoch in shared],
                    color=style["color"],
                    linewidth=0.6,
                    alpha=0.5,
                )
        for fraction in config.milestones if config.schedule == "steps" else ():
            axes.axvline(
                fraction * config.epochs, color="0.6", linewidth=0.8, linestyle=":", zorder=0.6
            )
        axes.set_ylim(
            bottom=min(late) - 0.5
        )  # the first epochs would hide the differences of the last
        axes.set_title(f"{shot}-shot", fontsize=10)
        axes.set_xlabel("epoch", fontsize=9)
        axes.set_ylabel("accuracy, %", fontsize=9)
        axes.tick_params(labelsize=8)
        axes.grid(axis="y", **GRID)
    lines = "thick: mean over training seeds; thin: each seed; dotted: the learning rate drops"
    finish(drawing, f"{found.label}\n{lines}")
    return drawing


def _epochs_figures(found: Found, dataset: str) -> Sequence[Figure]:
    title = f"Accuracy on the validation split of {found.on(dataset)} by epoch"
    return [
        Figure(
            f"epochs-{found.on(dataset)}", title, found.label, partial(_draw_epochs, found, dataset)
        )
    ]


def _lasting_config(dataset: str, variant: str, method: str) -> TrainConfig:
    return replace(figure_config(dataset, method, 512), **LASTING[variant])


def _last_table(found: Found, dataset: str) -> Table:
    """Return accuracies at the last epoch, and how far NCA is ahead there and at the best epochs."""
    rows: list[Row] = []
    for variant, shot in product(LASTING, SHOTS):
        sides = [
            _curves(found, _lasting_config(dataset, variant, method), shot)
            for method in ("nca", "prototypical")
        ]
        lasts = [{seed: curve[max(curve)] for seed, curve in side.items()} for side in sides]
        bests = [{seed: max(curve.values()) for seed, curve in side.items()} for side in sides]
        cells = (
            *(_mean_of_seeds(found, last) for last in lasts),
            _difference(*lasts),
            _difference(*bests),
        )
        rows.append((variant, f"{shot}-shot", *cells))
    return Table(
        f"last-epoch-{found.on(dataset)}",
        f"NCA and PN at the last epoch: {found.on(dataset)}, validation split, nearest centroid",
        found.label,
        ("trained with", "shots", "NCA", "PN", "NCA − PN", "NCA − PN, best epochs"),
        tuple(rows),
        (
            "From the runs' logs. ± is Welch's interval between training seeds where both sides have several; there is "
            "none with one seed.",
        ),
    )


EPOCHS = Recipe(
    name="epochs",
    title="Beyond the paper: validation accuracy against the epoch",
    datasets=("cifar-fs", "mini-imagenet", "tiered-imagenet"),
    wanted=lambda dataset: {row_config(dataset, row): () for row in SHOWN},
    tables=lambda found, dataset: [_epochs_table(found, dataset)],
    figures=_epochs_figures,
)
LAST_EPOCH = Recipe(
    name="last-epoch",
    title="Beyond the paper: what keeps NCA's advantage until the last epoch",
    datasets=PAPER_DATASETS,
    wanted=lambda dataset: {
        _lasting_config(dataset, variant, method): ()
        for variant in LASTING
        for method in ("nca", "prototypical")
    },
    tables=lambda found, dataset: [_last_table(found, dataset)],
)
