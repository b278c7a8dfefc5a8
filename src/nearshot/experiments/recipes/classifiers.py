"""Appendix D: nearest centroid, soft assignment and k-NN on the features of NCA; Section 3.1: their treatment.

    nearshot reproduce classifiers --dataset cifar-fs --seeds 3

Uses the comparison's NCA training, and adds what Section 3.1 says about features: centring and normalising, each or
not. Expected on CIFAR-FS, 5-shot: k-NN 73.46 / 80.94, soft 76.12 / 83.31, centroid 77.80 / 85.13 (validation / test).
Time: seconds beyond the training.
"""

from __future__ import annotations

from collections.abc import Sequence

from nearshot.experiments.measurement import TREATMENTS
from nearshot.experiments.paper import CLASSIFIERS_TABLE, Number
from nearshot.experiments.recipe import Found, Recipe, Wanted
from nearshot.experiments.results import Measurement
from nearshot.experiments.tables import Row, Table, beside, cell
from nearshot.training import PRESETS

__all__ = ["CLASSIFIERS", "RECIPE"]

CLASSIFIERS = {"knn": "k-NN", "soft": "soft assignment", "centroid": "nearest centroid"}


def _wanted(dataset: str) -> Sequence[Wanted]:
    measurements = [
        Measurement(split, shot, name) for split in ("val", "test") for shot in (1, 5) for name in CLASSIFIERS
    ]
    measurements += [Measurement("val", shot, "centroid", treatment=name) for name in TREATMENTS for shot in (1, 5)]
    return [Wanted(PRESETS[f"{dataset}-nca"], tuple(dict.fromkeys(measurements)))]


def _tables(found: Found, dataset: str) -> Sequence[Table]:
    config = PRESETS[f"{dataset}-nca"]
    paper = CLASSIFIERS_TABLE.get(dataset, {}) if found.scale.is_papers else {}
    nothing: tuple[Number | None, Number | None] = (None, None)
    rows: list[Row] = [
        (
            title,
            *beside(
                [found.pooled(config, Measurement(split, 5, name)) for split in ("val", "test")],
                paper.get(name, nothing),
            ),
        )
        for name, title in CLASSIFIERS.items()
    ]
    treatments: list[Row] = [
        (name, *(cell(found.pooled(config, Measurement("val", shot, "centroid", treatment=name))) for shot in (1, 5)))
        for name in TREATMENTS
    ]
    return [
        Table(
            f"classifiers-{found.on(dataset)}",
            f"Classifiers on NCA's features (Appendix D): {found.on(dataset)}, 5-shot",
            found.label,
            ("classifier", "validation", "paper", "difference", "test", "paper", "difference"),
            tuple(rows),
        ),
        Table(
            f"treatments-{found.on(dataset)}",
            "Centring and normalising NCA's features (Section 3.1): "
            f"{found.on(dataset)}, validation split, nearest centroid",
            found.label,
            ("features", "1-shot", "5-shot"),
            tuple(treatments),
            (
                "Centring alone moves all features alike: their distances stay, and with them every answer. It tells "
                "only before normalising.",
            ),
        ),
    ]


RECIPE = Recipe(
    name="classifiers",
    title="Section 3.1, Appendix D: centring and normalising; nearest centroid, soft assignment, k-NN",
    datasets=("cifar-fs", "mini-imagenet"),
    wanted=_wanted,
    tables=_tables,
)
