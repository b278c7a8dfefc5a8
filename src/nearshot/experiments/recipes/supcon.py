"""Appendix C: the supervised contrastive loss.

    nearshot reproduce supcon --dataset mini-imagenet --seeds 3

Trains with the loss of the published experiments, which the paper quotes at 51.05 / 63.36 on miniImageNet's test split,
and with Khosla et al.'s own loss at their temperature 0.1; projection to 128, batches of 512.
Time: five minutes a run on an H200 at 84×84.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache

from nearshot.experiments.accuracy_table import AccuracyRow, AccuracyTable, both_shots
from nearshot.experiments.paper import SUPCON
from nearshot.training import PRESETS, TrainConfig

__all__ = ["RECIPE", "ROWS", "supcon_config"]

ROWS = ("SupCon, as published", "SupCon, Khosla et al.'s", "NCA")


@cache
def supcon_config(dataset: str, row: str) -> TrainConfig:
    """Return the settings of a row."""
    published = PRESETS[f"{dataset}-supcon"]
    variants = (published, replace(published, supcon_variant="khosla", temperature=0.1), PRESETS[f"{dataset}-nca"])
    return variants[ROWS.index(row)]


def _line(dataset: str, row: str) -> AccuracyRow:
    printed = SUPCON if row == ROWS[0] and dataset == "mini-imagenet" else ()
    return AccuracyRow((row,), both_shots(supcon_config(dataset, row), "test"), printed)


TABLE = AccuracyTable(
    "supcon-{on}",
    "The supervised contrastive loss ({where}): {on}, test split, nearest centroid",
    ("trained with",),
    lambda dataset: [_line(dataset, row) for row in ROWS],
    place=("Appendix C", "mini-imagenet"),
    with_paper=True,
)
RECIPE = TABLE.recipe("Appendix C: the supervised contrastive loss", ("mini-imagenet", "cifar-fs"), measured=True)
