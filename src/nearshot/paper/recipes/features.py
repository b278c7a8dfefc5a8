"""Appendices D and G, Section 3.1: classifiers, treatments, layers and adaptation on the features of NCA.

    nearshot reproduce classifiers adaptation adaptation-steps --dataset cifar-fs --seeds 3

All use the comparison's NCA run. Time beyond it: a minute or two on an H200 (0.06 s an episode for
fine-tuning).

**classifiers** (Appendix D): expected on CIFAR-FS, 5-shot: k-NN 73.46 / 80.94, soft 76.12 / 83.31,
centroid 77.80 / 85.13 (validation / test). Adds what Section 3.1 says about centring and
normalising.

**adaptation** (Appendix G): expected on CIFAR-FS: 72.48 / 85.13 plain, 72.44 / 85.42 multi-layer,
85.66 multi-layer and fine-tuned (5-shot). Adaptation here is inductive: queries are classified with
the running statistics of training, each on its own. The published experiments fine-tune for 2 steps
(the paper says 5 epochs) and send support and queries through batch norm together. Closest to that:
2 steps, with batch norm in training mode on the support set alone.

**adaptation-steps** (beyond the paper): layers, batch norm and steps, each varied alone on the
validation split, where the Mahalanobis matrix of `adaptation`, 5 steps at 1e-4, was chosen.
"""

from collections.abc import Sequence

from nearshot.paper.accuracy_table import PAPER_DATASETS, AccuracyRow, AccuracyTable
from nearshot.paper.measurement import TREATMENTS
from nearshot.paper.numbers import ADAPTATION, CLASSIFIERS_TABLE, TITLES, Number
from nearshot.paper.recipe import Recipe, Wanted
from nearshot.paper.results import Measurement
from nearshot.training import PRESETS

SPLITS = {"val": "validation", "test": "test"}
LAYERS = (2, 3, 4)
Features = dict[str, tuple[tuple[int, ...], str]]  # row: (layers, adaptation)
CLOSEST = "fine-tuned 2 steps support norm"  # to the published procedure
ADAPTED: Features = {
    "NCA": ((), ""),
    "NCA multi-layer": (LAYERS, ""),
    "NCA + support set": ((), CLOSEST),
    "NCA multi-layer + support set": (LAYERS, CLOSEST),
    "NCA + support set, frozen batch norm, 5 steps": ((), "fine-tuned"),
    "NCA multi-layer + support set, frozen batch norm, 5 steps": (LAYERS, "fine-tuned"),
    "NCA + Mahalanobis matrix": ((), "mahalanobis 5 steps"),
    "NCA + Mahalanobis matrix, 20 steps at 0.001": ((), "mahalanobis"),
}
STEPS: Features = {
    "the embedding: layer 4": ((), ""),
    "layer 3": ((3,), ""),
    "layer 2": ((2,), ""),
    "layers 2, 3 and 4 (the paper's)": ((2, 3, 4), ""),
    "layers 3 and 4": ((3, 4), ""),
    "layers 2 and 4": ((2, 4), ""),
    "fine-tuned, batch norm on the support, 1 step": ((), "fine-tuned 1 step support norm"),
    "fine-tuned, batch norm on the support, 2 steps": ((), CLOSEST),
    "fine-tuned, batch norm on the support, 5 steps": ((), "fine-tuned 5 steps support norm"),
    "fine-tuned, batch norm frozen, 1 step": ((), "fine-tuned 1 step"),
    "fine-tuned, batch norm frozen, 2 steps": ((), "fine-tuned 2 steps"),
    "fine-tuned, batch norm frozen, 5 steps": ((), "fine-tuned"),
    "Mahalanobis matrix, 5 steps at 0.0001": ((), "mahalanobis 5 steps"),
    "Mahalanobis matrix, 20 steps at 0.001": ((), "mahalanobis"),
}
ABOUT_FINE_TUNING = (
    "Fine-tuning is for 2 steps, as in the published code, with batch norm in training mode on the support set alone. "
    "There, the queries went through batch norm too."
)
ABOUT_PAIRED = (
    "Paired differences are from %s on the same episodes, at most {episodes} for adapted rows; ± is over episodes for "
    "one training seed, between seeds for several."
)


