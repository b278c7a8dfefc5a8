"""Beyond the paper: what keeps NCA's advantage over PN until the last epoch.

    nearshot reproduce last-epoch --dataset cifar-fs --seeds 3

Validation split, nearest centroid. NCA and PN at their last epoch with a warm-up, a learnt
temperature, a cosine schedule or an average of the weights. Batches of 512 and 120 epochs, as in
Figure 2, or 240. Twelve runs a seed, five minutes each on an H200 at 84×84, ten for 240 epochs.
"""

from dataclasses import replace

from nearshot.paper.accuracy_table import PAPER_DATASETS
from nearshot.paper.numbers import SHOTS, figure_config
from nearshot.paper.recipe import Recipe, Row
from nearshot.paper.recipes import floor
from nearshot.paper.recipes.epochs import curves_of, difference_of_seeds_cell, mean_cell
from nearshot.paper.results import Results
from nearshot.paper.tables import Table
from nearshot.training import TrainConfig

METHODS = ("NCA", "PN")
NOTE = (
    "From the runs' logs. ± is Welch's interval between training seeds where both sides have "
    "several; there is none with one seed."
)


def variants(dataset: str, method: str) -> dict[str, TrainConfig]:
    """Return the settings of the variants of one of the methods, by label."""
    published = figure_config(dataset, floor.METHODS[method], 512)
    floors = floor.variants(dataset, method)
    return {
        "as published": published,
        "240 epochs": replace(published, epochs=240),
        "warm-up of 10 epochs": floors[floor.WARM_UP],
        "temperature learnt from 640, exact loss": floors[floor.LEARNT_TEMPERATURE],
        "cosine schedule": replace(published, schedule="cosine"),
        "average of the weights": replace(published, ema_decay=0.999),
    }


def rows(dataset: str) -> list[Row]:
    """Return every variant of both methods."""
    result = []
    for method in METHODS:
        for label, config in variants(dataset, method).items():
            result.append(Row((label, method), config, from_validation=True))
    return result


def tables(results: Results, dataset: str) -> list[Table]:
    """Return accuracies at the last epoch, and NCA's advantage there and at the best epochs."""
    name = results.dataset(dataset)
    table = Table(
        f"last-epoch-{name}",
        f"NCA and PN at the last epoch: {name}, validation split, nearest centroid",
        ("trained with", "shots", "NCA", "PN", "NCA − PN", "NCA − PN, best epochs"),
        results.label,
        [NOTE],
    )
    nca = variants(dataset, "NCA")
    prototypical = variants(dataset, "PN")
    for label in nca:
        for n_shot in SHOTS:
            nca_curves = curves_of(results, nca[label], n_shot)
            pn_curves = curves_of(results, prototypical[label], n_shot)
            nca_lasts = {seed: curve[max(curve)] for seed, curve in nca_curves.items()}
            pn_lasts = {seed: curve[max(curve)] for seed, curve in pn_curves.items()}
            nca_bests = {seed: max(curve.values()) for seed, curve in nca_curves.items()}
            pn_bests = {seed: max(curve.values()) for seed, curve in pn_curves.items()}
            table.add_row(
                label,
                f"{n_shot}-shot",
                mean_cell(results, nca_lasts),
                mean_cell(results, pn_lasts),
                difference_of_seeds_cell(nca_lasts, pn_lasts),
                difference_of_seeds_cell(nca_bests, pn_bests),
            )
    return [table]


RECIPE = Recipe(
    "last-epoch",
    "Beyond the paper: what keeps NCA's advantage until the last epoch",
    PAPER_DATASETS,
    rows,
    tables,
)
