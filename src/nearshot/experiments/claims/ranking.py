"""Appendix E: within a batch size, the number of pairs explains the ranking, but for two exceptions."""

from __future__ import annotations

from itertools import combinations
from typing import NamedTuple

import scipy.stats

from nearshot.experiments.claims.compare import Compared, gaps_of, on_val
from nearshot.experiments.claims.verdict import ABOVE, Verdict, judged
from nearshot.experiments.paper_configs import BATCH_SIZES, SHOTS
from nearshot.experiments.recipe import Found
from nearshot.experiments.recipes.batch_size import SETUPS, setup_config, setup_name
from nearshot.experiments.results import Measurement
from nearshot.losses import count_pairs
from nearshot.training import TrainConfig

__all__ = ["EXCEPTIONS_IN_WORDS", "exceptions_hold", "is_exception", "more_pairs_rank_higher"]

METHOD = "prototypical"  # whose accuracies Appendix E has
Setup = tuple[int, int] | None  # shots and images of a class; None for NCA
# The better first, though it has fewer pairs: (i) at all batch sizes, (ii) at 128.
EXCEPTIONS: dict[tuple[Setup, Setup], tuple[int, ...]] = {
    ((5, 16), (5, 8)): BATCH_SIZES,
    ((1, 8), (5, 32)): (128,),
}
EXCEPTIONS_IN_WORDS = "(i) 5-shot m+n=16 against m+n=8; (ii) 1-shot m+n=8 against 5-shot m+n=32 at batch 128"


class _Ranked(NamedTuple):
    """A setup, and how many pairs it gives the loss."""

    n_pairs: int
    setup: Setup


def more_pairs_rank_higher(found: Found, dataset: str) -> Verdict:
    """Compare all setups of a batch size two by two, more pairs minus fewer, exceptions left out; both shots."""
    pairs: list[Compared] = []
    correlations = []
    for size in BATCH_SIZES:
        ranked = _by_pairs(found, dataset, size)
        for shot in SHOTS:
            pairs += [
                _pair(dataset, size, shot, more.setup, fewer.setup)
                for more, fewer in combinations(ranked, 2)
                if more.n_pairs > fewer.n_pairs and not is_exception(size, more.setup, fewer.setup)
            ]
            correlations += _correlation(found, dataset, size, shot, ranked)
    verdict = judged((gaps_of(found, pairs), ABOVE))
    if verdict.status == "not yet run":
        return verdict
    return Verdict(verdict.status, " ".join((*correlations, verdict.text)))


def exceptions_hold(found: Found, dataset: str) -> Verdict:
    """Check that the setups of the exceptions are better than others with more pairs."""
    pairs = [
        _pair(dataset, size, shot, better, other)
        for (better, other), sizes in EXCEPTIONS.items()
        for size in sizes
        for shot in SHOTS
    ]
    return judged((gaps_of(found, pairs), ABOVE))


def _by_pairs(found: Found, dataset: str, size: int) -> list[_Ranked]:
    """Return the setups of a batch size, most pairs first; counted at the scale that was run."""
    setups: tuple[Setup, ...] = (None, *SETUPS)
    counted = [_Ranked(_n_pairs(found.scale.change(_config(dataset, size, setup)), setup), setup) for setup in setups]
    return sorted(counted, key=lambda one: -one.n_pairs)


def _n_pairs(config: TrainConfig, setup: Setup) -> int:
    if setup is None:
        return config.batch_size * (config.batch_size - 1) // 2
    return count_pairs(config.shape, prototypes=True, separate=True).total


def _correlation(found: Found, dataset: str, size: int, shot: int, ranked: list[_Ranked]) -> list[str]:
    """Return Spearman's rank correlation of pairs and accuracy in words; nothing where not all were run."""
    wanted = Measurement("val", shot, "centroid")
    accuracies = [found.pooled(_config(dataset, size, one.setup), wanted) for one in ranked]
    means = [accuracy.mean for accuracy in accuracies if accuracy is not None]
    if len(means) < len(ranked) or len(set(means)) == 1:
        return []
    correlation = float(scipy.stats.spearmanr([one.n_pairs for one in ranked], means).statistic)
    return [f"Batch {size}, {shot}-shot: rank correlation {correlation:.2f}.".replace("-0.", "−0.")]


def is_exception(size: int, one: Setup, other: Setup) -> bool:
    """Return whether the paper says of two setups that fewer pairs are better."""
    return any({one, other} == {*pair} and size in sizes for pair, sizes in EXCEPTIONS.items())


def _pair(dataset: str, size: int, shot: int, one: Setup, other: Setup) -> Compared:
    return (
        f"{setup_name(METHOD, one)} minus {setup_name(METHOD, other)}, batch {size}, {shot}-shot",
        on_val(_config(dataset, size, one), shot),
        on_val(_config(dataset, size, other), shot),
    )


def _config(dataset: str, size: int, setup: Setup) -> TrainConfig:
    return setup_config(dataset, METHOD, size, setup)
