"""Differences between runs, and of one run that is measured in two ways."""

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import scipy.stats
from hypothesis import given
from hypothesis import strategies as st
from tests.helpers.made_up import DATASET, SEEDS, put

from nearshot.errors import InputError
from nearshot.paper.differences import pooled_deviation
from nearshot.paper.recipes.ablations import row_config
from nearshot.paper.results import Measurement, Results
from nearshot.paper.sizes import Size
from nearshot.training import PRESETS, TrainConfig

VAL = Measurement("val", 5)
FIRST = (row_config(DATASET, 3, 512), VAL)
SECOND = (row_config(DATASET, 5, 512), VAL)
NCA = PRESETS[f"{DATASET}-nca"]
PLAIN = (NCA, Measurement("test", 5))
ADAPTED = (NCA, Measurement("test", 5, how="fine-tuned"))


def seed_means(results: Results, side: tuple[TrainConfig, Measurement]) -> list[float]:
    accuracies = results.accuracies(*side).values()
    return [float(accuracy.per_episode.mean()) for accuracy in accuracies]


@pytest.mark.parametrize(
    ("first_seeds", "second_seeds"),
    [(SEEDS, SEEDS), (SEEDS, SEEDS[:2]), (SEEDS[1:], SEEDS[:2])],
)
@pytest.mark.parametrize("is_pooled", [True, False])
def test_two_runs_share_a_deviation_where_seeds_matter(
    first_seeds: tuple[int, ...],
    second_seeds: tuple[int, ...],
    is_pooled: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Elsewhere each has its own, and they may differ."""
    monkeypatch.setattr("nearshot.paper.results.POOLED_FROM", 0.2 if is_pooled else 10.0)
    results = Results(tmp_path)
    put(results, FIRST[0], 62.0, seeds=first_seeds, spread=8 / 3)
    put(results, SECOND[0], 60.0, seeds=second_seeds, spread=4 / 3)
    sides = seed_means(results, FIRST), seed_means(results, SECOND)
    expected = scipy.stats.ttest_ind(*sides, equal_var=is_pooled).confidence_interval(0.95)
    difference = results.difference(FIRST, SECOND)
    assert difference is not None
    assert (difference.n_first, difference.n_second) == (len(first_seeds), len(second_seeds))
    assert difference.mean - difference.half_width == pytest.approx(expected.low)
    assert difference.mean + difference.half_width == pytest.approx(expected.high)


def test_the_deviation_is_that_of_all_runs_on_the_dataset(tmp_path: Path) -> None:
    results = Results(tmp_path)
    third = row_config(DATASET, 7, 512)
    for config, spread in ((FIRST[0], 1.0), (SECOND[0], 2.0), (third, 4.0)):
        put(results, config, 60.0, seeds=SEEDS, spread=spread)
    put(results, row_config(DATASET, 1, 512), 50.0, seeds=[0])
    groups = [seed_means(results, (config, VAL)) for config in (FIRST[0], SECOND[0], third)]
    squares = [sum((mean - np.mean(group)) ** 2 for mean in group) for group in groups]
    deviation = results.seed_deviation(*FIRST)
    assert deviation is not None
    assert deviation.degrees_of_freedom == 6
    assert deviation.value == pytest.approx(math.sqrt(sum(squares) / 6))
    # Another split, other shots and another dataset have their own.
    assert results.seed_deviation(PRESETS["mini-imagenet-nca"], VAL) is None
    fewer = Results(tmp_path, seeds=SEEDS[:2]).seed_deviation(*FIRST)
    assert fewer is not None
    assert fewer.degrees_of_freedom == 3


@given(st.lists(st.lists(st.floats(0, 100), min_size=1, max_size=5), max_size=6))
def test_the_pooled_deviation_by_its_formula(groups: list[list[float]]) -> None:
    squares = 0.0
    n_free = 0
    for group in groups:
        mean = sum(group) / len(group)
        for value in group:
            squares += (value - mean) ** 2
        n_free += len(group) - 1
    deviation = pooled_deviation([[group] for group in groups])
    if not n_free:
        assert deviation is None
    else:
        assert deviation is not None
        assert deviation.degrees_of_freedom == n_free
        assert deviation.value == pytest.approx(math.sqrt(squares / n_free), abs=1e-6)


def test_classifiers_of_the_same_networks_count_once() -> None:
    deviation = pooled_deviation([[[1.0, 2.0, 3.0], [1.0, 3.0, 5.0]]])
    assert deviation is not None
    assert deviation.degrees_of_freedom == 2
    assert deviation.value == pytest.approx(math.sqrt(2.5))


def test_one_run_measured_in_two_ways_is_paired_by_seed_on_the_episodes_of_both(
    tmp_path: Path,
) -> None:
    results = Results(tmp_path)
    for seed, gain in zip(SEEDS, (1.0, 2.0, 4.0), strict=True):
        means = {ADAPTED[1]: 62.0 + 3 * seed + gain}
        put(results, NCA, 62.0 + 3 * seed, seeds=[seed], means=means, n_episodes=100)
    gains = []
    for plain, adapted in zip(
        results.accuracies(*PLAIN).values(), results.accuracies(*ADAPTED).values(), strict=True
    ):
        gains.append(float((adapted.per_episode - plain.per_episode).mean()))
    expected = scipy.stats.ttest_1samp(gains, 0.0).confidence_interval(0.95)
    difference = results.difference(ADAPTED, PLAIN)
    assert difference is not None
    assert difference.mean - difference.half_width == pytest.approx(expected.low)
    assert difference.mean + difference.half_width == pytest.approx(expected.high)


def test_a_single_seed_has_the_interval_over_episodes(tmp_path: Path) -> None:
    """If one side has it alone, the other side's same seed is compared with it."""
    results = Results(tmp_path)
    put(results, FIRST[0], 62.0, seeds=SEEDS, spread=0.7)
    put(results, SECOND[0], 60.0, seeds=[1], spread=0.7)
    difference = results.difference(FIRST, SECOND)
    assert difference == Results(tmp_path, seeds=[1]).difference(FIRST, SECOND)
    assert difference is not None
    assert (difference.n_first, difference.n_second) == (1, 1)
    first = results.accuracies(*FIRST)[1].per_episode
    differences = first - results.accuracies(*SECOND)[1].per_episode
    assert difference.mean == pytest.approx(float(differences.mean()))
    expected = 1.96 * float(differences.std()) / len(differences) ** 0.5
    assert difference.half_width == pytest.approx(expected)


def test_fewer_episodes_of_a_seed_are_the_first_of_more(tmp_path: Path) -> None:
    results = Results(tmp_path, seeds=[0])
    put(results, FIRST[0], 62.0, n_episodes=100)
    put(results, SECOND[0], 60.0)
    difference = results.difference(FIRST, SECOND)
    backwards = results.difference(SECOND, FIRST)
    put(results, SECOND[0], 60.0, n_episodes=100)
    assert difference == results.difference(FIRST, SECOND)
    assert difference is not None
    assert backwards is not None
    assert backwards.mean == pytest.approx(-difference.mean)
    put(results, SECOND[0], 60.0, episode_seed=1)
    with pytest.raises(InputError, match="episodes"):
        results.difference(FIRST, SECOND)


def test_what_is_not_measured_or_the_same_has_no_difference(tmp_path: Path) -> None:
    class OneBackbone(Size):
        def change(self, config: TrainConfig) -> TrainConfig:
            return replace(config, backbone="resnet12")

    results = Results(tmp_path, OneBackbone("paper", "one backbone for all"), [0])
    put(results, FIRST[0], 62.0)
    with_dropblock = (replace(FIRST[0], backbone="resnet12-dropblock"), VAL)
    assert results.accuracy(*with_dropblock) is not None
    assert results.difference(FIRST, with_dropblock) is None
    assert results.difference(FIRST, SECOND) is None
    assert results.difference(FIRST, (FIRST[0], Measurement("test", 5, how="raw"))) is None
