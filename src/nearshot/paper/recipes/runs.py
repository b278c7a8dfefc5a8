"""Beyond the paper: every run that has a result: its accuracy, what it ran on and how long it took.

    nearshot reproduce runs --dataset cifar-fs

Trains nothing. Every seed has its own row, whatever `--seeds` says. Images a second are those of
the median epoch; end to end includes validation, files and everything else from the end of the
first epoch on. The first epoch has its own column: from the call to its end, with loading and
compiling.
"""

from nearshot.evaluation import pool_seeds
from nearshot.paper.recipe import Recipe, Row
from nearshot.paper.results import Measurement, Results, RunResult
from nearshot.paper.tables import Cell, Table, accuracy_cell, number_cell
from nearshot.training.run_folder import run_name

ABOUT_NAMES = (
    "A run is named by its nearest preset and what differs from it; `nearshot train` repeats it "
    "from these."
)
# Validation accuracies, each at its best epoch. With 1 shot, soft assignment is the same.
MEASURED = {
    "1-shot": Measurement("val", 1, "centroid"),
    "5-shot": Measurement("val", 5, "centroid"),
    "5-shot soft": Measurement("val", 5, "soft"),
}


def rows(dataset: str) -> list[Row]:
    """Return no rows: it shows what other recipes ran."""
    return []


def tables(results: Results, dataset: str) -> list[Table]:
    """Return speeds and accuracies, a row per run."""
    name = results.dataset(dataset)
    runs = [run for run in results if run.config.dataset == name]
    runs.sort(key=lambda run: (run_name(run.config), run.seed))
    speeds = Table(
        f"runs-{name}",
        f"Every run behind the tables: {name}",
        (
            "run",
            "seed",
            "epochs",
            "minutes",
            "images/s",
            "end to end",
            "first epoch",
            "on",
            "torch",
        ),
        results.size.label,
        [ABOUT_NAMES],
    )
    columns = ["run", "seed"]
    for heading in MEASURED:
        columns += [heading, "at epoch"]
    accuracies = Table(
        f"runs-accuracy-{name}",
        f"Accuracy of every run: {name}, validation split, nearest centroid and soft assignment, "
        "best epoch",
        columns,
        results.size.label,
        [ABOUT_NAMES],
    )
    for run in runs:
        speeds.add_row(run_name(run.config), number_cell(run.seed, "{}"), *_speeds(run))
        accuracies.add_row(run_name(run.config), number_cell(run.seed, "{}"), *_accuracies(run))
    return [speeds, accuracies]


def _speeds(run: RunResult) -> list[Cell | str]:
    shared = f", shared by {run.n_sharing}" if run.n_sharing > 1 else ""
    return [
        number_cell(run.config.epochs, "{}"),
        number_cell(run.seconds / 60, "{:.1f}"),
        number_cell(run.content["images_per_second"], "{:,.0f}"),
        number_cell(run.content.get("end_to_end_images_per_second"), "{:,.0f}"),
        number_cell(run.content.get("first_epoch_seconds"), "{:.0f} s"),
        run.device + shared,
        str(run.content["environment"].get("torch", "–")),
    ]


def _accuracies(run: RunResult) -> list[Cell]:
    cells = []
    for measurement in MEASURED.values():
        if run.has(measurement):
            cells.append(accuracy_cell(pool_seeds([run.accuracy(measurement)])))
            cells.append(number_cell(run.epoch(measurement), "{}"))
        else:
            cells += [accuracy_cell(None), number_cell(None)]
    return cells


RECIPE = Recipe(
    "runs",
    "Beyond the paper: every run, with its accuracy, time and machine",
    ("cifar-fs", "mini-imagenet", "tiered-imagenet", "tiny-tiered"),
    rows,
    tables,
)
