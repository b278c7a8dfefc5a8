"""Not in the paper: every training that there is a result of: how good it is, what it ran on and how long it took.

    nearshot reproduce runs --dataset cifar-fs

Trains nothing. Every seed has a row of its own, whatever `--seeds` says. Images a second are those of the median epoch;
end to end counts validation, files and all else, from the end of the first epoch on, which has its own column: from the
call to its end, with loading and compiling.
"""

from __future__ import annotations

from collections.abc import Sequence

from nearshot.evaluation import pool_seeds
from nearshot.experiments.identity import has_own_loss
from nearshot.experiments.recipe import Found, Recipe
from nearshot.experiments.results import Measurement, RunResult
from nearshot.experiments.tables import Cell, Row, Table, cell
from nearshot.training.run_folder import run_name

__all__ = ["RECIPE"]

NAMES = ("A training is named by its nearest preset and what differs; `nearshot train` makes it from these.",)
OWN_LOSSES = ("method=own-NAME-MARK is a loss of one's own: a function of that name, whose code has this mark.",)


# What is told of each, at the epoch that was best at it. With 1 shot, soft assignment is the same.
TOLD = {
    "1-shot": Measurement("val", 1, "centroid"),
    "5-shot": Measurement("val", 5, "centroid"),
    "5-shot soft": Measurement("val", 5, "soft"),
}


def _tables(found: Found, dataset: str) -> Sequence[Table]:
    runs = [run for run in found.results if run.scale == found.scale.name and run.config.dataset == found.on(dataset)]
    ordered = sorted(runs, key=lambda run: (run_name(run.config), run.seed))
    notes = NAMES + (OWN_LOSSES if any(has_own_loss(run.config) for run in runs) else ())
    on = found.on(dataset)
    speed = ("training", "seed", "epochs", "minutes", "images/s", "end to end", "first epoch", "on", "torch")
    accuracy = ("training", "seed", *(heading for shot in TOLD for heading in (shot, "at epoch")))
    return [
        Table(
            f"runs-{on}",
            f"Every training behind the tables: {on}",
            found.scale.label,
            speed,
            tuple(map(_row, ordered)),
            notes,
        ),
        Table(
            f"runs-accuracy-{on}",
            f"How good every training is: {on}, validation split, nearest centroid and soft assignment, best epoch",
            found.scale.label,
            accuracy,
            tuple(map(_accuracy_row, ordered)),
            notes,
        ),
    ]


def _row(run: RunResult) -> Row:
    first = run.content.get("first_epoch_seconds")
    return (
        run_name(run.config),
        Cell(str(run.seed), run.seed),
        Cell(str(run.config.epochs), run.config.epochs),
        Cell(f"{run.seconds / 60:.1f}", run.seconds / 60),
        _rate(run.content["images_per_second"]),
        _rate(run.content.get("end_to_end_images_per_second")),
        Cell("–") if first is None else Cell(f"{first:.0f} s", first),
        run.device + (f", shared by {run.n_sharing}" if run.n_sharing > 1 else ""),
        str(run.content["environment"].get("torch", "–")),
    )


def _accuracy_row(run: RunResult) -> Row:
    told: list[Cell] = []
    for one in TOLD.values():
        there = run.has(one)
        told.append(cell(pool_seeds([run.accuracy(one)])) if there else Cell("–"))
        told.append(Cell(str(run.epoch(one)), run.epoch(one)) if there else Cell("–"))
    return run_name(run.config), Cell(str(run.seed), run.seed), *told


def _rate(images_per_second: float | None) -> Cell:
    if images_per_second is None:
        return Cell("–")
    return Cell(f"{images_per_second:,.0f}", images_per_second)


RECIPE = Recipe(
    name="runs",
    title="Not in the paper: every training that there is, with its accuracy, time and machine",
    datasets=("cifar-fs", "mini-imagenet", "tiered-imagenet"),
    wanted=lambda dataset: (),
    tables=_tables,
)
