"""Accuracies: their intervals, pooling, pairs, selection."""

import base64
import json
import math
import zlib
from dataclasses import replace

import hypothesis.strategies as st
import numpy as np
import pytest
import scipy.stats
import torch
from hypothesis import assume, example, given
from torch import Tensor

from nearshot.errors import InputError, LeakError
from nearshot.evaluation import (
    Accuracy,
    Protocol,
    compare,
    paired,
    pool_seeds,
    select_best,
    welch,
)

PROTOCOL = Protocol(5, 1, 15, 4, 0, "abc", "centroid", centred=True, normalised=True, split="val")


def accuracy(values: list[float] | Tensor, **changes: object) -> Accuracy:
    return Accuracy(torch.as_tensor(values, dtype=torch.float64), replace(PROTOCOL, **changes))  # type: ignore[arg-type]


def test_mean_interval_and_text() -> None:
    values = [60.0, 72.0, 80.0, 68.0]
    measured = accuracy(values)
    assert measured.mean == pytest.approx(70)
    assert measured.interval95 == pytest.approx(1.96 * np.std(values, ddof=1) / 2)
    assert str(measured) == f"70.00 ± {measured.interval95:.2f}"
    assert math.isnan(accuracy([50.0]).interval95)
    assert str(accuracy([50.0])) == "50.00"


@given(
    n_way=st.integers(2, 20),
    n_query=st.integers(1, 60),
    n_correct=st.lists(st.integers(0, 1200), min_size=1, max_size=20),
)
@example(n_way=5, n_query=51, n_correct=[255])
@example(n_way=4, n_query=64, n_correct=[256, 0])
@example(n_way=2, n_query=600, n_correct=[1200])
def test_an_accuracy_comes_back_from_json(n_way: int, n_query: int, n_correct: list[int]) -> None:
    """Exactly, however many questions an episode has, and in single precision too."""
    protocol = replace(PROTOCOL, n_way=n_way, n_query=n_query, n_episodes=len(n_correct))
    measured = Accuracy.of_counts(torch.tensor(n_correct).clamp(max=n_way * n_query), protocol)
    saved = json.loads(json.dumps(measured.as_dict(), allow_nan=False))
    again = Accuracy.from_dict(saved)
    assert torch.equal(again.per_episode, measured.per_episode)
    assert again.protocol == protocol
    assert saved["mean"] == measured.mean
    assert saved["interval95"] == (None if len(n_correct) == 1 else measured.interval95)
    coarse = Accuracy(measured.per_episode.float(), protocol)
    assert coarse.as_dict()["n_correct"] == saved["n_correct"]


def test_counts_of_four_bytes_are_read_whatever_they_count() -> None:
    saved = accuracy([60.0, 72.0, 80.0, 68.0]).as_dict()
    saved["n_correct"] = base64.b64encode(
        zlib.compress(np.array([45, 54, 60, 51], "<u4").tobytes())
    ).decode()
    assert Accuracy.from_dict(saved).per_episode.tolist() == [60, 72, 80, 68]


def test_a_result_says_how_it_was_measured() -> None:
    text = repr(accuracy([70.0, 71.0]))
    for part in (
        "5-way 1-shot",
        "15 queries",
        "4 episodes",
        "seed 0",
        "centroid",
        "centred and normalised",
        "not adapted",
        "inductive",
        "val split",
    ):
        assert part in text
    for change, part in (
        ({"inductive": False}, "transductive"),
        ({"adapted": "fine-tuned"}, "adapted: fine-tuned"),
        ({"centred": False, "normalised": False}, ", raw features, "),
        ({"centred": False}, ", normalised features, "),
        ({"centred": None, "normalised": None}, ", features of other code, "),
        ({"seed": None}, "episodes from elsewhere"),
        ({"n_skipped_classes": 2}, ", 2 classes with too few images skipped"),
    ):
        assert part in str(replace(PROTOCOL, **change))


def test_pooling_takes_all_episodes_together_and_shows_the_seeds() -> None:
    means = [70.0, 72.0, 71.0]
    seeds = [
        accuracy(m + torch.tensor([-2.0, 0.0, 2.0]), seed=s, episodes=str(s))
        for s, m in enumerate(means)
    ]
    pooled = pool_seeds(seeds)
    everything = np.concatenate([s.per_episode.numpy() for s in seeds])
    assert pooled.mean == pytest.approx(71)
    assert pooled.interval95 == pooled.paper95 == pytest.approx(1.96 * everything.std(ddof=1) / 3)
    assert pooled.per_seed == pytest.approx((70, 72, 71))
    assert pooled.between_seeds95 == pytest.approx(
        4.3027 * 1.0 / math.sqrt(3), rel=1e-4
    )  # Student's t, 2 degrees
    assert (
        str(pooled)
        == f"71.00 ± {pooled.interval95:.2f} (± {pooled.between_seeds95:.2f} between seeds)"
    )
    two = pool_seeds(seeds[:2])
    assert str(two) == f"71.00 ± {two.interval95:.2f} (2 seeds: 70.00, 72.00)"
    one = pool_seeds(seeds[:1])
    assert math.isnan(one.between_seeds95)
    assert str(one) == str(seeds[0])


