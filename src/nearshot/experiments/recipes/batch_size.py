"""Figure 2, its miniImageNet twin (Appendix H) and the accuracies of Appendix E: batch size and episodes.

    nearshot reproduce batch-size --dataset cifar-fs --seeds 3

Trains NCA, Prototypical and Matching Networks with batches of 128, 256 and 512: 1-shot with m+n = 8, 16, 32 and 5-shot
with m+n = 8, 16, 32; validation split. With one shot the two networks are the same, so there are 30 runs a seed.
Expected on CIFAR-FS, batch 512: NCA 62.84 / 77.07, PN 5-shot m+n=16 60.53 / 75.79; the table has every row beside ours.
Time on an H200 at 84×84: five minutes a run.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import scipy.stats

from nearshot.experiments.accuracy_table import AccuracyRow, AccuracyTable, both_shots
from nearshot.experiments.figures import panels
from nearshot.experiments.paper import BATCH_SIZE_TABLE, BATCH_SIZES, ERRATA, TITLES, figure_config
from nearshot.experiments.recipe import Found, Recipe, Wanted
from nearshot.experiments.tables import Figure, Table
from nearshot.training import TrainConfig

Setup = tuple[int, int] | None  # shots and images of a class; None for NCA
SETUPS = ((5, 16), (5, 8), (5, 32), (1, 8), (1, 16), (1, 32))
METHODS = {"prototypical": ("PN", "centroid"), "matching": ("MN", "soft")}
PANELS = [(method, f"NCA and {short}", classifier) for method, (short, classifier) in METHODS.items()]
IN_FIGURE = SETUPS[:4]  # the others are far worse, and only in the table
DOUBTFUL = {erratum.row: f"* {erratum}" for erratum in ERRATA if erratum.about == "accuracies"}


def setup_config(dataset: str, method: str, batch_size: int, setup: Setup) -> TrainConfig:
    """Return the settings of one point."""
    if setup is None:
        return figure_config(dataset, "nca", batch_size)
    return figure_config(dataset, method, batch_size, shot=setup[0], images_per_class=setup[1])


def setup_name(method: str, setup: Setup) -> str:
    """Return the name of a setup in tables, such as "PN 5-shot m+n=16"."""
    return "NCA" if setup is None else f"{METHODS[method][0]} {setup[0]}-shot m+n={setup[1]}"


def line_name(setup: Setup) -> str:
    """Return the name of a setup in figures, whose panels name the method."""
    return "NCA" if setup is None else f"episodes: {setup[0]}-shot, m+n={setup[1]}"


def _wanted(dataset: str) -> Wanted:
    # The most informative first, since a long queue may be cut: larger batches, NCA, then the best setups.
    points: list[tuple[str, int, Setup]] = [("nca", size, None) for size in reversed(BATCH_SIZES)]
    points += [(method, size, setup) for setup in SETUPS for size in reversed(BATCH_SIZES) for method in METHODS]
    return {setup_config(dataset, *point): () for point in points}


def _lines(method: str, dataset: str) -> list[AccuracyRow]:
    """Return all setups of all batch sizes; the paper has numbers for NCA and PN on CIFAR-FS."""
    has_numbers = dataset == "cifar-fs" and method == "prototypical"
    printed = {(row.batch_size, row.setup): row.accuracy for row in BATCH_SIZE_TABLE if has_numbers}
    lines = []
    for size in reversed(BATCH_SIZES):
        for setup in (None, *SETUPS):
            config = setup_config(dataset, method, size, setup)
            names, sides = (f"batch {size}", setup_name(method, setup)), both_shots(config, "val", METHODS[method][1])
            lines.append(AccuracyRow(names, sides, printed.get((size, setup), ()), (size, setup) in DOUBTFUL))
    return lines


def _table(found: Found, dataset: str, method: str) -> Table:
    short, classifier = METHODS[method]
    where = "Appendix H" if dataset != "cifar-fs" else "Figure 2, Appendix E" if short == "PN" else "Figure 2"
    has_numbers = dataset == "cifar-fs" == found.on(dataset) and method == "prototypical"
    with_paper = has_numbers and found.scale.is_papers
    notes = (*(DOUBTFUL.values() if with_paper else ()), *(_rank_correlation(found) if has_numbers else ()))
    return AccuracyTable(
        f"batch-size-{{on}}-{short.lower()}",
        f"Batch size and episodes, NCA and {short} ({where}): {{on}}, validation split, {TITLES[classifier]}",
        ("batch", "trained with"),
        partial(_lines, method),
        with_paper=with_paper,
        notes=lambda found: notes,
    ).table(found, dataset)


def _rank_correlation(found: Found) -> list[str]:
    """Return a note with Spearman's rank correlation of our rows and the paper's; none where a row is missing."""
    lines = [line for line in _lines("prototypical", "cifar-fs") if not line.doubtful]
    correlations = []
    for place, shots in enumerate(("1 shot", "5 shots")):
        ours = [found.pooled(*side) for line in lines if (side := line.sides[place]) is not None]
        paper = [number.mean for line in lines if (number := line.paper[place])]
        means = [accuracy.mean for accuracy in ours if accuracy is not None]
        if len(means) < len(lines):
            return []
        correlations.append(f"{scipy.stats.spearmanr(means, paper).statistic:.2f} with {shots}".replace("-", "−"))
    return [
        f"Rank correlation with the paper's accuracies at 84×84, over {len(lines)} rows: {', '.join(correlations)}. "
        "The row that is doubtful there is excluded."
    ]


def _figures(found: Found, dataset: str) -> Sequence[Figure]:
    def lines(method: str) -> dict[str, list[tuple[float, TrainConfig]]]:
        return {
            line_name(setup): [(size, setup_config(dataset, method, size, setup)) for size in BATCH_SIZES]
            for setup in (None, *IN_FIGURE)
        }

    on, where = found.on(dataset), "Figure 2" if dataset == "cifar-fs" else "Appendix H"
    title = f"Accuracy on the validation split of {on} by batch size and episodes ({where})"
    draw = partial(panels, found, PANELS, lines, xlabel="batch size", ticks=BATCH_SIZES)
    return [Figure(f"batch-size-{on}", title, found.label, draw)]


RECIPE = Recipe(
    name="batch-size",
    title="Figure 2, Appendices E and H: batch size and episodes",
    datasets=("cifar-fs", "mini-imagenet"),
    wanted=_wanted,
    tables=lambda found, dataset: [_table(found, dataset, method) for method in METHODS],
    figures=_figures,
)
