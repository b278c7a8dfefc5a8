"""The differences that the paper's claims are about, by the results on a dataset.

Each function yields pairs of models with their accuracies by training seed, or returns a function
that does: of rows of a table, of rows of Figure 4, of setups of Figure 2, along Figure 3.
"""

import math
import statistics
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import combinations, pairwise, product

from nearshot.paper.differences import SeedComparison
from nearshot.paper.numbers import BATCH_SIZES, QUOTED, SHOTS
from nearshot.paper.recipe import Row
from nearshot.paper.recipes.ablations import row_config
from nearshot.paper.recipes.batch_size import (
    IN_FIGURE,
    MN,
    NETWORKS,
    PN,
    SETUPS,
    Network,
    Setup,
    setup_config,
    setup_name,
    share_of_pairs,
)
from nearshot.paper.recipes.pair_subsampling import BATCH_SIZE, FRACTIONS, subsampled
from nearshot.paper.results import Measurement, Results
from nearshot.training import PRESETS, TrainConfig

BEST_SETUP = (5, 16)
WORSE_SETUPS = SETUPS[len(IN_FIGURE) :]  # than all in Figure 2
# Appendix E's exceptions: the better setup first, though it has fewer pairs, and the batch sizes.
EXCEPTIONS: dict[tuple[Setup, Setup], tuple[int, ...]] = {
    ((5, 16), (5, 8)): BATCH_SIZES,
    ((1, 8), (5, 32)): (128,),
}


@dataclass(frozen=True)
class Compared:
    """Which model is compared with which, and their accuracies; None if they are not measured."""

    name: str
    seeds: SeedComparison | None


Differences = Callable[[Results, str], Iterable[Compared]]
PairsOfSetups = Callable[[int], Iterable[tuple[Setup, Setup]]]  # by batch size


def table_rows(table: Callable[[str], Sequence[Row]], *pairs: tuple[str, str]) -> Differences:
    """Return the differences of pairs of rows of a table, in each of its columns."""
    return partial(_row_differences, table=table, pairs=pairs)


def _row_differences(
    results: Results,
    dataset: str,
    table: Callable[[str], Sequence[Row]],
    pairs: Sequence[tuple[str, str]],
) -> Iterator[Compared]:
    by_label = {row.label: row for row in table(dataset)}
    for first_label, second_label in pairs:
        first = by_label[first_label]
        second = by_label[second_label]
        for column in range(len(first.measurements)):
            first_side = first.cell(column)
            second_side = second.cell(column)
            if first_side is not None and second_side is not None:
                _, measurement = first_side
                name = f"{first_label} minus {second_label}, {measurement.n_shot}-shot"
                yield Compared(name, results.comparison(first_side, second_side))


def _of_runs(
    results: Results, name: str, first: TrainConfig, second: TrainConfig, classifier: str
) -> Iterator[Compared]:
    """Yield the differences of two runs on the validation split."""
    for n_shot in SHOTS:
        measurement = Measurement("val", n_shot, classifier)
        seeds = results.comparison((first, measurement), (second, measurement))
        yield Compared(f"{name}, {classifier}, {n_shot}-shot", seeds)


def figure_4_rows(
    *pairs: tuple[int, int], classifier: str = "centroid", sizes: Sequence[int] = BATCH_SIZES
) -> Differences:
    """Return the differences of rows of Figure 4."""
    return partial(_ablation_differences, pairs=pairs, classifier=classifier, sizes=sizes)


def _ablation_differences(
    results: Results,
    dataset: str,
    pairs: Sequence[tuple[int, int]],
    classifier: str,
    sizes: Sequence[int],
) -> Iterator[Compared]:
    for (first, second), size in product(pairs, sizes):
        name = f"row {first} minus row {second}, batch {size}"
        first_config = row_config(dataset, first, size)
        second_config = row_config(dataset, second, size)
        yield from _of_runs(results, name, first_config, second_config, classifier)


def figure_2_setups(pairs: PairsOfSetups) -> Differences:
    """Return the differences of setups of Figure 2, given by batch size, for PN and MN."""
    return partial(_setup_differences, pairs=pairs)


