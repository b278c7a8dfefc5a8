"""Appendix C: the supervised contrastive loss.

    nearshot reproduce supcon --dataset mini-imagenet --seeds 3

Trains with the loss that the published experiments ran, which the paper quotes at 51.05 / 63.36 on miniImageNet's test
split, and with Khosla et al.'s own at their temperature 0.1; projection to 128, batches of 512.
Time: five minutes a training on an H200 at 84×84.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from nearshot.experiments.paper import SUPCON, Number
from nearshot.experiments.recipe import Found, Recipe, Wanted, like
from nearshot.experiments.results import Measurement
from nearshot.experiments.tables import Row, Table, beside
from nearshot.training import PRESETS, TrainConfig

__all__ = ["RECIPE"]

ROWS = ("SupCon, as published", "SupCon, Khosla et al.'s", "NCA")
TEST = tuple(Measurement("test", shot, "centroid") for shot in (1, 5))


def row_config(dataset: str, row: str) -> TrainConfig:
    """Return the settings of a row."""
    if row == "NCA":
        return PRESETS[f"{dataset}-nca"]
    published = PRESETS[f"{dataset}-supcon"]
    return published if "published" in row else replace(published, supcon_variant="khosla", temperature=0.1)


def _wanted(dataset: str) -> Sequence[Wanted]:
    return [Wanted(row_config(dataset, row), TEST) for row in ROWS]


def _tables(found: Found, dataset: str) -> Sequence[Table]:
    rows: list[Row] = []
    for row in ROWS:
        paper: Sequence[Number | None] = (None, None)
        if row == ROWS[0] and dataset == "mini-imagenet" and found.scale.is_papers:
            paper = SUPCON
        rows.append((row, *beside([found.pooled(row_config(dataset, row), wanted) for wanted in TEST], paper)))
    where = like("Appendix C", dataset, "mini-imagenet")
    return [
        Table(
            f"supcon-{found.on(dataset)}",
            f"The supervised contrastive loss ({where}): {found.on(dataset)}, test split, nearest centroid",
            found.label,
            ("trained with", "1-shot", "paper", "difference", "5-shot", "paper", "difference"),
            tuple(rows),
        )
    ]


RECIPE = Recipe(
    name="supcon",
    title="Appendix C: the supervised contrastive loss",
    datasets=("mini-imagenet", "cifar-fs"),
    wanted=_wanted,
    tables=_tables,
)
