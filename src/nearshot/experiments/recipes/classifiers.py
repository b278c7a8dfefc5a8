"""Appendix D: nearest centroid, soft assignment and k-NN on the features of NCA; Section 3.1: their treatment.

    nearshot reproduce classifiers --dataset cifar-fs --seeds 3

Uses the comparison's NCA run, and adds what Section 3.1 says about features: with and without centring and normalising.
Expected on CIFAR-FS, 5-shot: k-NN 73.46 / 80.94, soft 76.12 / 83.31, centroid 77.80 / 85.13 (validation / test).
Time: seconds beyond the run.
"""

from __future__ import annotations

from collections.abc import Sequence

from nearshot.experiments.accuracy_table import AccuracyRow, AccuracyTable
from nearshot.experiments.measurement import TREATMENTS
from nearshot.experiments.paper import CLASSIFIERS_TABLE
from nearshot.experiments.recipe import Recipe, Wanted
from nearshot.experiments.results import Measurement
from nearshot.training import PRESETS

__all__ = ["RECIPE"]

CLASSIFIERS = {"knn": "k-NN", "soft": "soft assignment", "centroid": "nearest centroid"}
SPLITS = {"val": "validation", "test": "test"}


def _wanted(dataset: str) -> Sequence[Wanted]:
    measurements = [Measurement(split, shot, name) for split in SPLITS for shot in (1, 5) for name in CLASSIFIERS]
    measurements += [Measurement("val", shot, "centroid", treatment=name) for name in TREATMENTS for shot in (1, 5)]
    return [Wanted(PRESETS[f"{dataset}-nca"], tuple(dict.fromkeys(measurements)))]


def _line(dataset: str, name: str) -> AccuracyRow:
    sides = [(PRESETS[f"{dataset}-nca"], Measurement(split, 5, name)) for split in SPLITS]
    return AccuracyRow((CLASSIFIERS[name],), sides, CLASSIFIERS_TABLE[dataset][name])


def _treatment(dataset: str, name: str) -> AccuracyRow:
    measured = [Measurement("val", shot, "centroid", treatment=name) for shot in (1, 5)]
    return AccuracyRow((name,), [(PRESETS[f"{dataset}-nca"], one) for one in measured])


TABLES = (
    AccuracyTable(
        "classifiers-{on}",
        "Classifiers on NCA's features (Appendix D): {on}, 5-shot",
        ("classifier",),
        lambda dataset: [_line(dataset, name) for name in CLASSIFIERS],
        tuple(SPLITS.values()),
        with_paper=True,
    ),
    AccuracyTable(
        "treatments-{on}",
        "Centring and normalising NCA's features (Section 3.1): {on}, validation split, nearest centroid",
        ("features",),
        lambda dataset: [_treatment(dataset, name) for name in TREATMENTS],
        notes=lambda found: (
            "Centring alone moves all features by the same vector, which changes no distance and no answer. It matters "
            "only before normalising.",
        ),
    ),
)
RECIPE = Recipe(
    name="classifiers",
    title="Section 3.1, Appendix D: centring and normalising; nearest centroid, soft assignment, k-NN",
    datasets=("cifar-fs", "mini-imagenet"),
    wanted=_wanted,
    tables=lambda found, dataset: [one.table(found, dataset) for one in TABLES],
)