def _setup_differences(
    results: Results,
    dataset: str,
    pairs: PairsOfSetups,
    networks: Sequence[Network] = NETWORKS,
    sizes: Sequence[int] = BATCH_SIZES,
) -> Iterator[Compared]:
    for network, size in product(networks, sizes):
        for first, second in pairs(size):
            name = f"{setup_name(network, first)} minus {setup_name(network, second)}, batch {size}"
            first_config = setup_config(dataset, network, size, first)
            second_config = setup_config(dataset, network, size, second)
            yield from _of_runs(results, name, first_config, second_config, network.classifier)


def nca_and_setups(size: int) -> Iterable[tuple[Setup, Setup]]:
    """Return NCA with every setup."""
    return product((None,), SETUPS)


def best_and_worst(size: int) -> list[tuple[Setup, Setup]]:
    """Return the best and the worst setup of Figure 2, by Appendix E."""
    return [(BEST_SETUP, (5, 32) if size == 128 else (1, 8))]


def shown_and_worse(size: int) -> Iterable[tuple[Setup, Setup]]:
    """Return every setup of Figure 2 with those that it leaves out."""
    return product(IN_FIGURE, WORSE_SETUPS)


def five_and_one_shot(size: int) -> list[tuple[Setup, Setup]]:
    """Return five shots with one, at m+n = 8."""
    return [((5, 8), (1, 8))]


def exceptions(size: int) -> list[tuple[Setup, Setup]]:
    """Return the setups of Appendix E's exceptions at a batch size."""
    return [pair for pair, sizes in EXCEPTIONS.items() if size in sizes]


def more_and_fewer_pairs(size: int, shares: Mapping[Setup, float]) -> list[tuple[Setup, Setup]]:
    """Return all setups with more pairs and with fewer, by their shares, without the exceptions."""
    by_share = sorted(shares, key=lambda setup: -shares[setup])
    excepted = [set(pair) for pair in exceptions(size)]
    pairs = []
    for more, fewer in combinations(by_share, 2):
        if shares[more] > shares[fewer] and {more, fewer} not in excepted:
            pairs.append((more, fewer))
    return pairs


def best_of_figure_2(results: Results, dataset: str) -> Iterator[Compared]:
    """Yield the paper's best setup with batches of 512 minus every other point of Figure 2."""
    for network, size, setup in product(NETWORKS, BATCH_SIZES, IN_FIGURE):
        if (size, setup) != (512, BEST_SETUP):
            best = setup_config(dataset, network, 512, BEST_SETUP)
            other = setup_config(dataset, network, size, setup)
            best_name = f"{setup_name(network, BEST_SETUP)}, batch 512"
            name = f"{best_name} minus {setup_name(network, setup)}, batch {size}"
            yield from _of_runs(results, name, best, other, network.classifier)


def ranking(results: Results, dataset: str) -> Iterator[Compared]:
    """Yield all setups of PN of each batch size: more pairs minus fewer, without the exceptions."""
    for size in BATCH_SIZES:
        shares = {}
        for setup in (None, *SETUPS):
            config = setup_config(dataset, PN, size, setup)
            shares[setup] = share_of_pairs(results.size.change(config))
        pairs = partial(more_and_fewer_pairs, shares=shares)
        yield from _setup_differences(results, dataset, pairs, (PN,), (size,))


def papers_exceptions(results: Results, dataset: str) -> Iterator[Compared]:
    """Yield the exceptions of Appendix E, of PN."""
    return _setup_differences(results, dataset, exceptions, (PN,))


def _fraction_differences(
    results: Results, dataset: str, pairs: Iterable[tuple[float, float]]
) -> Iterator[Compared]:
    # With one shot, both classifiers are the same.
    measurements = (
        Measurement("val", 1, "centroid"),
        Measurement("val", 5, "centroid"),
        Measurement("val", 5, "soft"),
    )
    for (more, fewer), measurement in product(pairs, measurements):
        first = (subsampled(dataset, more), measurement)
        second = (subsampled(dataset, fewer), measurement)
        name = (
            f"NCA with {100 * more:g} % minus {100 * fewer:g} % of the pairs, "
            f"{measurement.classifier}, {measurement.n_shot}-shot"
        )
        yield Compared(name, results.comparison(first, second))


