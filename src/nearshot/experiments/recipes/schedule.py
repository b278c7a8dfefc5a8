"""Appendix F: SimpleShot's training schedule against the paper's.

    nearshot reproduce schedule --dataset cifar-fs --seeds 3

Batches of 256, PN 16-way 5-shot 11-query; validation split. SimpleShot's: 90 epochs, drops at 50 and 73 %, weight decay
1e-4. Expected on CIFAR-FS: PN 53.76 / 68.54 against 59.60 / 74.64, NCA 59.41 / 73.29 against 62.07 / 76.26. The paper's
two trainings are those of `batch-size`. Time: four minutes a training on an H200 at 84×84.
"""

from __future__ import annotations

from collections.abc import Sequence

from nearshot.experiments.paper import SCHEDULE, Number
from nearshot.experiments.paper_configs import figure_config, simpleshot_schedule
from nearshot.experiments.recipe import Found, Recipe, Wanted
from nearshot.experiments.results import Measurement
from nearshot.experiments.tables import Row, Table, beside
from nearshot.training import TrainConfig

__all__ = ["RECIPE", "row_config"]

BATCH_SIZE = 256


def row_config(dataset: str, row: str) -> TrainConfig:
    """Return the settings of a row of the paper's table."""
    config = figure_config(dataset, "nca" if row.startswith("NCA") else "prototypical", BATCH_SIZE)
    return simpleshot_schedule(config) if "SimpleShot" in row else config


def _wanted(dataset: str) -> Sequence[Wanted]:
    return [Wanted(row_config(dataset, row)) for row in SCHEDULE]


def _tables(found: Found, dataset: str) -> Sequence[Table]:
    nothing: tuple[Number | None, Number | None] = (None, None)
    rows: list[Row] = [
        (
            row,
            *beside(
                [found.pooled(row_config(dataset, row), Measurement("val", shot, "centroid")) for shot in (1, 5)],
                paper[dataset] if found.scale.is_papers else nothing,
            ),
        )
        for row, paper in SCHEDULE.items()
    ]
    return [
        Table(
            f"schedule-{found.on(dataset)}",
            "SimpleShot's schedule and the paper's (Appendix F): "
            f"{found.on(dataset)}, validation split, nearest centroid",
            found.label,
            ("trained with", "1-shot", "paper", "difference", "5-shot", "paper", "difference"),
            tuple(rows),
        )
    ]


RECIPE = Recipe(
    name="schedule",
    title="Appendix F: SimpleShot's schedule against the paper's",
    datasets=("cifar-fs", "mini-imagenet"),
    wanted=_wanted,
    tables=_tables,
)
