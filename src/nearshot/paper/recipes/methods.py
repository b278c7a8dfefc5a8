"""Beyond the paper: the six methods, trained alike.

    nearshot reproduce methods --dataset cifar-fs --input-size 32 --seeds 1

Validation split, nearest centroid and soft assignment, batches of 512 and 120 epochs, as in Figures
2 to 4. Six runs a seed, two minutes each on an H200 at 32×32.
"""

from nearshot.paper.accuracy_table import PAPER_DATASETS, accuracy_table, both_shots
from nearshot.paper.numbers import FLOOR, SHOTS, figure_config
from nearshot.paper.recipe import Recipe, Row
from nearshot.paper.results import Results
from nearshot.paper.tables import Table
from nearshot.training import Method
from nearshot.training.methods import (
    NCA,
    MatchingNetworks,
    NCAWithPrototypes,
    PrototypicalNetworks,
    SimpleShot,
    SupCon,
)

# Named here, so that a new method does not change this table.
METHODS: dict[str, Method] = {
    "NCA": NCA(background=FLOOR),
    "Prototypical Networks": PrototypicalNetworks(background=FLOOR),
    "Matching Networks": MatchingNetworks(background=FLOOR),
    "NCA with prototypes": NCAWithPrototypes(background=FLOOR),
    "SimpleShot": SimpleShot(),
    "SupCon": SupCon(),
}
CLASSIFIERS = ("centroid", "soft")


def rows(dataset: str) -> list[Row]:
    """Return the methods, each with both classifiers."""
    measurements = []
    for classifier in CLASSIFIERS:
        measurements += both_shots(classifier=classifier)
    result = []
    for title, method in METHODS.items():
        config = figure_config(dataset, method, 512)
        result.append(Row(title, config, measurements, from_validation=True))
    return result


def tables(results: Results, dataset: str) -> list[Table]:
    """Return the accuracies."""
    name = results.dataset(dataset)
    columns = []
    for classifier in CLASSIFIERS:
        columns += [f"{n_shot}-shot {classifier}" for n_shot in SHOTS]
    title = f"Every method, trained alike: {name}, validation split"
    return [accuracy_table(f"methods-{name}", title, results, rows(dataset), columns=columns)]


RECIPE = Recipe(
    "methods",
    "Beyond the paper: every method, trained alike",
    (*PAPER_DATASETS, "tiered-imagenet"),
    rows,
    tables,
)
