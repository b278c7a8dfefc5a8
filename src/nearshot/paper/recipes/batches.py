"""Figures 2 and 3, Appendices E and H: NCA against episodes, by batch size and by the share of the pairs.

    nearshot reproduce batch-size --dataset cifar-fs --seeds 3
    nearshot reproduce pair-subsampling --dataset mini-imagenet --seeds 3

Validation split. Time: five minutes a run on an H200 at 84×84.

**batch-size** (Figure 2, its miniImageNet twin, the accuracies of Appendix E): NCA, Prototypical
and Matching Networks with batches of 128, 256 and 512, 1-shot and 5-shot with m+n = 8, 16, 32. With
one shot the two networks are the same, so there are 30 runs a seed. Expected on CIFAR-FS, batch
512: NCA 62.84 / 77.07, PN 5-shot m+n=16 60.53 / 75.79.

**pair-subsampling** (Figure 3): batches of 256, where NCA keeps 1 to 100 % of its positive and
negative pairs. The paper gives no numbers, only the figure: PN and MN lie close to the curve. 14
runs a seed.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import product

from matplotlib.figure import Figure as Drawing

from nearshot.losses import count_pairs
from nearshot.paper.accuracy_table import AccuracyRow, AccuracyTable, both_shots
from nearshot.paper.figures import GRID, finish, heading, line_with_band, new_drawing, style_of
from nearshot.paper.numbers import (
    BATCH_SIZE_TABLE,
    BATCH_SIZES,
    ERRATA,
    SHOTS,
    TITLES,
    TRAINING_CLASSES,
    figure_config,
)
from nearshot.paper.recipe import Found, Recipe, Wanted, like
from nearshot.paper.recipes.pairs import shuffled_pairs
from nearshot.paper.results import Measurement
from nearshot.paper.tables import Cell, Figure, Row, Table, cell, number_cell
from nearshot.training import TrainConfig

Setup = tuple[int, int] | None  # shots and images of a class; None for NCA
Lines = Callable[[str], Mapping[str, Sequence[tuple[float, TrainConfig]]]]  # of a method, by name
SETUPS = ((5, 16), (5, 8), (5, 32), (1, 8), (1, 16), (1, 32))
METHODS = {"prototypical": ("PN", "centroid"), "matching": ("MN", "soft")}
IN_FIGURE = SETUPS[:4]  # the others are far worse, and only in the table
DOUBTFUL = {erratum.row: f"* {erratum}" for erratum in ERRATA if erratum.about == "accuracies"}
BATCH_SIZE = 256  # of Figure 3
FRACTIONS = (0.01, 0.05, 0.1, 0.2, 0.4, 0.8, 1.0)
MEASURED = [
    Measurement("val", shot, classifier) for classifier in ("centroid", "soft") for shot in SHOTS
]


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


def subsampled(dataset: str, fraction: float) -> TrainConfig:
    """Return NCA that keeps a fraction of its pairs."""
    return replace(
        setup_config(dataset, "nca", BATCH_SIZE, None),
        keep_positives=fraction,
        keep_negatives=fraction,
    )


def share_of_pairs(config: TrainConfig) -> float:
    """Return the share of all pairs of the batch that a loss uses: NCA all of them."""
    if config.method == "nca":
        return 1.0
    n_images = config.shape.batch_size
    separate = count_pairs(config.shape, prototypes=False, separate=True)
    return separate.total / (n_images * (n_images - 1) / 2)


def _draw(
    found: Found, lines: Lines, ticks: Sequence[float], xlabel: str, drawn: str = "bands"
) -> Drawing:
    """Draw panels of accuracies, one row per method, with columns for one and five shots.

    `lines` have places on the horizontal axis, which is logarithmic, and the runs there. `drawn`
    says in the heading what shows the intervals.
    """
    drawing = new_drawing(9.5, 2.9 * len(METHODS) + 0.8)
    rows = drawing.subplots(len(METHODS), 2, sharex=True)
    for (method, (short, classifier)), row in zip(METHODS.items(), rows, strict=True):
        for axes, shot in zip(row, SHOTS, strict=True):
            measured = Measurement("val", shot, classifier)
            for number, (name, runs) in enumerate(lines(method).items()):
                points = [(x, found.pooled(config, measured)) for x, config in runs]
                line_with_band(axes, points, name, style_of(number))
            axes.set_title(f"NCA and {short}, {shot}-shot", fontsize=10)
            axes.set_xscale("log")
            axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
            axes.set_xticks([], minor=True)
            axes.set_xlim(min(ticks) / 1.15, max(ticks) * 1.15)
            axes.tick_params(labelsize=8, labelbottom=True)
            axes.grid(axis="y", **GRID)
        row[0].set_ylabel("accuracy, %", fontsize=9)
    for axes in rows[-1]:
        axes.set_xlabel(xlabel, fontsize=9)
    finish(drawing, heading(found, drawn))
    return drawing


# Figure 2 and Appendix E.


def _wanted(dataset: str) -> Wanted:
    # The most informative first, since a long queue may be cut: larger batches, NCA, then the best
    # setups.
    points: list[tuple[str, int, Setup]] = [("nca", size, None) for size in reversed(BATCH_SIZES)]
    points += [
        (method, size, setup)
        for setup in SETUPS
        for size in reversed(BATCH_SIZES)
        for method in METHODS
    ]
    return {setup_config(dataset, *point): () for point in points}


def _lines(method: str, dataset: str) -> list[AccuracyRow]:
    """Return all setups of all batch sizes; the paper has numbers for NCA and PN on CIFAR-FS."""
    has_numbers = dataset == "cifar-fs" and method == "prototypical"
    printed = {(row.batch_size, row.setup): row.accuracy for row in BATCH_SIZE_TABLE if has_numbers}
    lines = []
    for size, setup in product(reversed(BATCH_SIZES), (None, *SETUPS)):
        sides = both_shots(setup_config(dataset, method, size, setup), "val", METHODS[method][1])
        names = (f"batch {size}", setup_name(method, setup))
        lines.append(
            AccuracyRow(names, sides, printed.get((size, setup), ()), (size, setup) in DOUBTFUL)
        )
    return lines


def _table(found: Found, dataset: str, method: str) -> Table:
    short, classifier = METHODS[method]
    where = (
        "Appendix H"
        if dataset != "cifar-fs"
        else "Figure 2, Appendix E"
        if short == "PN"
        else "Figure 2"
    )
    has_numbers = dataset == "cifar-fs" == found.on(dataset) and method == "prototypical"
    with_paper = has_numbers and found.scale.is_papers
    table = AccuracyTable(
        f"batch-size-{{on}}-{short.lower()}",
        f"Batch size and episodes, NCA and {short} ({where}): {{on}}, validation split, {TITLES[classifier]}",
        ("batch", "trained with"),
        partial(_lines, method),
        with_paper=with_paper,
        notes=tuple(DOUBTFUL.values()) if with_paper else (),
    ).table(found, dataset)
    return replace(table, notes=(*table.notes, *(_rank_correlation(found) if has_numbers else ())))


def _rank_correlation(found: Found) -> list[str]:
    """Return a note with Spearman's rank correlation of our rows and the paper's; none where a row is missing."""
    lines = [line for line in _lines("prototypical", "cifar-fs") if not line.doubtful]
    correlations = []
    for place, shots in enumerate(("1 shot", "5 shots")):
        paper = [number.mean for line in lines if (number := line.paper[place])]
        correlation = found.rank_correlation(
            [side for line in lines if (side := line.sides[place])], paper
        )
        if not correlation:
            return []
        correlations.append(f"{correlation} with {shots}")
    return [
        f"Rank correlation with the paper's accuracies at 84×84, over {len(lines)} rows: {', '.join(correlations)}. "
        "The row that is doubtful there is excluded."
    ]


def _figures(found: Found, dataset: str) -> Sequence[Figure]:
    def lines(method: str) -> dict[str, list[tuple[float, TrainConfig]]]:
        return {
            line_name(setup): [
                (size, setup_config(dataset, method, size, setup)) for size in BATCH_SIZES
            ]
            for setup in (None, *IN_FIGURE)
        }

    on, where = found.on(dataset), "Figure 2" if dataset == "cifar-fs" else "Appendix H"
    title = f"Accuracy on the validation split of {on} by batch size and episodes ({where})"
    return [
        Figure(
            f"batch-size-{on}",
            title,
            found.label,
            partial(_draw, found, lines, BATCH_SIZES, "batch size"),
        )
    ]


BATCHES = Recipe(
    name="batch-size",
    title="Figure 2, Appendices E and H: batch size and episodes",
    datasets=("cifar-fs", "mini-imagenet"),
    wanted=_wanted,
    tables=lambda found, dataset: [_table(found, dataset, method) for method in METHODS],
    figures=_figures,
)


# Figure 3.


def _subsampled_wanted(dataset: str) -> Wanted:
    episodic = [
        setup_config(dataset, method, BATCH_SIZE, setup)
        for setup in IN_FIGURE
        for method in METHODS
    ]
    return dict.fromkeys(
        (*(subsampled(dataset, fraction) for fraction in reversed(FRACTIONS)), *episodic), ()
    )


def _subsampled_table(found: Found, dataset: str) -> Table:
    rows: list[Row] = []
    for fraction in FRACTIONS:
        config = subsampled(dataset, fraction)
        values = [cell(found.pooled(config, measured)) for measured in MEASURED]
        rows.append(
            ("NCA", Cell(f"{100 * fraction:g} %", fraction), _positives(found, config), *values)
        )
    for (method, (_, classifier)), setup in product(METHODS.items(), IN_FIGURE):
        config = setup_config(dataset, method, BATCH_SIZE, setup)
        share = share_of_pairs(found.scale.change(config))
        values = [
            cell(found.pooled(config, measured)) if measured.classifier == classifier else Cell("")
            for measured in MEASURED
        ]
        shown = Cell(f"{100 * share:.1f} %", share)
        rows.append((setup_name(method, setup), shown, _positives(found, config), *values))
    on, where = found.on(dataset), like("Figure 3", dataset)
    return Table(
        f"pair-subsampling-{on}",
        f"A fraction of the pairs of a batch ({where}): {on}, validation split",
        found.label,
        (
            "trained with",
            "pairs",
            "positives",
            *(f"{one.n_shot}-shot {one.classifier}" for one in MEASURED),
        ),
        tuple(rows),
        tuple(_about_positives(found, dataset)),
    )


def _positives(found: Found, config: TrainConfig) -> Cell:
    """Return the positives in a batch; for NCA's shuffled ones their mean, on the datasets of the paper."""
    changed = found.scale.change(config)
    if changed.method != "nca":
        return number_cell(count_pairs(changed.shape, prototypes=False, separate=True).positives)
    if changed.dataset not in TRAINING_CLASSES:
        return cell(None)
    mean = changed.keep_positives * shuffled_pairs(changed.dataset, changed.batch_size).positives
    return number_cell(mean, "{:,.0f}")


