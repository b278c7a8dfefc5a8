"""Every method there is, trained alike: a new line in `METHODS` is a row here.

    nearshot reproduce methods --quick
    nearshot reproduce methods --dataset cifar-fs --seeds 1 --input-size 32

Batches of 512 and 120 epochs, as in Figures 2 to 4, with which most of these trainings are shared; everything else is a
method's default. No table of the paper, which tunes some of them. Time: a minute or two with --quick on a CPU, five
minutes a training on an H200 at 84×84.
"""

from __future__ import annotations

from collections.abc import Sequence

from nearshot.experiments.paper_configs import figure_config
from nearshot.experiments.recipe import Found, Recipe, Wanted
from nearshot.experiments.results import Measurement
from nearshot.experiments.tables import Row, Table, cell
from nearshot.training import METHODS

__all__ = ["RECIPE"]

COLUMNS = tuple(Measurement("val", shot, classifier) for classifier in ("centroid", "soft") for shot in (1, 5))


def _wanted(dataset: str) -> Sequence[Wanted]:
    return [Wanted(figure_config(dataset, name, 512)) for name in METHODS]


def _tables(found: Found, dataset: str) -> Sequence[Table]:
    rows: list[Row] = [
        (method.title, *(cell(found.pooled(figure_config(dataset, name, 512), one)) for one in COLUMNS))
        for name, method in METHODS.items()
    ]
    return [
        Table(
            f"methods-{found.on(dataset)}",
            f"Every method, trained alike: {found.on(dataset)}, validation split",
            found.label,
            ("trained with", *(f"{one.n_shot}-shot {one.classifier}" for one in COLUMNS)),
            tuple(rows),
        )
    ]


RECIPE = Recipe(
    name="methods",
    title="Every method there is, trained alike (not in the paper)",
    datasets=("cifar-fs", "mini-imagenet", "tiered-imagenet"),
    wanted=_wanted,
    tables=_tables,
)
