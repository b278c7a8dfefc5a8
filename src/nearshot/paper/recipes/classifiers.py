"""Appendix D and Section 3.1: classifiers on NCA's features, and how the features are treated.

    nearshot reproduce classifiers --dataset cifar-fs --seeds 3

Expected on CIFAR-FS, 5-shot, validation / test: k-NN 73.46 / 80.94, soft assignment 76.12 / 83.31,
nearest centroid 77.80 / 85.13. Adds what Section 3.1 says about centring and normalising. The run
is the comparison's NCA; a minute beyond it on an H200.
"""

from nearshot.paper.accuracy_table import PAPER_DATASETS, accuracy_table, both_shots
from nearshot.paper.measurement import TREATMENTS
from nearshot.paper.numbers import CLASSIFIERS_TABLE, SHOTS, TITLES
from nearshot.paper.recipe import Recipe, Row
from nearshot.paper.results import Measurement, Results
from nearshot.paper.tables import Table
from nearshot.training import PRESETS

SPLITS = {"val": "validation", "test": "test"}
USUAL = "centred and normalised"
NOTE = (
    "Centring alone moves all features by the same vector, which changes no distance and no "
    "answer. It matters only before normalising."
)


def classifier_rows(dataset: str) -> list[Row]:
    """Return a row per classifier, on both splits."""
    result = []
    for name, title in TITLES.items():
        measurements = [Measurement(split, 5, name) for split in SPLITS]
        config = PRESETS[f"{dataset}-nca"]
        result.append(Row(title, config, measurements, CLASSIFIERS_TABLE[name][dataset]))
    return result


def treatment_rows(dataset: str) -> list[Row]:
    """Return a row per treatment of the features, on the validation split."""
    result = []
    for how in TREATMENTS:
        measurements = [Measurement("val", n_shot, "centroid", how=how) for n_shot in SHOTS]
        result.append(Row(how or USUAL, PRESETS[f"{dataset}-nca"], measurements))
    return result


def rows(dataset: str) -> list[Row]:
    """Return the rows of both tables; every classifier is measured with one shot, too."""
    measurements = []
    for name in TITLES:
        for split in SPLITS:
            measurements += both_shots(split, name)
    everything = Row("NCA", PRESETS[f"{dataset}-nca"], measurements)
    return [*classifier_rows(dataset), *treatment_rows(dataset), everything]


def tables(results: Results, dataset: str) -> list[Table]:
    """Return the classifiers and the treatments."""
    name = results.dataset(dataset)
    classifiers = accuracy_table(
        f"classifiers-{name}",
        f"Classifiers on NCA's features (Appendix D): {name}, 5-shot",
        results,
        classifier_rows(dataset),
        labels=("classifier",),
        columns=tuple(SPLITS.values()),
        with_paper=True,
    )
    treatments = accuracy_table(
        f"treatments-{name}",
        f"Centring and normalising NCA's features (Section 3.1): {name}, validation split, nearest "
        "centroid",
        results,
        treatment_rows(dataset),
        labels=("features",),
        notes=(NOTE,),
    )
    return [classifiers, treatments]


RECIPE = Recipe(
    "classifiers",
    "Section 3.1, Appendix D: centring and normalising; nearest centroid, soft assignment, k-NN",
    PAPER_DATASETS,
    rows,
    tables,
)
