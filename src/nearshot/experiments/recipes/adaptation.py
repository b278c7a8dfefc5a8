"""Appendix G: features of several layers, fine-tuning on the support set, a Mahalanobis matrix.

    nearshot reproduce adaptation --dataset cifar-fs --seeds 3

Uses the comparison's NCA run; test split. Expected on CIFAR-FS: 72.48 / 85.13 plain, 72.44 / 85.42 multi-layer, 85.66
multi-layer and fine-tuned (5-shot). Adaptation here is inductive: batch norm is frozen and queries are not used, unlike
in the published experiments. Adapted numbers are over 600 episodes, in the quick form 100. Time beyond the run: a
minute on an H200 (0.06 s an episode for fine-tuning).
"""

from __future__ import annotations

from nearshot.experiments.accuracy_table import AccuracyTable, Line
from nearshot.experiments.paper import ADAPTATION
from nearshot.experiments.recipe import Found, Recipe
from nearshot.experiments.results import Measurement
from nearshot.training import PRESETS

__all__ = ["LAYERS", "RECIPE", "about_paired"]

LAYERS = (2, 3, 4)
ROWS: dict[str, tuple[tuple[int, ...], str | None]] = {  # row: (layers, adaptation)
    "NCA": ((), None),
    "NCA multi-layer": (LAYERS, None),
    "NCA + support set": ((), "fine-tuned"),
    "NCA multi-layer + support set": (LAYERS, "fine-tuned"),
    "NCA + Mahalanobis matrix": ((), "mahalanobis"),
}


def _line(dataset: str, row: str) -> Line:
    layers, adapted = ROWS[row]
    one, five = ((PRESETS[f"{dataset}-nca"], Measurement("test", shot, "centroid", layers, adapted)) for shot in (1, 5))
    # Adapting needs two images of a class.
    return Line((row,), [one if adapted is None else None, five], ADAPTATION[row][dataset] if row in ADAPTATION else ())


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
    lambda dataset: [_line(dataset, row) for row in ROWS],
    with_paper=True,
    paired=True,
    notes=lambda found: (
        f"Adapted rows are inductive, over at most {found.scale.adapted_episodes} episodes; the others are over more. "
        "Compare them by the paired differences, not by these means. The paper's let the queries through batch norm.",
        about_paired(found, "NCA"),
    ),
)
RECIPE = Recipe(
    name="adaptation",
    title="Appendix G: several layers, fine-tuning, a Mahalanobis matrix",
    datasets=("cifar-fs", "mini-imagenet"),
    wanted=TABLE.measured_runs,
    tables=TABLE.tables,
)
