"""Appendix I: implementations of Prototypical Networks across papers.

    nearshot reproduce pn-implementations --seeds 3

The rows of other papers are quoted. The paper's two rows are those of `comparison` on miniImageNet, with ours below.
Time: five minutes a run on an H200.
"""

from __future__ import annotations

from collections.abc import Sequence

from nearshot.experiments.accuracy_table import BOTH_SHOTS
from nearshot.experiments.paper import PN_IMPLEMENTATIONS
from nearshot.experiments.recipe import Found, Recipe, Wanted, like
from nearshot.experiments.results import Measurement
from nearshot.experiments.tables import Row, Table, cell
from nearshot.training import PRESETS

__all__ = ["RECIPE"]

OURS = {"nearshot, Snell's episodes": "prototypical-snell", "nearshot, best episodes": "prototypical"}
TEST = tuple(Measurement("test", shot, "centroid") for shot in (1, 5))


def _tables(found: Found, dataset: str) -> Sequence[Table]:
    rows: list[Row] = []
    if found.scale.is_papers and dataset == "mini-imagenet":
        rows += [
            (f"{name} (quoted)", architecture, *map(cell, accuracy))
            for (name, architecture), accuracy in PN_IMPLEMENTATIONS.items()
        ]
    for name, method in OURS.items():
        config = PRESETS[f"{dataset}-{method}"]
        backbone = found.scale.change(config).backbone
        rows.append((name, backbone, *(cell(found.pooled(config, measured)) for measured in TEST)))
    on, where = found.on(dataset), like("Appendix I", dataset, "mini-imagenet")
    return [
        Table(
            f"pn-implementations-{on}",
            f"Implementations of Prototypical Networks ({where}): {on}, test split",
            found.label,
            ("implementation", "architecture", *BOTH_SHOTS),
            tuple(rows),
        )
    ]


RECIPE = Recipe(
    name="pn-implementations",
    title="Appendix I: implementations of Prototypical Networks",
    datasets=("mini-imagenet", "cifar-fs"),
    wanted=lambda dataset: [Wanted(PRESETS[f"{dataset}-{method}"], TEST) for method in OURS.values()],
    tables=_tables,
)
