"""Appendix G: features of several layers, fine-tuning on the support set, a Mahalanobis matrix.

    nearshot reproduce adaptation --dataset cifar-fs --seeds 3

Uses the comparison's NCA training; test split. Expected on CIFAR-FS: 72.48 / 85.13 plain, 72.44 / 85.42 multi-layer,
85.66 multi-layer and fine-tuned (5-shot). Adaptation here is inductive: batch norm is frozen and queries have no part
in it, unlike in the published experiments. Adapted numbers are over 600 episodes, in the quick form 100. Time beyond
the training: a minute on an H200 (0.06 s an episode for fine-tuning).
"""

from __future__ import annotations

from collections.abc import Sequence

from nearshot.experiments.paper import ADAPTATION, Number
from nearshot.experiments.recipe import Found, Recipe, Wanted
from nearshot.experiments.results import Measurement
from nearshot.experiments.tables import Row, Table, beside
from nearshot.training import PRESETS

__all__ = ["LAYERS", "RECIPE", "ROWS"]

LAYERS = (2, 3, 4)
ROWS = {  # row: (layers, adaptation, shots)
    "NCA": ((), None, (1, 5)),
    "NCA multi-layer": (LAYERS, None, (1, 5)),
    "NCA + support set": ((), "fine-tuned", (5,)),
    "NCA multi-layer + support set": (LAYERS, "fine-tuned", (5,)),
    "NCA + Mahalanobis matrix": ((), "mahalanobis", (5,)),
}


def _wanted(dataset: str) -> Sequence[Wanted]:
    measurements = [
        Measurement("test", shot, "centroid", layers, adapted)
        for layers, adapted, shots in ROWS.values()
        for shot in shots
    ]
    return [Wanted(PRESETS[f"{dataset}-nca"], tuple(measurements))]


def _tables(found: Found, dataset: str) -> Sequence[Table]:
    config = PRESETS[f"{dataset}-nca"]
    rows: list[Row] = []
    for name, (layers, adapted, shots) in ROWS.items():
        ours = [
            found.pooled(config, Measurement("test", shot, "centroid", layers, adapted)) if shot in shots else None
            for shot in (1, 5)
        ]
        paper: Sequence[Number | None] = (None, None)
        if found.scale.is_papers and name in ADAPTATION:
            paper = ADAPTATION[name][dataset]
        rows.append((name, *beside(ours, paper)))
    return [
        Table(
            f"adaptation-{found.on(dataset)}",
            "Several layers and adapting to the support set (Appendix G): "
            f"{found.on(dataset)}, test split, nearest centroid",
            found.label,
            ("features", "1-shot", "paper", "difference", "5-shot", "paper", "difference"),
            tuple(rows),
            (
                f"Adapted rows are inductive, over {found.scale.adapted_episodes} episodes at most; the paper's let "
                "the queries through batch norm.",
            ),
        )
    ]


RECIPE = Recipe(
    name="adaptation",
    title="Appendix G: several layers, fine-tuning, a Mahalanobis matrix",
    datasets=("cifar-fs", "mini-imagenet"),
    wanted=_wanted,
    tables=_tables,
)
