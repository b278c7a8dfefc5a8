"""Differences between runs, and of one run that is measured in two ways."""

from dataclasses import replace
from pathlib import Path

import pytest
import scipy.stats
from tests.helpers.made_up import DATASET, SEEDS, put

from nearshot.errors import InputError
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
def test_two_runs_have_welchs_interval(
    first_seeds: tuple[int, ...], second_seeds: tuple[int, ...], tmp_path: Path
) -> None:
    """The same seed of two methods draws other batches, and they may differ in variance."""
    results = Results(tmp_path)
    put(results, FIRST[0], 62.0, seeds=first_seeds, spread=8 / 3)
    put(results, SECOND[0], 60.0, seeds=second_seeds, spread=4 / 3)
    sides = seed_means(results, FIRST), seed_means(results, SECOND)
    expected = scipy.stats.ttest_ind(*sides, equal_var=False).confidence_interval(0.95)
    difference = results.difference(FIRST, SECOND)
    assert difference is not None
    assert (difference.n_first, difference.n_second) == (len(first_seeds), len(second_seeds))
    assert difference.mean - difference.half_width == pytest.approx(expected.low)
    assert difference.mean + difference.half_width == pytest.approx(expected.high)


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