def _about_positives(found: Found, dataset: str) -> list[str]:
    """Return a note: a share of all pairs is not a share of the positives, of which episodes have more."""
    config = setup_config(dataset, "prototypical", BATCH_SIZE, IN_FIGURE[0])
    shuffled = _positives(found, subsampled(dataset, 1.0))
    if shuffled.value is None:
        return []
    return [
        f"Shares are of all pairs of a batch, as in the paper. Positives are few: NCA's whole shuffled batch has "
        f"{shuffled} on average, and 5-shot episodes with m+n={config.images_per_class} have "
        f"{_positives(found, config)}, in {100 * share_of_pairs(found.scale.change(config)):.0f} % of the pairs."
    ]


def _subsampled_figures(found: Found, dataset: str) -> Sequence[Figure]:
    def lines(method: str) -> dict[str, list[tuple[float, TrainConfig]]]:
        drawn = {
            "NCA, subsampled": [
                (100 * fraction, subsampled(dataset, fraction)) for fraction in FRACTIONS
            ]
        }
        for setup in IN_FIGURE:
            config = setup_config(dataset, method, BATCH_SIZE, setup)
            drawn[line_name(setup)] = [(100 * share_of_pairs(found.scale.change(config)), config)]
        return drawn

    on, where = found.on(dataset), like("Figure 3", dataset)
    title = f"Accuracy on the validation split of {on} with a fraction of the pairs ({where})"
    drawn = [100 * one for one in FRACTIONS], "pairs used, % of all in a batch", "whiskers and band"
    return [
        Figure(f"pair-subsampling-{on}", title, found.label, partial(_draw, found, lines, *drawn))
    ]


SUBSAMPLING = Recipe(
    name="pair-subsampling",
    title="Figure 3: a random fraction of the pairs against episodes",
    datasets=("mini-imagenet", "cifar-fs"),
    wanted=_subsampled_wanted,
    tables=lambda found, dataset: [_subsampled_table(found, dataset)],
    figures=_subsampled_figures,
)
