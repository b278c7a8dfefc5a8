"""Section 2.2 and Appendix F: the choices that the text discusses without a table.

    nearshot reproduce choices --dataset cifar-fs --seeds 3

Validation split, batches of 512. DropBlock is at 0.1 after the last two stages, where Lee et al.
have it. The paper's details list centre crops; its published code crops at random, as all other
recipes do. The quick form has centre crops only. Seven runs a seed, five minutes each on an H200 at
84×84, ten for 240 epochs.
"""

from dataclasses import replace

from nearshot.data.augment import Augmentation
from nearshot.paper.accuracy_table import PAPER_DATASETS, accuracy_table, both_shots
from nearshot.paper.numbers import FLOOR, figure_config
from nearshot.paper.recipe import Recipe, Row
from nearshot.paper.results import Results
from nearshot.paper.tables import Table
from nearshot.training.methods import NCA, MatchingNetworks

NOTE = "Cosine distances are divided by a temperature of 0.1: at 1 they hardly differ."


def rows(dataset: str) -> list[Row]:
    """Return NCA and Matching Networks, and what the text discusses of each."""
    nca = figure_config(dataset, NCA(background=FLOOR), 512)
    projected = NCA(background=FLOOR, projection=128)
    euclidean = MatchingNetworks(background=FLOOR)
    cosine = replace(euclidean, distance="cosine", temperature=0.1)
    configs = {
        "NCA": nca,
        "NCA, projection to 128": replace(nca, method=projected),
        "NCA, 240 epochs": replace(nca, epochs=240),
        "NCA, DropBlock": replace(nca, backbone="resnet12-dropblock"),
        "MN, Euclidean": figure_config(dataset, euclidean, 512),
        "MN, cosine": figure_config(dataset, cosine, 512),
        "NCA, flips and centre crops": replace(nca, augmentation=Augmentation(crop="centre")),
    }
    result = []
    for label, config in configs.items():
        classifier = "soft" if label.startswith("MN") else "centroid"
        result.append(Row(label, config, both_shots("val", classifier), from_validation=True))
    return result


def tables(results: Results, dataset: str) -> list[Table]:
    """Return the accuracies."""
    name = results.dataset(dataset)
    table = accuracy_table(
        f"choices-{name}",
        f"Choices that the text discusses (Section 2.2, Appendix F): {name}, validation split",
        results,
        rows(dataset),
        notes=(NOTE,),
    )
    return [table]


RECIPE = Recipe(
    "choices", "Section 2.2, Appendix F: statements about choices", PAPER_DATASETS, rows, tables
)