def _wanted(dataset: str) -> Wanted:
    measurements = [
        Measurement(split, shot, name) for split in SPLITS for shot in (1, 5) for name in TITLES
    ]
    measurements += [
        Measurement("val", shot, "centroid", how=name) for name in TREATMENTS for shot in (1, 5)
    ]
    return {PRESETS[f"{dataset}-nca"]: list(dict.fromkeys(measurements))}


def _line(
    dataset: str, label: str, measured: Sequence[Measurement], paper: Sequence[Number] = ()
) -> AccuracyRow:
    return AccuracyRow((label,), [(PRESETS[f"{dataset}-nca"], one) for one in measured], paper)


def _adapted(dataset: str, split: str, rows: Features) -> list[AccuracyRow]:
    """Return NCA's features with one shot, where nothing is adapted, and with five: adapting needs two of a class."""
    lines = []
    for row, (layers, adapted) in rows.items():
        sides = [
            (PRESETS[f"{dataset}-nca"], Measurement(split, shot, "centroid", layers, adapted))
            for shot in (1, 5)
        ]
        paper = ADAPTATION[row][dataset] if row in ADAPTATION else ()
        lines.append(AccuracyRow((row,), [None if adapted else sides[0], sides[1]], paper))
    return lines


CLASSIFIERS_OF_NCA = AccuracyTable(
    "classifiers-{on}",
    "Classifiers on NCA's features (Appendix D): {on}, 5-shot",
    ("classifier",),
    lambda dataset: [
        _line(
            dataset,
            title,
            [Measurement(split, 5, name) for split in SPLITS],
            CLASSIFIERS_TABLE[name][dataset],
        )
        for name, title in TITLES.items()
    ],
    tuple(SPLITS.values()),
    with_paper=True,
)
TREATMENTS_OF_NCA = AccuracyTable(
    "treatments-{on}",
    "Centring and normalising NCA's features (Section 3.1): {on}, validation split, nearest centroid",
    ("features",),
    lambda dataset: [
        _line(
            dataset,
            name or "centred and normalised",
            [Measurement("val", s, "centroid", how=name) for s in (1, 5)],
        )
        for name in TREATMENTS
    ],
    notes=(
        "Centring alone moves all features by the same vector, which changes no distance and no answer. It matters "
        "only before normalising.",
    ),
)
CLASSIFY = Recipe(
    name="classifiers",
    title="Section 3.1, Appendix D: centring and normalising; nearest centroid, soft assignment, k-NN",
    datasets=PAPER_DATASETS,
    wanted=_wanted,
    tables=lambda found, dataset: [
        one.table(found, dataset) for one in (CLASSIFIERS_OF_NCA, TREATMENTS_OF_NCA)
    ],
)
ADAPTED_NCA = AccuracyTable(
    "adaptation-{on}",
    "Several layers and adapting to the support set (Appendix G): {on}, test split, nearest centroid",
    ("features",),
    lambda dataset: _adapted(dataset, "test", ADAPTED),
    measured=True,
    with_paper=True,
    paired=True,
    notes=(
        "Adapted rows are inductive, over at most {episodes} episodes; the others are over more. "
        "Compare them by the paired differences, not by these means.",
        f"{ABOUT_FINE_TUNING} The matrix is learnt in 5 steps at 0.0001. Rows that name other settings have those.",
        ABOUT_PAIRED % "NCA",
    ),
)
ADAPT = ADAPTED_NCA.recipe("Appendix G: several layers, fine-tuning, a Mahalanobis matrix")
ADAPT_STEPS = AccuracyTable(
    "adaptation-steps-{on}",
    "Which layers, and how far to fine-tune: {on}, validation split, nearest centroid",
    ("NCA's features",),
    lambda dataset: _adapted(dataset, "val", STEPS),
    measured=True,
    paired=True,
    notes=(ABOUT_PAIRED % "the embedding",),
).recipe("Beyond the paper: which layers, and how many steps of fine-tuning")
