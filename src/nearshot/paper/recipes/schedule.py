"""Appendix F: SimpleShot's schedule against the paper's.

    nearshot reproduce schedule --dataset cifar-fs --seeds 3

Validation split, nearest centroid, batches of 256, PN 16-way 5-shot 11-query. Expected on CIFAR-FS:
PN 53.76 / 68.54 with SimpleShot's schedule against 59.60 / 74.64, NCA 59.41 / 73.29 against 62.07 /
76.26. Four runs a seed, five minutes each on an H200 at 84×84.
"""

from dataclasses import replace

from nearshot.paper.accuracy_table import PAPER_DATASETS, accuracy_table, both_shots
from nearshot.paper.numbers import FLOOR, SCHEDULE, figure_config
from nearshot.paper.recipe import Recipe, Row
from nearshot.paper.results import Results
from nearshot.paper.tables import Table
from nearshot.training import Method, TrainConfig
from nearshot.training.methods import NCA, PrototypicalNetworks

PN = PrototypicalNetworks(background=FLOOR)
# Row of the paper: the method, and whether the schedule is SimpleShot's.
ROWS: dict[str, tuple[Method, bool]] = {
    "PN (SimpleShot's schedule)": (PN, True),
    "PN (the paper's)": (PN, False),
    "NCA (SimpleShot's schedule)": (NCA(background=FLOOR), True),
    "NCA (the paper's)": (NCA(background=FLOOR), False),
}


def with_simpleshots_schedule(config: TrainConfig) -> TrainConfig:
    """Return settings with the schedule of SimpleShot."""
    return replace(config, epochs=90, milestones=(0.5, 0.73), weight_decay=1e-4)


def rows(dataset: str) -> list[Row]:
    """Return both methods with both schedules."""
    result = []
    for label, (method, is_simpleshots) in ROWS.items():
        config = figure_config(dataset, method, 256)
        if is_simpleshots:
            config = with_simpleshots_schedule(config)
        paper = SCHEDULE[label][dataset]
        result.append(Row(label, config, both_shots(), paper, from_validation=True))
    return result


def tables(results: Results, dataset: str) -> list[Table]:
    """Return the accuracies."""
    name = results.dataset(dataset)
    table = accuracy_table(
        f"schedule-{name}",
        f"SimpleShot's schedule and the paper's (Appendix F): {name}, validation split, nearest "
        "centroid",
        results,
        rows(dataset),
        with_paper=True,
    )
    return [table]


RECIPE = Recipe(
    "schedule",
    "Appendix F: SimpleShot's schedule against the paper's",
    PAPER_DATASETS,
    rows,
    tables,
)
