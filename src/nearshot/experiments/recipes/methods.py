"""Every method, trained alike: a new entry in `METHODS` is a row here.

    nearshot reproduce methods --quick
    nearshot reproduce methods --dataset cifar-fs --seeds 1 --input-size 32

Batches of 512 and 120 epochs, as in Figures 2 to 4, which share most of these runs; everything else is a method's
default. Not a table of the paper, which tunes some of them. Time: a minute or two with --quick on a CPU, five minutes
a run on an H200 at 84×84.
"""

from __future__ import annotations

from nearshot.experiments.accuracy_table import AccuracyRow, AccuracyTable, both_shots
from nearshot.experiments.paper_configs import SHOTS, figure_config
from nearshot.training import METHODS

__all__ = ["RECIPE"]

CLASSIFIERS = ("centroid", "soft")


def _line(dataset: str, method: str) -> AccuracyRow:
    config = figure_config(dataset, method, 512)
    return AccuracyRow(
        (METHODS[method].title,), [side for one in CLASSIFIERS for side in both_shots(config, classifier=one)]
    )


TABLE = AccuracyTable(
    "methods-{on}",
    "Every method, trained alike: {on}, validation split",
    ("trained with",),
    lambda dataset: [_line(dataset, method) for method in METHODS],
    tuple(f"{shot}-shot {classifier}" for classifier in CLASSIFIERS for shot in SHOTS),
)
RECIPE = TABLE.recipe(
    "Every method, trained alike (not in the paper)", ("cifar-fs", "mini-imagenet", "tiered-imagenet")
)
