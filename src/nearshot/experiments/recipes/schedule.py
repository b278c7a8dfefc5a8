"""Appendix F: SimpleShot's training schedule against the paper's.

    nearshot reproduce schedule --dataset cifar-fs --seeds 3

Batches of 256, PN 16-way 5-shot 11-query; validation split. SimpleShot's schedule: 90 epochs, drops at 50 and 73 %,
weight decay 1e-4. Expected on CIFAR-FS: PN 53.76 / 68.54 against 59.60 / 74.64, NCA 59.41 / 73.29 against
62.07 / 76.26. `batch-size` shares the two runs with the paper's schedule. Time: four minutes a run on an H200 at 84×84.
"""

from __future__ import annotations

from functools import cache

from nearshot.experiments.accuracy_table import AccuracyRow, AccuracyTable, both_shots
from nearshot.experiments.paper import SCHEDULE
from nearshot.experiments.paper_configs import figure_config, simpleshot_schedule
from nearshot.training import TrainConfig

__all__ = ["RECIPE", "schedule_config"]


@cache
def schedule_config(dataset: str, row: str) -> TrainConfig:
    """Return the settings of a row of the paper's table."""
    config = figure_config(dataset, "nca" if row.startswith("NCA") else "prototypical", 256)
    return simpleshot_schedule(config) if "SimpleShot" in row else config


TABLE = AccuracyTable(
    "schedule-{on}",
    "SimpleShot's schedule and the paper's (Appendix F): {on}, validation split, nearest centroid",
    ("trained with",),
    lambda dataset: [
        AccuracyRow((row,), both_shots(schedule_config(dataset, row)), paper[dataset])
        for row, paper in SCHEDULE.items()
    ],
    with_paper=True,
)
RECIPE = TABLE.recipe("Appendix F: SimpleShot's schedule against the paper's")
