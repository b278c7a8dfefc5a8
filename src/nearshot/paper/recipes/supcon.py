"""Appendix C: the supervised contrastive loss against NCA on the test split.

    nearshot reproduce supcon --dataset mini-imagenet --seeds 3

Expected on miniImageNet: 51.05 / 63.36 with the loss of the published experiments. Khosla et al.'s
own loss is beside it, at their temperature of 0.1. Projection to 128, batches of 512; two runs a
seed beyond the comparison's NCA, ten minutes each on an H200 at 84×84.
"""

from dataclasses import replace

from nearshot.paper.accuracy_table import accuracy_table, both_shots
from nearshot.paper.numbers import SUPCON
from nearshot.paper.recipe import Recipe, Row, like
from nearshot.paper.results import Results
from nearshot.paper.tables import Table
from nearshot.training import PRESETS
from nearshot.training.methods import SupCon

PUBLISHED = "SupCon, as published"
KHOSLA = "SupCon, Khosla et al.'s"


def rows(dataset: str) -> list[Row]:
    """Return both contrastive losses, and NCA."""
    published = PRESETS[f"{dataset}-supcon"]
    khosla = SupCon(variant="khosla", temperature=0.1, projection=128)
    measurements = both_shots("test")
    return [
        Row(PUBLISHED, published, measurements, SUPCON.get(dataset, ())),
        Row(KHOSLA, replace(published, method=khosla), measurements),
        Row("NCA", PRESETS[f"{dataset}-nca"], measurements),
    ]


def tables(results: Results, dataset: str) -> list[Table]:
    """Return the accuracies."""
    name = results.dataset(dataset)
    where = like("Appendix C", dataset)
    title = f"The supervised contrastive loss ({where}): {name}, test split, nearest centroid"
    return [accuracy_table(f"supcon-{name}", title, results, rows(dataset), with_paper=True)]


RECIPE = Recipe(
    "supcon",
    "Appendix C: the supervised contrastive loss",
    ("mini-imagenet", "cifar-fs"),
    rows,
    tables,
)
