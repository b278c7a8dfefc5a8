"""Appendix I: implementations of Prototypical Networks across papers.

    nearshot reproduce pn-implementations --seeds 3

Others' rows are quoted; the paper's two rows are those of `comparison` on miniImageNet, and ours stand beside them.
Time: five minutes a training on an H200.
"""

from __future__ import annotations

from collections.abc import Sequence

from nearshot.experiments.paper import PN_IMPLEMENTATIONS
from nearshot.experiments.recipe import Found, Recipe, Wanted, like
from nearshot.experiments.results import Measurement
from nearshot.experiments.tables import Cell, Table, cell
from nearshot.training import PRESETS

__all__ = ["RECIPE"]

OURS = {"nearshot, Snell's episodes": "prototypical-snell", "nearshot, best episodes": "prototypical"}
TEST = tuple(Measurement("test", shot, "centroid") for shot in (1, 5))


def _wanted(dataset: str) -> Sequence[Wanted]:
    return [Wanted(PRESETS[f"{dataset}-{method}"], TEST) for method in OURS.values()]


def _tables(found: Found, dataset: str) -> Sequence[Table]:
    rows: list[tuple[Cell | str, ...]] = []
    if found.scale.is_papers and dataset == "mini-imagenet":
        rows += [
            (f"{name} (quoted)", architecture, *map(cell, accuracy))
            for (name, architecture), accuracy in PN_IMPLEMENTATIONS.items()
        ]
    for name, method in OURS.items():
        config = PRESETS[f"{dataset}-{method}"]
        backbone = found.scale.change(config).backbone
        rows.append((name, backbone, *(cell(found.pooled(config, wanted)) for wanted in TEST)))
    where = like("Appendix I", dataset, "mini-imagenet")
    return [
        Table(
            f"pn-implementations-{found.on(dataset)}",
            f"Implementations of Prototypical Networks ({where}): {found.on(dataset)}, test split",
            found.label,
            ("implementation", "architecture", "1-shot", "5-shot"),
            tuple(rows),
        )
    ]


RECIPE = Recipe(
    name="pn-implementations",
    title="Appendix I: implementations of Prototypical Networks",
    datasets=("mini-imagenet", "cifar-fs"),
    wanted=_wanted,
    tables=_tables,
)
