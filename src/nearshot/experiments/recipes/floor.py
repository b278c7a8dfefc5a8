"""Beyond the paper: whether it is the floor of the published arithmetic that makes training work.

    nearshot reproduce floor --dataset cifar-fs --input-size 32 --seeds 1

The published experiments add 1e-10 to what is not a positive and leave out anchors under it (`background`). Without
it PN loses points. NCA, PN and MN (5-shot, m+n = 16), batches of 512, with the floor and with the exact loss, and with
the exact loss and something else that keeps the first steps from saturating: a warm-up of the learning rate, a
temperature of a tenth of the dimension or of all of it, a learnt one; and Nesterov's momentum, which the paper's text
has. Validation split, nearest centroid. Two minutes a training at 32×32 on an H200 that two share.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from nearshot.experiments.paper_configs import figure_config
from nearshot.experiments.recipe import Found, Recipe, Wanted
from nearshot.experiments.results import Measurement
from nearshot.experiments.tables import Row, Table, cell
from nearshot.training import TrainConfig

__all__ = ["RECIPE", "VARIANTS", "variant_config"]

BATCH_SIZE = 512
METHODS = {"nca": "NCA", "prototypical": "PN", "matching": "MN"}
VARIANTS: dict[str, dict[str, Any]] = {
    "floor 1e-10 (published)": {},
    "exact": {"background": 0.0},
    "exact, warm-up of 10 epochs": {"background": 0.0, "warm_up": 10.0},
    "exact, temperature learnt from 640": {"background": 0.0, "temperature": 640.0, "learn_temperature": True},
    "exact, temperature 64": {"background": 0.0, "temperature": 64.0},
    "exact, temperature 640": {"background": 0.0, "temperature": 640.0},
    "floor, Nesterov": {"nesterov": True},
    "floor, warm-up of 10 epochs": {"warm_up": 10.0},
}


def variant_config(dataset: str, method: str, variant: str) -> TrainConfig:
    """Return the settings of a cell of the table."""
    return replace(figure_config(dataset, method, BATCH_SIZE), **VARIANTS[variant])


def _wanted(dataset: str) -> Sequence[Wanted]:
    return [Wanted(variant_config(dataset, method, variant)) for variant in VARIANTS for method in METHODS]


def _tables(found: Found, dataset: str) -> Sequence[Table]:
    rows: list[Row] = [
        (
            variant,
            *(
                cell(found.pooled(variant_config(dataset, method, variant), Measurement("val", shot, "centroid")))
                for method in METHODS
                for shot in (1, 5)
            ),
        )
        for variant in VARIANTS
    ]
    headings = [f"{title} {shot}-shot" for title in METHODS.values() for shot in (1, 5)]
    return [
        Table(
            f"floor-{found.on(dataset)}",
            f"The floor of the published arithmetic, and what can replace it: {found.on(dataset)}, validation split, "
            "nearest centroid, best epoch",
            found.label,
            ("loss and schedule", *headings),
            tuple(rows),
        )
    ]


RECIPE = Recipe(
    name="floor",
    title="Beyond the paper: the floor of the published arithmetic, and what can replace it",
    datasets=("cifar-fs", "mini-imagenet"),
    wanted=_wanted,
    tables=_tables,
)
