"""Beyond the paper: Snell's episodes with 20 ways and with 15, on the test split.

    nearshot reproduce snell-ways --dataset cifar-fs --seeds 3

The arguments of the published experiments have 20 ways; their names say 15. Two runs a seed beyond
the comparison's, ten minutes each on an H200 at 84×84.
"""

from dataclasses import replace

from nearshot.paper.accuracy_table import PAPER_DATASETS, accuracy_table, both_shots
from nearshot.paper.recipe import Recipe, Row
from nearshot.paper.recipes.comparison import ROWS, row_config
from nearshot.paper.results import Results
from nearshot.paper.tables import Table

NOTE = (
    "The arguments of the published experiments have 20 ways; their names say 15. Both take "
    "equally many steps, so 15 ways see fewer images. (The quick form has 10 ways in both.)"
)


def rows(dataset: str) -> list[Row]:
    """Return both methods with both numbers of ways."""
    result = []
    for label in ("MN (Snell's episodes)", "PN (Snell's episodes)"):
        _, classifier = ROWS[label]
        for n_way in (20, 15):
            config = replace(row_config(dataset, label), n_way=n_way)
            result.append(Row((label, str(n_way)), config, both_shots("test", classifier)))
    return result


def tables(results: Results, dataset: str) -> list[Table]:
    """Return the accuracies."""
    name = results.dataset(dataset)
    table = accuracy_table(
        f"snell-ways-{name}",
        f"Snell's episodes with 20 ways and with 15: {name}, test split",
        results,
        rows(dataset),
        labels=("trained with", "ways"),
        notes=(NOTE,),
    )
    return [table]


RECIPE = Recipe(
    "snell-ways", "Beyond the paper: the ways of Snell's episodes", PAPER_DATASETS, rows, tables
)
