"""Figure 2, its miniImageNet twin (Appendix H) and the accuracies of Appendix E: batch size and episodes.

    nearshot reproduce batch-size --dataset cifar-fs --seeds 3

Trains NCA, Prototypical and Matching Networks with batches of 128, 256 and 512: 1-shot with m+n = 8, 16, 32 and 5-shot
with m+n = 8, 16, 32; validation split. One shot makes the two networks one, so 30 trainings a seed. Expected, CIFAR-FS,
batch 512: NCA 62.84 / 77.07, PN 5-shot m+n=16 60.53 / 75.79; every row is in the table beside ours. Time on an H200
at 84×84: five minutes a training.
"""

from __future__ import annotations

from collections.abc import Sequence

import scipy.stats
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Drawing

from nearshot.experiments.figures import line_with_band, panels, style_of
from nearshot.experiments.paper import BATCH_SIZE_TABLE, ERRATA, ErratumRow, Number
from nearshot.experiments.paper_configs import BATCH_SIZES, TITLES, figure_config
from nearshot.experiments.recipe import Found, FoundAccuracy, Recipe, Wanted
from nearshot.experiments.results import Measurement
from nearshot.experiments.tables import Figure, Row, Table, beside, marked
from nearshot.training import TrainConfig

__all__ = ["RECIPE", "SETUPS", "line_name", "setup_config", "setup_name"]

SETUPS = ((5, 16), (5, 8), (5, 32), (1, 8), (1, 16), (1, 32))  # shots, images of a class
METHODS = {"prototypical": ("PN", "centroid"), "matching": ("MN", "soft")}
IN_FIGURE = SETUPS[:4]  # the others fare far worse, and are in the table only


def setup_config(dataset: str, method: str, batch_size: int, setup: tuple[int, int] | None) -> TrainConfig:
    """Return the settings of one point: a method, a batch size, and shots and images of a class (None for NCA)."""
    if setup is None:
        return figure_config(dataset, "nca", batch_size)
    return figure_config(dataset, method, batch_size, shot=setup[0], images_per_class=setup[1])


def setup_name(method: str, setup: tuple[int, int] | None) -> str:
    """Return what tables call a setup.

    >>> setup_name("prototypical", (5, 16)), setup_name("matching", None)
    ('PN 5-shot m+n=16', 'NCA')
    """
    return "NCA" if setup is None else f"{METHODS[method][0]} {setup[0]}-shot m+n={setup[1]}"


def line_name(setup: tuple[int, int]) -> str:
    """Return what figures call a setup, whose panels say of which method."""
    return f"episodes: {setup[0]}-shot, m+n={setup[1]}"


def _wanted(dataset: str) -> Sequence[Wanted]:
    # The most telling first, since a long queue may be cut: larger batches, NCA, then the best setups.
    points: list[tuple[str, int, tuple[int, int] | None]] = [("nca", size, None) for size in reversed(BATCH_SIZES)]
    points += [(method, size, setup) for setup in SETUPS for size in reversed(BATCH_SIZES) for method in METHODS]
    return [Wanted(setup_config(dataset, *point)) for point in points]


def _tables(found: Found, dataset: str) -> Sequence[Table]:
    return [_table(found, dataset, method) for method in METHODS]


def _table(found: Found, dataset: str, method: str) -> Table:
    short, classifier = METHODS[method]
    printed = {(row.batch_size, row.shape): row.accuracy for row in BATCH_SIZE_TABLE}
    same_data = dataset == "cifar-fs" == found.on(dataset) and method == "prototypical"
    paper_has_it = same_data and found.scale.is_papers
    errata = {erratum.row: erratum for erratum in ERRATA if erratum.about == "accuracies" and erratum.row}
    rows: list[Row] = []
    sides: list[tuple[Sequence[FoundAccuracy | None], Sequence[Number]]] = []
    for size in reversed(BATCH_SIZES):
        for setup in (None, *SETUPS):
            config = setup_config(dataset, method, size, setup)
            ours = [found.pooled(config, Measurement("val", shot, classifier)) for shot in (1, 5)]
            paper = printed[size, None if setup is None else config.shape]
            name = setup_name(method, setup)
            numbers = beside(ours, paper if paper_has_it else (None, None))
            if setup is not None and ErratumRow(size, setup) in errata:
                # The paper's cells, and those that they are part of.
                numbers = tuple(item if place % 3 == 0 else marked(item) for place, item in enumerate(numbers))
            else:
                sides.append((ours, paper))
            rows.append((f"batch {size}", name, *(numbers if paper_has_it else (numbers[0], numbers[3]))))
    columns = (
        ("1-shot", "paper", "difference", "5-shot", "paper", "difference") if paper_has_it else ("1-shot", "5-shot")
    )
    where = f"{found.on(dataset)}, validation split, {TITLES[classifier]}"
    return Table(
        f"batch-size-{found.on(dataset)}-{short.lower()}",
        f"Batch size and episodes, NCA and {short} ({_place(dataset, short)}): {where}",
        found.label,
        ("batch", "trained with", *columns),
        tuple(rows),
        (*(f"* {erratum}" for erratum in errata.values() if paper_has_it), *(_order(sides) if same_data else ())),
    )


def _order(sides: Sequence[tuple[Sequence[FoundAccuracy | None], Sequence[Number]]]) -> list[str]:
    """Say by Spearman's rank correlation how far our rows have the paper's order; nothing where one is missing."""
    told = []
    for place, shots in enumerate(("1 shot", "5 shots")):
        there = [(ours[place], paper[place]) for ours, paper in sides]
        pairs = [(ours.mean, paper.mean) for ours, paper in there if ours is not None]
        if len(pairs) < len(sides):
            return []
        told.append(f"{scipy.stats.spearmanr(pairs).statistic:.2f} with {shots}".replace("-", "−"))
    return [
        f"Rank correlation with the paper's accuracies at 84×84, over {len(sides)} rows: {', '.join(told)}. "
        "The row that is doubtful there is left out."
    ]


def _place(dataset: str, short: str = "") -> str:
    """Return where the paper has it: with numbers only NCA and PN on CIFAR-FS, in Appendix E."""
    if dataset != "cifar-fs":
        return "Appendix H"
    return "Figure 2, Appendix E" if short == "PN" else "Figure 2"


def _figures(found: Found, dataset: str) -> Sequence[Figure]:
    return [
        Figure(
            f"batch-size-{found.on(dataset)}",
            f"Accuracy on the validation split of {found.on(dataset)} by batch size and episodes ({_place(dataset)})",
            found.label,
            lambda: _draw(found, dataset),
        )
    ]


def _draw(found: Found, dataset: str) -> Drawing:
    def lines(axes: Axes, method: str, shot: int) -> None:
        wanted = Measurement("val", shot, METHODS[method][1])
        for line, setup in enumerate((None, *IN_FIGURE)):
            points = [(size, found.pooled(setup_config(dataset, method, size, setup), wanted)) for size in BATCH_SIZES]
            line_with_band(axes, points, "NCA" if setup is None else line_name(setup), style_of(line))

    titles = [(method, f"NCA and {short}") for method, (short, _) in METHODS.items()]
    return panels(found, titles, lines, xlabel="batch size", ticks=BATCH_SIZES)


RECIPE = Recipe(
    name="batch-size",
    title="Figure 2, Appendices E and H: batch size and episodes",
    datasets=("cifar-fs", "mini-imagenet"),
    wanted=_wanted,
    tables=_tables,
    figures=_figures,
)
