"""Not in the paper: which layers to take, and how far to fine-tune, by the validation split.

    nearshot reproduce adaptation-steps --dataset cifar-fs --seeds 3

Uses the comparison's NCA training. Appendix G takes layers 2 to 4 together and fine-tunes for five steps; on CIFAR-FS
both lost with our network, so here both are taken apart. Time beyond the training: a minute on an H200.
"""

from __future__ import annotations

from collections.abc import Sequence

from nearshot.experiments.gains import about_gains, gain
from nearshot.experiments.paper_configs import SHOTS
from nearshot.experiments.recipe import Found, Recipe, Wanted
from nearshot.experiments.results import Measurement
from nearshot.experiments.tables import Cell, Row, Table, cell
from nearshot.training import PRESETS

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


def _measurement(row: str, n_shot: int) -> Measurement | None:
    layers, adapted = ROWS[row]
    if adapted is not None and n_shot == 1:
        return None  # no two images of a class to learn from
    return Measurement("val", n_shot, "centroid", layers, adapted)


def _wanted(dataset: str) -> Sequence[Wanted]:
    all_of_them = (_measurement(row, shot) for row in ROWS for shot in SHOTS)
    return [Wanted(PRESETS[f"{dataset}-nca"], tuple(one for one in all_of_them if one is not None))]


def _tables(found: Found, dataset: str) -> Sequence[Table]:
    config = PRESETS[f"{dataset}-nca"]
    rows: list[Row] = []
    for row in ROWS:
        cells: list[Cell | str] = [row]
        for shot in SHOTS:
            one = _measurement(row, shot)
            cells.append(cell(None if one is None else found.pooled(config, one)))
            cells.append(gain(found, config, one, Measurement("val", shot, "centroid")))
        rows.append(tuple(cells))
    return [
        Table(
            f"adaptation-steps-{found.on(dataset)}",
            f"Which layers, and how far to fine-tune: {found.on(dataset)}, validation split, nearest centroid",
            found.label,
            ("NCA's features", "1-shot", "gain", "5-shot", "gain"),
            tuple(rows),
            (about_gains(found, "the embedding"),),
        )
    ]


RECIPE = Recipe(
    name="adaptation-steps",
    title="Not in the paper: which layers, and how many steps of fine-tuning",
    datasets=("cifar-fs", "mini-imagenet"),
    wanted=_wanted,
    tables=_tables,
)
