"""Beyond the paper: every run that has a result: its accuracy, what it ran on and how long it took.

    nearshot reproduce runs --dataset cifar-fs

Trains nothing. Every seed has its own row, whatever `--seeds` says. Images a second are those of
the median epoch; end to end includes validation, files and everything else from the end of the
first epoch on. The first epoch has its own column: from the call to its end, with loading and
compiling.
"""

from collections.abc import Sequence

from nearshot.evaluation import pool_seeds
from nearshot.paper.identity import has_own_loss
from nearshot.paper.recipe import Found, Recipe
from nearshot.paper.results import Measurement, RunResult
from nearshot.paper.tables import Cell, Row, Table, cell, number_cell
from nearshot.training.run_folder import run_name

NAMES = (
    "A run is named by its nearest preset and what differs from it; `nearshot train` repeats it from these.",
)
OWN_LOSSES = (
    "method=own-NAME-MARK is a loss of one's own: a function of that name, whose code has this mark.",
)
SPEED = ("run", "seed", "epochs", "minutes", "images/s", "end to end", "first epoch", "on", "torch")
# Validation accuracies, each at its best epoch. With 1 shot, soft assignment is the same.
MEASURED = {
    "1-shot": Measurement("val", 1, "centroid"),
    "5-shot": Measurement("val", 5, "centroid"),
    "5-shot soft": Measurement("val", 5, "soft"),
}


def _tables(found: Found, dataset: str) -> Sequence[Table]:
    on, label = found.on(dataset), found.scale.label
    runs = [
        run for run in found.results if run.scale == found.scale.name and run.config.dataset == on
    ]
    runs.sort(key=lambda run: (run_name(run.config), run.seed))
    notes = NAMES + (OWN_LOSSES if any(has_own_loss(run.config) for run in runs) else ())
    accuracy = ("run", "seed", *(heading for one in MEASURED for heading in (one, "at epoch")))
    title = f"Accuracy of every run: {on}, validation split, nearest centroid and soft assignment, best epoch"
    return [
        Table(
            f"runs-{on}",
            f"Every run behind the tables: {on}",
            label,
            SPEED,
            tuple(map(_speed, runs)),
            notes,
        ),
        Table(f"runs-accuracy-{on}", title, label, accuracy, tuple(map(_accuracies, runs)), notes),
    ]


def _speed(run: RunResult) -> Row:
    shared = f", shared by {run.n_sharing}" if run.n_sharing > 1 else ""
    return (
        run_name(run.config),
        number_cell(run.seed, "{}"),
        number_cell(run.config.epochs, "{}"),
        number_cell(run.seconds / 60, "{:.1f}"),
        number_cell(run.content["images_per_second"], "{:,.0f}"),
        number_cell(run.content.get("end_to_end_images_per_second"), "{:,.0f}"),
        number_cell(run.content.get("first_epoch_seconds"), "{:.0f} s"),
        run.device + shared,
        str(run.content["environment"].get("torch", "–")),
    )


def _accuracies(run: RunResult) -> Row:
    cells: list[Cell] = []
    for one in MEASURED.values():
        accuracy, epoch = (
            (pool_seeds([run.accuracy(one)]), run.epoch(one)) if run.has(one) else (None, None)
        )
        cells += [cell(accuracy), number_cell(epoch, "{}")]
    return run_name(run.config), number_cell(run.seed, "{}"), *cells


RECIPE = Recipe(
    name="runs",
    title="Beyond the paper: every run, with its accuracy, time and machine",
    datasets=("cifar-fs", "mini-imagenet", "tiered-imagenet"),
    wanted=lambda dataset: {},
    tables=_tables,
)
