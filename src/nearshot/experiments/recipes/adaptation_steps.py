"""Not in the paper: which layers to take, and how far to fine-tune, by the validation split.

    nearshot reproduce adaptation-steps --dataset cifar-fs --seeds 3

Uses the comparison's NCA run. Appendix G takes layers 2 to 4 together and fine-tunes for five steps. With our network
both lost on CIFAR-FS, so this table varies each alone. Time beyond the run: a minute on an H200.
"""

from __future__ import annotations

from nearshot.experiments.accuracy_table import AccuracyRow, AccuracyTable
from nearshot.experiments.recipes.adaptation import about_paired, nca_sides

__all__ = ["RECIPE"]

ROWS: dict[str, tuple[tuple[int, ...], str | None]] = {  # row: (layers, adaptation)
    "the embedding: layer 4": ((), None),
    "layer 3": ((3,), None),
    "layer 2": ((2,), None),
    "layers 2, 3 and 4 (the paper's)": ((2, 3, 4), None),
    "layers 3 and 4": ((3, 4), None),
    "layers 2 and 4": ((2, 4), None),
    "fine-tuned for 1 step": ((), "fine-tuned 1 step"),
    "fine-tuned for 2 steps": ((), "fine-tuned 2 steps"),
    "fine-tuned for 5 steps (the paper's)": ((), "fine-tuned"),
    "with a Mahalanobis matrix": ((), "mahalanobis"),
}


TABLE = AccuracyTable(
    "adaptation-steps-{on}",
    "Which layers, and how far to fine-tune: {on}, validation split, nearest centroid",
    ("NCA's features",),
    lambda dataset: [AccuracyRow((row,), nca_sides(dataset, "val", *features)) for row, features in ROWS.items()],
    paired=True,
    notes=lambda found: (about_paired(found, "the embedding"),),
)
RECIPE = TABLE.recipe("Not in the paper: which layers, and how many steps of fine-tuning", measured=True)
