"""Appendix G: several layers, fine-tuning on the support set, a Mahalanobis matrix.

    nearshot reproduce adaptation --dataset cifar-fs --seeds 3

Test split. Expected on CIFAR-FS: 72.48 / 85.13 plain, 72.44 / 85.42 with several layers, and 85.66
with several layers and fine-tuning (5-shot). Adaptation here is inductive: queries are classified
with the running statistics of training, each on its own. The published experiments fine-tune for 2
steps (the paper says 5 epochs) and send support and queries through batch norm together. Closest to
that: 2 steps, with batch norm in training mode on the support set alone. The run is the
comparison's NCA; two minutes beyond it on an H200 (0.06 s an episode for fine-tuning).
"""

from dataclasses import replace

from nearshot.paper.accuracy_table import PAPER_DATASETS, paired_table
from nearshot.paper.numbers import ADAPTATION
from nearshot.paper.recipe import Recipe, Row
from nearshot.paper.results import Measurement, Results
from nearshot.paper.tables import Table
from nearshot.training import PRESETS

Features = dict[str, tuple[tuple[int, ...], str]]  # row: layers, and how they are adapted
LAYERS = (2, 3, 4)
CLOSEST = "fine-tuned 2 steps support norm"  # to the published procedure
FEATURES: Features = {
    "NCA": ((), ""),
    "NCA multi-layer": (LAYERS, ""),
    "NCA + support set": ((), CLOSEST),
    "NCA multi-layer + support set": (LAYERS, CLOSEST),
    "NCA + support set, frozen batch norm, 5 steps": ((), "fine-tuned"),
    "NCA multi-layer + support set, frozen batch norm, 5 steps": (LAYERS, "fine-tuned"),
    "NCA + Mahalanobis matrix": ((), "mahalanobis 5 steps"),
    "NCA + Mahalanobis matrix, 20 steps at 0.001": ((), "mahalanobis"),
}
NOTES = (
    "Adapted rows are inductive, over at most {n_episodes} episodes; the others are over more. "
    "Compare them by the paired differences, not by these means.",
    "Fine-tuning is for 2 steps, as in the published code, with batch norm in training mode on the "
    "support set alone. There, the queries went through batch norm too. The matrix is learnt in 5 "
    "steps at 0.0001. Rows that name other settings have those.",
)


def rows_of(dataset: str, split: str, features: Features) -> list[Row]:
    """Return NCA's features, with one shot and with five.

    Adapting needs two images of a class, so adapted features are measured with five shots alone.
    """
    result = []
    for label, (layers, how) in features.items():
        one_shot = None if how else Measurement(split, 1, "centroid", layers)
        five_shots = Measurement(split, 5, "centroid", layers, how)
        result.append(Row(label, PRESETS[f"{dataset}-nca"], [one_shot, five_shots]))
    return result


def about_pairs(first: str, results: Results) -> str:
    """Return a note about the paired differences from the first row."""
    n_episodes = results.size.adapted_episodes
    return (
        f"Paired differences are from {first} on the same episodes, at most {n_episodes} for "
        "adapted rows; ± is over episodes for one training seed, between seeds for several."
    )


def rows(dataset: str) -> list[Row]:
    """Return the rows, with the paper's numbers for the first four but one."""
    result = []
    for row in rows_of(dataset, "test", FEATURES):
        paper = ADAPTATION[row.label][dataset] if row.label in ADAPTATION else ()
        result.append(replace(row, paper=paper))
    return result


def tables(results: Results, dataset: str) -> list[Table]:
    """Return the accuracies, and their paired differences from the first row."""
    name = results.dataset(dataset)
    notes = [note.format(n_episodes=results.size.adapted_episodes) for note in NOTES]
    table = paired_table(
        f"adaptation-{name}",
        f"Several layers and adapting to the support set (Appendix G): {name}, test split, nearest "
        "centroid",
        results,
        rows(dataset),
        labels=("features",),
        with_paper=True,
        notes=(*notes, about_pairs("NCA", results)),
    )
    return [table]


RECIPE = Recipe(
    "adaptation",
    "Appendix G: several layers, fine-tuning, a Mahalanobis matrix",
    PAPER_DATASETS,
    rows,
    tables,
)
