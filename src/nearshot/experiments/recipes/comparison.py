"""Section 3.5's big table: NCA, Prototypical and Matching Networks and SimpleShot on the test splits.

    nearshot reproduce comparison --dataset cifar-fs --seeds 3

Six trainings a seed. Expected on CIFAR-FS: NCA 72.49 / 85.15 (nearest centroid) and 72.49 / 83.38 (soft assignment), PN
70.41 / 84.61, MN 71.86 / 82.41, SimpleShot 69.98 / 84.40, and with Snell's episodes PN 69.94 / 84.01, MN 69.28 / 80.79.
One 20-way 5-shot 15-query model serves both columns of Snell's rows, as in the published experiments. Time on an H200
at 84×84: ten minutes a training (240 epochs).
"""

from __future__ import annotations

from collections.abc import Sequence

from nearshot.experiments.paper import COMPARISON, QUOTED, Number
from nearshot.experiments.recipe import Found, Recipe, Wanted
from nearshot.experiments.results import Measurement
from nearshot.experiments.tables import Cell, Table, beside, cell
from nearshot.training import PRESETS, TrainConfig

__all__ = ["RECIPE", "ROWS", "row_config"]

ROWS = {  # row of the paper: (the preset's method, the classifier)
    "MN (Snell's episodes)": ("matching-snell", "soft"),
    "PN (Snell's episodes)": ("prototypical-snell", "centroid"),
    "MN (our episodes)": ("matching", "soft"),
    "PN (our episodes)": ("prototypical", "centroid"),
    "SimpleShot": ("simpleshot", "centroid"),
    "NCA soft assignment": ("nca", "soft"),
    "NCA nearest centroid": ("nca", "centroid"),
}
ORDER = ("nca", "prototypical", "matching", "simpleshot", "prototypical-snell", "matching-snell")


def row_config(dataset: str, row: str) -> TrainConfig:
    """Return the settings of a row."""
    return PRESETS[f"{dataset}-{ROWS[row][0]}"]


def _wanted(dataset: str) -> Sequence[Wanted]:
    measurements = {
        method: tuple(
            Measurement("test", shot, classifier)
            for other, classifier in ROWS.values()
            if other == method
            for shot in (1, 5)
        )
        for method in ORDER
    }
    return [Wanted(PRESETS[f"{dataset}-{method}"], measurements[method]) for method in ORDER]


def _tables(found: Found, dataset: str) -> Sequence[Table]:
    is_papers_data = found.scale.is_papers
    rows: list[tuple[Cell | str, ...]] = []
    if is_papers_data:
        for name, quoted in QUOTED.items():
            if dataset in quoted:
                one, five = quoted[dataset]
                rows.append((f"{name} (quoted)", Cell("–"), cell(one), Cell("–"), Cell("–"), cell(five), Cell("–")))
    for name, (_, classifier) in ROWS.items():
        ours = [found.pooled(row_config(dataset, name), Measurement("test", shot, classifier)) for shot in (1, 5)]
        paper: Sequence[Number | None] = COMPARISON[name][dataset] if is_papers_data else (None, None)
        rows.append((name, *beside(ours, paper)))
    return [
        Table(
            f"comparison-{found.on(dataset)}",
            f"Comparison (Section 3.5): {found.on(dataset)}, test split",
            found.label,
            ("trained with", "1-shot", "paper", "difference", "5-shot", "paper", "difference"),
            tuple(rows),
        )
    ]


RECIPE = Recipe(
    name="comparison",
    title="Section 3.5's table: comparison on the test splits",
    datasets=("cifar-fs", "mini-imagenet", "tiered-imagenet"),
    wanted=_wanted,
    tables=_tables,
)
