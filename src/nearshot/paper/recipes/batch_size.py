"""Figure 2, its miniImageNet twin and Appendix E's accuracies: NCA against episodes, by batch size.

    nearshot reproduce batch-size --dataset cifar-fs --seeds 3

Validation split. NCA, Prototypical and Matching Networks with batches of 128, 256 and 512, 1-shot
and 5-shot with m+n = 8, 16, 32. Expected on CIFAR-FS, batch 512: NCA 62.84 / 77.07, PN 5-shot
m+n=16 60.53 / 75.79. With one shot the two networks are the same, so there are 30 runs a seed, five
minutes each on an H200 at 84×84.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product

from matplotlib.figure import Figure as Drawing

from nearshot.losses import count_pairs
from nearshot.paper.accuracy_table import accuracy_table, both_shots, rank_correlation
from nearshot.paper.figures import GRID, finish, heading, line_with_band, new_drawing, style_of
from nearshot.paper.numbers import (
    BATCH_SIZE_TABLE,
    BATCH_SIZES,
    ERRATA,
    FLOOR,
    SHOTS,
    TITLES,
    figure_config,
)
from nearshot.paper.recipe import Recipe, Row
from nearshot.paper.results import Measurement, Results, Side
from nearshot.paper.tables import Figure, Table
from nearshot.training import TrainConfig
from nearshot.training.methods import NCA, MatchingNetworks, PrototypicalNetworks

Setup = tuple[int, int] | None  # shots and images of a class; None for NCA
# Of each line of a network's panels: where its points are on the horizontal axis, and their runs.
Lines = Mapping[str, Sequence[tuple[float, TrainConfig]]]
SETUPS = ((5, 16), (5, 8), (5, 32), (1, 8), (1, 16), (1, 32))
IN_FIGURE = SETUPS[:4]  # the others are far worse, and only in the table


@dataclass(frozen=True)
class Network:
    """One of the two networks: its name, how it is trained, and the classifier of its numbers."""

    name: str
    method: type[PrototypicalNetworks | MatchingNetworks]
    classifier: str


PN = Network("PN", PrototypicalNetworks, "centroid")
MN = Network("MN", MatchingNetworks, "soft")
NETWORKS = (PN, MN)
LARGEST_FIRST = tuple(reversed(BATCH_SIZES))
# The paper's numbers that are doubtful, by row: the notes that say why.
DOUBTFUL = {erratum.row: f"* {erratum}" for erratum in ERRATA if erratum.about == "accuracies"}


def setup_config(dataset: str, network: Network, batch_size: int, setup: Setup) -> TrainConfig:
    """Return the settings of one point."""
    if setup is None:
        return figure_config(dataset, NCA(background=FLOOR), batch_size)
    n_shot, images_per_class = setup
    method = network.method(n_shot=n_shot, background=FLOOR)
    return figure_config(dataset, method, batch_size, images_per_class=images_per_class)


def setup_name(network: Network, setup: Setup) -> str:
    """Return the name of a setup in tables, such as "PN 5-shot m+n=16"."""
    if setup is None:
        return "NCA"
    n_shot, images_per_class = setup
    return f"{network.name} {n_shot}-shot m+n={images_per_class}"


def line_name(setup: Setup) -> str:
    """Return the name of a setup in figures, whose panels name the network."""
    if setup is None:
        return "NCA"
    n_shot, images_per_class = setup
    return f"episodes: {n_shot}-shot, m+n={images_per_class}"


def share_of_pairs(config: TrainConfig) -> float:
    """Return the share of all pairs of the batch that a loss uses: NCA all of them."""
    if isinstance(config.method, NCA):
        return 1.0
    n_images = config.shape.batch_size
    separate = count_pairs(config.shape, prototypes=False, separate=True)
    return separate.total / (n_images * (n_images - 1) / 2)


def rows(dataset: str) -> list[Row]:
    """Return all points, the most informative first: larger batches, NCA, then the best setups."""
    result = [_row(dataset, PN, size, None) for size in LARGEST_FIRST]
    for setup, size, network in product(SETUPS, LARGEST_FIRST, NETWORKS):
        result.append(_row(dataset, network, size, setup))
    return result


def _row(dataset: str, network: Network, size: int, setup: Setup) -> Row:
    """Return a point with the paper's accuracy, which it prints for NCA and PN on CIFAR-FS."""
    paper = {(row.batch_size, row.setup): row.accuracy for row in BATCH_SIZE_TABLE}
    has_paper = dataset == "cifar-fs" and network is PN
    return Row(
        (f"batch {size}", setup_name(network, setup)),
        setup_config(dataset, network, size, setup),
        both_shots("val", network.classifier),
        paper[size, setup] if has_paper else (),
        from_validation=True,
        doubtful=(size, setup) in DOUBTFUL,
    )


def table_rows(dataset: str, network: Network) -> list[Row]:
    """Return the rows of a network's table: all setups of all batch sizes."""
    points = product(LARGEST_FIRST, (None, *SETUPS))
    return [_row(dataset, network, size, setup) for size, setup in points]


def tables(results: Results, dataset: str) -> list[Table]:
    """Return a table for NCA and PN, and one for NCA and MN."""
    return [_table(results, dataset, network) for network in NETWORKS]


