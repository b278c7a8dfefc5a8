"""Section 3.5's big table: NCA, Prototypical and Matching Networks and SimpleShot on the test splits.

    nearshot reproduce comparison --dataset cifar-fs --seeds 3

Six trainings a seed. Expected on CIFAR-FS: NCA 72.49 / 85.15 (nearest centroid) and 72.49 / 83.38 (soft assignment), PN
70.41 / 84.61, MN 71.86 / 82.41, SimpleShot 69.98 / 84.40, and with Snell's episodes PN 69.94 / 84.01, MN 69.28 / 80.79.
One 20-way 5-shot 15-query model serves both columns of Snell's rows, as in the published experiments. Time on an H200
at 84×84: ten minutes a training (240 epochs).
"""

from __future__ import annotations

from collections.abc import Sequence

from nearshot.experiments.gains import gap_cell
from nearshot.experiments.paired import gap
from nearshot.experiments.paper import COMPARISON, QUOTED, Number
from nearshot.experiments.recipe import Found, Recipe, Wanted
from nearshot.experiments.results import Measurement
from nearshot.experiments.tables import Cell, Row, Table, beside, cell, signed
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
PAIRS = {  # of rows with the same classifier
    "NCA − PN": ("NCA nearest centroid", "PN (our episodes)"),
    "NCA − MN": ("NCA soft assignment", "MN (our episodes)"),
    "NCA − SimpleShot": ("NCA nearest centroid", "SimpleShot"),
    "PN, our − Snell's episodes": ("PN (our episodes)", "PN (Snell's episodes)"),
    "MN, our − Snell's episodes": ("MN (our episodes)", "MN (Snell's episodes)"),
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
    return [_accuracies(found, dataset), _differences(found, dataset)]


def _accuracies(found: Found, dataset: str) -> Table:
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
    return Table(
        f"comparison-{found.on(dataset)}",
        f"Comparison (Section 3.5): {found.on(dataset)}, test split",
        found.label,
        ("trained with", "1-shot", "paper", "difference", "5-shot", "paper", "difference"),
        tuple(rows),
    )


def _differences(found: Found, dataset: str) -> Table:
    """Return who is ahead of whom on the same episodes, on both splits."""
    rows: list[Row] = []
    for what, (first, second) in PAIRS.items():
        sides = row_config(dataset, first), row_config(dataset, second)
        cells: list[Cell | str] = [what]
        for number, shot in enumerate((1, 5)):
            for split in ("val", "test"):
                measured = Measurement(split, shot, ROWS[first][1])
                one = gap(found, what, *((config, measured) for config in sides))
                cells.append(gap_cell(one, with_seeds=True))
            papers = [COMPARISON[row][dataset][number].mean for row in (first, second)] if found.scale.is_papers else []
            cells.append(Cell(signed(papers[0] - papers[1]), papers[0] - papers[1]) if papers else Cell("–"))
        rows.append(tuple(cells))
    return Table(
        f"comparison-differences-{found.on(dataset)}",
        f"Who is ahead (Section 3.5): {found.on(dataset)}, paired on the same episodes",
        found.label,
        ("points", "1-shot val", "1-shot test", "paper", "5-shot val", "5-shot test", "paper"),
        tuple(rows),
        (
            "± is between training seeds where there are several, whose differences stand in brackets; otherwise over "
            "episodes, which does not know how much trainings differ. The validation split chose the epochs.",
            "Soft assignment where MN is a side, nearest centroid otherwise. The paper has the test split alone.",
        ),
    )


RECIPE = Recipe(
    name="comparison",
    title="Section 3.5's table: comparison on the test splits",
    datasets=("cifar-fs", "mini-imagenet", "tiered-imagenet"),
    wanted=_wanted,
    tables=_tables,
)