def all_pairs_and_fractions(results: Results, dataset: str) -> Iterator[Compared]:
    """Yield NCA with all pairs minus NCA with each fraction."""
    pairs = [(1.0, fraction) for fraction in FRACTIONS[:-1]]
    return _fraction_differences(results, dataset, pairs)


def along_the_curve(results: Results, dataset: str) -> Iterator[Compared]:
    """Yield neighbouring fractions of NCA, and setups of both networks without the exceptions."""
    neighbours = [(more, fewer) for fewer, more in pairwise(FRACTIONS)]
    yield from _fraction_differences(results, dataset, neighbours)
    shares: dict[Setup, float] = {}
    for setup in IN_FIGURE:
        shares[setup] = share_of_pairs(setup_config(dataset, MN, BATCH_SIZE, setup))
    pairs = partial(more_and_fewer_pairs, shares=shares)
    yield from _setup_differences(results, dataset, pairs, sizes=(BATCH_SIZE,))


def distances_from_the_curve(results: Results, dataset: str) -> Iterator[Compared]:
    """Yield PN and MN minus NCA's subsampling curve, at the share of the pairs that they use."""
    for network, setup, n_shot in product(NETWORKS, IN_FIGURE, SHOTS):
        config = setup_config(dataset, network, BATCH_SIZE, setup)
        measurement = Measurement("val", n_shot, network.classifier)
        share = share_of_pairs(results.size.change(config))
        firsts = [accuracy.mean for accuracy in results.accuracies(config, measurement).values()]
        curve = _curve(results, dataset, measurement, share)
        seeds = None
        if firsts and curve:
            deviation = results.seed_deviation(config, measurement)
            seeds = SeedComparison(
                tuple(firsts), tuple(curve), is_paired=False, deviation=deviation
            )
        name = f"{setup_name(network, setup)} minus the curve at {100 * share:.0f} % of the pairs"
        yield Compared(f"{name}, {network.classifier}, {n_shot}-shot", seeds)


def _curve(results: Results, dataset: str, measurement: Measurement, share: float) -> list[float]:
    """Return the accuracy of each seed, interpolated over the logarithm of the share."""
    below = max((fraction for fraction in FRACTIONS if fraction <= share), default=FRACTIONS[0])
    above = min((fraction for fraction in FRACTIONS if fraction >= share), default=FRACTIONS[-1])
    weight = 0.0 if below == above else math.log(share / below) / math.log(above / below)
    lower = results.accuracies(subsampled(dataset, below), measurement)
    upper = results.accuracies(subsampled(dataset, above), measurement)
    interpolated = []
    for seed, accuracy in lower.items():
        if seed in upper:
            interpolated.append((1 - weight) * accuracy.mean + weight * upper[seed].mean)
    return interpolated


def classifiers_in_order(results: Results, dataset: str) -> Iterator[Compared]:
    """Yield nearest centroid minus soft assignment and soft assignment minus k-NN."""
    nca = PRESETS[f"{dataset}-nca"]
    for (better, worse), split in product(pairwise(("centroid", "soft", "knn")), ("val", "test")):
        first = (nca, Measurement(split, 5, better))
        second = (nca, Measurement(split, 5, worse))
        yield Compared(f"{better} minus {worse}, {split}", results.comparison(first, second))


def quoted_methods(results: Results, dataset: str) -> Iterator[Compared]:
    """Yield NCA minus the median of the methods that the paper quotes, on the test split."""
    quoted = [numbers[dataset] for numbers in QUOTED.values() if dataset in numbers]
    for column, n_shot in enumerate(SHOTS):
        median = statistics.median(numbers[column].mean for numbers in quoted)
        name = f"NCA minus {median:.2f}, the median of {len(quoted)} methods, {n_shot}-shot"
        measurement = Measurement("test", n_shot, "centroid")
        accuracies = results.accuracies(PRESETS[f"{dataset}-nca"], measurement)
        seeds = None
        if accuracies and results.size.is_papers:
            firsts = tuple(accuracy.mean for accuracy in accuracies.values())
            seeds = SeedComparison(firsts, (median,) * len(firsts), is_paired=True)
        yield Compared(name, seeds)
