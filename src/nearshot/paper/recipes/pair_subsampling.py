"""Figure 3: NCA with a random fraction of its pairs, against episodes.

    nearshot reproduce pair-subsampling --dataset mini-imagenet --seeds 3

Validation split, batches of 256, where NCA keeps 1 to 100 % of its positive and negative pairs. The
paper gives no numbers, only the figure: PN and MN lie close to the curve. 14 runs a seed, five
minutes each on an H200 at 84×84.
"""

from functools import partial
from itertools import product

from nearshot.losses import count_pairs
from nearshot.paper.accuracy_table import both_shots, our_cell
from nearshot.paper.numbers import FLOOR, TRAINING_CLASSES, figure_config
from nearshot.paper.recipe import Recipe, Row, like
from nearshot.paper.recipes.batch_size import (
    IN_FIGURE,
    NETWORKS,
    PN,
    Lines,
    Network,
    draw_panels,
    line_name,
    setup_config,
    setup_name,
    share_of_pairs,
)
from nearshot.paper.recipes.pairs import shuffled_pairs
from nearshot.paper.results import Measurement, Results
from nearshot.paper.tables import MISSING, Cell, Figure, Table, number_cell
from nearshot.training import TrainConfig
from nearshot.training.methods import NCA

BATCH_SIZE = 256
FRACTIONS = (0.01, 0.05, 0.1, 0.2, 0.4, 0.8, 1.0)
MEASUREMENTS = [*both_shots(classifier="centroid"), *both_shots(classifier="soft")]


def subsampled(dataset: str, fraction: float) -> TrainConfig:
    """Return NCA that keeps a fraction of its pairs."""
    method = NCA(background=FLOOR, keep_positives=fraction, keep_negatives=fraction)
    return figure_config(dataset, method, BATCH_SIZE)


def nca_rows(dataset: str) -> list[Row]:
    """Return NCA with each fraction, with both classifiers."""
    return [
        Row("NCA", subsampled(dataset, fraction), MEASUREMENTS, from_validation=True)
        for fraction in FRACTIONS
    ]


def episode_rows(dataset: str) -> list[Row]:
    """Return the setups of PN and MN, each with its own classifier."""
    result = []
    for network, setup in product(NETWORKS, IN_FIGURE):
        config = setup_config(dataset, network, BATCH_SIZE, setup)
        own = [_if_of(network, measurement) for measurement in MEASUREMENTS]
        result.append(Row(setup_name(network, setup), config, own, from_validation=True))
    return result


def _if_of(network: Network, measurement: Measurement) -> Measurement | None:
    """Return a measurement if it has the network's classifier."""
    return measurement if measurement.classifier == network.classifier else None


def rows(dataset: str) -> list[Row]:
    """Return all runs, NCA with all of its pairs first."""
    return [*reversed(nca_rows(dataset)), *episode_rows(dataset)]


def tables(results: Results, dataset: str) -> list[Table]:
    """Return the accuracies by the share of the pairs."""
    name = results.dataset(dataset)
    where = like("Figure 3", dataset)
    columns = [f"{measured.n_shot}-shot {measured.classifier}" for measured in MEASUREMENTS]
    table = Table(
        f"pair-subsampling-{name}",
        f"A fraction of the pairs of a batch ({where}): {name}, validation split",
        ("trained with", "pairs", "positives", *columns),
        results.label,
        _about_positives(results, dataset),
    )
    for row, fraction in zip(nca_rows(dataset), FRACTIONS, strict=True):
        share = Cell(f"{100 * fraction:g} %", fraction)
        cells = [our_cell(results, row.cell(column)) for column in range(len(columns))]
        table.add_row("NCA", share, _positives(results, row.config), *cells)
    for row in episode_rows(dataset):
        share_used = share_of_pairs(results.size.change(row.config))
        share = Cell(f"{100 * share_used:.1f} %", share_used)
        cells = []
        for column in range(len(columns)):
            side = row.cell(column)
            cells.append(Cell("") if side is None else our_cell(results, side))
        table.add_row(*row.labels, share, _positives(results, row.config), *cells)
    return [table]


def _positives(results: Results, config: TrainConfig) -> Cell:
    """Return the positives in a batch; for NCA's shuffled ones their mean, if it is known."""
    changed = results.size.change(config)
    if not isinstance(changed.method, NCA):
        return number_cell(count_pairs(changed.shape, prototypes=False, separate=True).positives)
    if changed.dataset not in TRAINING_CLASSES:
        return Cell(MISSING)
    positives = shuffled_pairs(changed.dataset, changed.batch_size).positives
    return number_cell(changed.method.keep_positives * positives, "{:,.0f}")


def _about_positives(results: Results, dataset: str) -> list[str]:
    """Return a note that a share of all pairs is not the same share of the positives."""
    episodes = setup_config(dataset, PN, BATCH_SIZE, IN_FIGURE[0])
    shuffled = _positives(results, subsampled(dataset, 1.0))
    if shuffled.value is None:
        return []
    share = share_of_pairs(results.size.change(episodes))
    return [
        "Shares are of all pairs of a batch, as in the paper. Positives are few: NCA's whole "
        f"shuffled batch has {shuffled} on average, and 5-shot episodes with "
        f"m+n={episodes.images_per_class} have {_positives(results, episodes)}, in "
        f"{100 * share:.0f} % of the pairs."
    ]


def _lines(results: Results, dataset: str, network: Network) -> Lines:
    curve = [(100 * fraction, subsampled(dataset, fraction)) for fraction in FRACTIONS]
    lines = {"NCA, subsampled": curve}
    for setup in IN_FIGURE:
        config = setup_config(dataset, network, BATCH_SIZE, setup)
        share = share_of_pairs(results.size.change(config))
        lines[line_name(setup)] = [(100 * share, config)]
    return lines


def figures(results: Results, dataset: str) -> list[Figure]:
    """Return Figure 3."""
    name = results.dataset(dataset)
    where = like("Figure 3", dataset)
    title = f"Accuracy on the validation split of {name} with a fraction of the pairs ({where})"
    draw = partial(
        draw_panels,
        results,
        partial(_lines, results, dataset),
        [100 * fraction for fraction in FRACTIONS],
        "pairs used, % of all in a batch",
        "whiskers and band",
    )
    return [Figure(f"pair-subsampling-{name}", title, results.label, draw)]


RECIPE = Recipe(
    "pair-subsampling",
    "Figure 3: a random fraction of the pairs against episodes",
    ("mini-imagenet", "cifar-fs"),
    rows,
    tables,
    figures,
)
