"""Appendix G: features of several layers, fine-tuning on the support set, a Mahalanobis matrix.

    nearshot reproduce adaptation --dataset cifar-fs --seeds 3

Uses the comparison's NCA run; test split. Expected on CIFAR-FS: 72.48 / 85.13 plain, 72.44 / 85.42 multi-layer, 85.66
multi-layer and fine-tuned (5-shot). Adaptation here is inductive: batch norm is frozen and queries are not used, unlike
in the published experiments. Adapted numbers are over 600 episodes, in the quick form 100. Time beyond the run: a
minute on an H200 (0.06 s an episode for fine-tuning).
"""

from __future__ import annotations

from nearshot.experiments.accuracy_table import AccuracyRow, AccuracyTable
from nearshot.experiments.paired import Side
from nearshot.experiments.paper import ADAPTATION
from nearshot.experiments.recipe import Found
from nearshot.experiments.results import Measurement
from nearshot.training import PRESETS

__all__ = ["LAYERS", "RECIPE", "about_paired", "nca_sides"]

LAYERS = (2, 3, 4)
ROWS: dict[str, tuple[tuple[int, ...], str | None]] = {  # row: (layers, adaptation)
    "NCA": ((), None),
    "NCA multi-layer": (LAYERS, None),
    "NCA + support set": ((), "fine-tuned"),
    "NCA multi-layer + support set": (LAYERS, "fine-tuned"),
    "NCA + Mahalanobis matrix": ((), "mahalanobis"),
}


def nca_sides(dataset: str, split: str, layers: tuple[int, ...], adapted: str | None) -> list[Side | None]:
    """Return the measurements of NCA's features with one shot, where nothing is adapted, and with five."""
    measured = [Measurement(split, shot, "centroid", layers, adapted) for shot in (1, 5)]
    one, five = ((PRESETS[f"{dataset}-nca"], measurement) for measurement in measured)
    return [one if adapted is None else None, five]  # adapting needs two images of a class


def about_paired(found: Found, against: str) -> str:
    """Return the note about the paired differences of adapted features."""
    return (
        f"Paired differences are from {against} on the same episodes, at most {found.scale.adapted_episodes} for "
        "adapted rows; ± is over episodes for one training seed, between seeds for several."
    )


TABLE = AccuracyTable(
    "adaptation-{on}",
    "Several layers and adapting to the support set (Appendix G): {on}, test split, nearest centroid",
    ("features",),
    lambda dataset: [
        AccuracyRow(
            (row,), nca_sides(dataset, "test", *features), ADAPTATION[row][dataset] if row in ADAPTATION else ()
        )
        for row, features in ROWS.items()
    ],
    with_paper=True,
    paired=True,
    notes=lambda found: (
        f"Adapted rows are inductive, over at most {found.scale.adapted_episodes} episodes; the others are over more. "
        "Compare them by the paired differences, not by these means. The paper's let the queries through batch norm.",
        about_paired(found, "NCA"),
    ),
)
RECIPE = TABLE.recipe("Appendix G: several layers, fine-tuning, a Mahalanobis matrix", measured=True)
