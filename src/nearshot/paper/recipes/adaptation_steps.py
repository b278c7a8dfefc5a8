"""Beyond the paper: which layers, and how many steps of fine-tuning, on the validation split.

    nearshot reproduce adaptation-steps --dataset cifar-fs --seeds 3

Layers, batch norm and steps, each varied alone. The Mahalanobis matrix of `adaptation`, 5 steps at
1e-4, was chosen here. The run is the comparison's NCA; two minutes beyond it on an H200.
"""

from nearshot.paper.accuracy_table import PAPER_DATASETS, paired_table
from nearshot.paper.recipe import Recipe, Row
from nearshot.paper.recipes.adaptation import CLOSEST, Features, about_pairs, rows_of
from nearshot.paper.results import Results
from nearshot.paper.tables import Table

FEATURES: Features = {
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


def rows(dataset: str) -> list[Row]:
    """Return a row for each choice of layers, batch norm and steps."""
    return rows_of(dataset, "val", FEATURES)


def tables(results: Results, dataset: str) -> list[Table]:
    """Return the accuracies, and their paired differences from the embedding."""
    name = results.dataset(dataset)
    table = paired_table(
        f"adaptation-steps-{name}",
        f"Which layers, and how far to fine-tune: {name}, validation split, nearest centroid",
        results,
        rows(dataset),
        labels=("NCA's features",),
        notes=(about_pairs("the embedding", results),),
    )
    return [table]


RECIPE = Recipe(
    "adaptation-steps",
    "Beyond the paper: which layers, and how many steps of fine-tuning",
    PAPER_DATASETS,
    rows,
    tables,
)