def test_models_on_the_same_episodes_do_not_count_an_episode_thrice() -> None:
    """Three models that agree know no more about the episodes than one."""
    one = accuracy([60.0, 70.0, 80.0, 74.0])
    pooled = pool_seeds([one, one, one])
    assert pooled.interval95 == pytest.approx(one.interval95)
    assert pooled.paper95 < pooled.interval95
    with pytest.raises(InputError, match="3 models .* 2 "):
        pool_seeds([one, one, accuracy([1.0] * 4, episodes="other")])
    with pytest.raises(InputError, match="centroid.*soft"):
        pool_seeds([accuracy([1.0]), accuracy([1.0], classifier="soft")])


def test_a_paired_comparison() -> None:
    differences = np.array([1.0, 0.0, -2.0, 5.0, 3.0, 4.0, -1.0, 2.0, 4.0, 3.0])
    second = accuracy([69.0, 80.0, 62.0, 85.0, 70.0, 71.0, 72.0, 73.0, 74.0, 75.0])
    first = accuracy(second.per_episode + torch.from_numpy(differences))
    result = compare(first, second)
    assert result.difference == pytest.approx(1.9)
    assert result.interval95 == pytest.approx(1.96 * differences.std(ddof=1) / math.sqrt(10))
    assert (result.wins, result.ties, result.losses) == (70, 10, 20)
    assert (
        str(result)
        == f"+1.90 ± {result.interval95:.2f} (wins 70 %, ties 10 %, loses 20 % of the episodes)"
    )
    for name in ("episodes", "fingerprint", "split"):
        with pytest.raises(InputError, match=f"different {name}"):
            compare(first, accuracy([1.0] * 4, **{name: "other"}))


percents = st.floats(0, 100).map(lambda value: round(value, 2))
seeds = st.lists(percents, min_size=2, max_size=8, unique=True)


@given(firsts=seeds, seconds=seeds, confidence=st.sampled_from([0.9, 0.95, 0.999]))
def test_welchs_interval_is_scipys(
    firsts: list[float], seconds: list[float], confidence: float
) -> None:
    difference = welch(firsts, seconds, confidence=confidence)
    test = scipy.stats.ttest_ind(firsts, seconds, equal_var=False)
    low, high = test.confidence_interval(confidence)
    assert difference.mean - difference.half_width == pytest.approx(low, rel=1e-9, abs=1e-9)
    assert difference.mean + difference.half_width == pytest.approx(high, rel=1e-9, abs=1e-9)
    assert (difference.n_first, difference.n_second) == (len(firsts), len(seconds))


@given(
    pairs=st.lists(st.tuples(percents, percents), min_size=2, max_size=8),
    confidence=st.sampled_from([0.9, 0.95, 0.999]),
)
@example(pairs=[(70.0, 69.0), (75.0, 73.5)], confidence=0.95)
def test_the_paired_interval_is_scipys(pairs: list[tuple[float, float]], confidence: float) -> None:
    firsts = [first for first, _ in pairs]
    seconds = [second for _, second in pairs]
    assume(np.std(np.subtract(firsts, seconds)) > 1e-6)
    difference = paired(firsts, seconds, confidence=confidence)
    low, high = scipy.stats.ttest_rel(firsts, seconds).confidence_interval(confidence)
    assert difference.mean - difference.half_width == pytest.approx(low, rel=1e-9, abs=1e-9)
    assert difference.mean + difference.half_width == pytest.approx(high, rel=1e-9, abs=1e-9)
    assert (difference.n_first, difference.n_second) == (len(pairs), len(pairs))


def test_equal_seeds_have_no_interval_and_one_seed_is_refused() -> None:
    assert welch([70.0, 70.0], [69.0, 69.0]).half_width == 0
    assert paired([70.0, 71.0], [69.0, 70.0]).half_width == 0
    for compare_seeds in (welch, paired):
        with pytest.raises(InputError, match="2 seeds"):
            compare_seeds([70.0], [69.0])


def test_selection_is_by_validation_and_never_by_test() -> None:
    epochs = {
        10: accuracy([70.0]),
        20: accuracy([75.0]),
        30: accuracy([75.0]),
        40: accuracy([60.0]),
    }
    assert select_best(epochs) == 20
    for split in ("test", "Test"):
        with pytest.raises(LeakError, match="test split"):
            select_best({10: accuracy([70.0], split=split)})
    with pytest.raises(InputError, match="split"):
        select_best({10: accuracy([70.0], split=None)})
    with pytest.raises(InputError, match="1-shot.*5-shot"):
        select_best({10: accuracy([70.0]), 20: accuracy([70.0], n_shot=5)})