def _table(results: Results, dataset: str, network: Network) -> Table:
    if dataset != "cifar-fs":
        where = "Appendix H"
    else:
        where = "Figure 2, Appendix E" if network is PN else "Figure 2"
    name = results.dataset(dataset)
    has_paper = dataset == name == "cifar-fs" and network is PN
    with_paper = has_paper and results.size.is_papers
    notes = list(DOUBTFUL.values()) if with_paper else []
    if has_paper:
        notes += _about_the_papers_order(results)
    if network is PN:
        notes += _about_pairs(results, dataset)
    return accuracy_table(
        f"batch-size-{name}-{network.name.lower()}",
        f"Batch size and episodes, NCA and {network.name} ({where}): {name}, validation split, "
        f"{TITLES[network.classifier]}",
        results,
        table_rows(dataset, network),
        labels=("batch", "trained with"),
        with_paper=with_paper,
        notes=notes,
    )


def _about_the_papers_order(results: Results) -> list[str]:
    """Return a note with the rank correlation of our rows and the paper's, if none is missing."""
    kept = [row for row in table_rows("cifar-fs", PN) if not row.doubtful]
    correlations = []
    for column, n_shot in enumerate(SHOTS):
        sides = [(row.config, Measurement("val", n_shot, "centroid")) for row in kept]
        printed = [row.paper[column] for row in kept]
        paper = [number.mean for number in printed if number is not None]
        correlation = rank_correlation(results, sides, paper)
        if correlation is None:
            return []
        correlations.append(f"{n_shot}-shot {_shown(correlation)}")
    return [
        "Rank correlation with the paper's accuracies at 84×84, over "
        f"{len(kept)} rows: {', '.join(correlations)}. The row that is doubtful there is excluded."
    ]


def _about_pairs(results: Results, dataset: str) -> list[str]:
    """Return a note with the rank correlation of accuracies and pairs; none if one is missing."""
    correlations = []
    for size in LARGEST_FIRST:
        configs = [setup_config(dataset, PN, size, setup) for setup in (None, *SETUPS)]
        shares = [share_of_pairs(results.size.change(config)) for config in configs]
        for n_shot in SHOTS:
            sides: list[Side] = [
                (config, Measurement("val", n_shot, "centroid")) for config in configs
            ]
            correlation = rank_correlation(results, sides, shares)
            if correlation is None:
                return []
            correlations.append(f"batch {size}, {n_shot}-shot {_shown(correlation)}")
    return [f"Rank correlation of accuracies and numbers of pairs: {'; '.join(correlations)}."]


def _shown(correlation: float) -> str:
    return f"{correlation:.2f}".replace("-", "−")


def draw_panels(
    results: Results,
    lines: Callable[[Network], Lines],
    ticks: Sequence[float],
    xlabel: str,
    intervals: str = "bands",
) -> Drawing:
    """Draw panels of accuracies, one row per network, with columns for one and five shots.

    `lines` returns those of a network; the horizontal axis is logarithmic. `intervals` says in the
    heading what shows the intervals.
    """
    drawing = new_drawing(9.5, 2.9 * len(NETWORKS) + 0.8)
    panels = drawing.subplots(len(NETWORKS), 2, sharex=True)
    for network, row in zip(NETWORKS, panels, strict=True):
        for axes, n_shot in zip(row, SHOTS, strict=True):
            measurement = Measurement("val", n_shot, network.classifier)
            for number, (name, runs) in enumerate(lines(network).items()):
                points = [(x, results.accuracy(config, measurement)) for x, config in runs]
                line_with_band(axes, points, name, style_of(number))
            axes.set_title(f"NCA and {network.name}, {n_shot}-shot", fontsize=10)
            axes.set_xscale("log")
            axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
            axes.set_xticks([], minor=True)
            axes.set_xlim(min(ticks) / 1.15, max(ticks) * 1.15)
            axes.tick_params(labelsize=8, labelbottom=True)
            axes.grid(axis="y", **GRID)
        row[0].set_ylabel("accuracy, %", fontsize=9)
    for axes in panels[-1]:
        axes.set_xlabel(xlabel, fontsize=9)
    finish(drawing, heading(results, intervals))
    return drawing


def _lines(dataset: str, network: Network) -> Lines:
    lines = {}
    for setup in (None, *IN_FIGURE):
        points = [(size, setup_config(dataset, network, size, setup)) for size in BATCH_SIZES]
        lines[line_name(setup)] = points
    return lines


def figures(results: Results, dataset: str) -> list[Figure]:
    """Return Figure 2."""
    name = results.dataset(dataset)
    where = "Figure 2" if dataset == "cifar-fs" else "Appendix H"
    title = f"Accuracy on the validation split of {name} by batch size and episodes ({where})"
    draw = partial(draw_panels, results, partial(_lines, dataset), BATCH_SIZES, "batch size")
    return [Figure(f"batch-size-{name}", title, results.label, draw)]


RECIPE = Recipe(
    "batch-size",
    "Figure 2, Appendices E and H: batch size and episodes",
    ("cifar-fs", "mini-imagenet"),
    rows,
    tables,
    figures,
)
