"""Leaving support images out: who is asked, probabilities that can be believed, and the accuracy to expect."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
import torch
from clouds import clouds
from hypothesis import given, settings
from hypothesis import strategies as st

from nearshot import FewShotClassifier
from nearshot.errors import InputError
from nearshot.estimator.leave_one_out import HeldOut, choose_temperature, estimate_from, held_out_scores, rounds
from nearshot.estimator.support import Support, between_classes

SIZES = st.lists(st.integers(1, 45), min_size=1, max_size=5)


def support_of(sizes: list[int], seed: int) -> Support:
    generator = torch.Generator().manual_seed(seed)
    codes = torch.arange(len(sizes)).repeat_interleave(torch.tensor(sizes))
    codes = codes[torch.randperm(len(codes), generator=generator)]
    features = torch.randn(len(codes), 3, generator=generator, dtype=torch.float64) + codes[:, None]
    return Support(features, codes, len(sizes))


@given(SIZES, st.integers(0, 1000))
def test_every_image_that_can_be_is_left_out_once(sizes: list[int], seed: int) -> None:
    support = support_of(sizes, seed)
    asked: list[int] = []
    for kept, tested in rounds(support):
        assert not set(kept.tolist()) & set(tested.tolist())
        left = support.subset(kept).counts
        assert (left >= 1).all()
        assert len(set(sizes)) > 1 or max(sizes) > 20 or len(set(left.tolist())) == 1  # equal classes stay equal
        asked += tested.tolist()
    counts = support.counts[support.codes]
    assert sorted(asked) == (counts > 1).nonzero()[:, 0].tolist()


@pytest.mark.parametrize(("n_classes", "n_shot"), [(51, 5), (500, 2), (1000, 5), (3, 1000)])
def test_of_many_images_all_classes_are_asked_about_equally(n_classes: int, n_shot: int) -> None:
    codes = torch.arange(n_classes).repeat(n_shot)
    asked = torch.cat([tested for _, tested in rounds(Support(torch.zeros(len(codes), 1), codes, n_classes))])
    assert len(asked.unique()) == len(asked) == min(len(codes), 1000)
    times = torch.bincount(codes[asked], minlength=n_classes)
    assert times.min() > 0
    assert times.max() - times.min() <= 1


def test_rounds_in_which_nobody_is_asked_are_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of ten classes of four images ten are asked about, every fourth: all of them in the first round."""
    monkeypatch.setattr("nearshot.estimator.leave_one_out.MAX_TESTED", 10)
    support = support_of([4] * 10, 0)
    assert [len(tested) for _, tested in rounds(support)] == [10, 0, 0, 0]
    found = held_out_scores(support, "centroid")
    assert found.scores.shape == (10, 10)
    assert sorted(found.codes.tolist()) == list(range(10))
    assert found.n_known == 3


@settings(deadline=None)
@given(st.lists(st.integers(1, 6), min_size=2, max_size=4), st.integers(0, 1000))
def test_distance_between_classes_against_a_loop(sizes: list[int], seed: int) -> None:
    support = support_of(sizes, seed)
    pairs = [
        float((support.features[i] - support.features[j]).square().sum())
        for i, j in itertools.combinations(range(len(support.codes)), 2)
        if support.codes[i] != support.codes[j]
    ]
    assert between_classes(support) == pytest.approx(np.mean(pairs))
    assert between_classes(Support(torch.ones(4, 2), torch.tensor([0, 0, 1, 1]), 2)) is None


def test_the_temperature_is_the_most_probable_one() -> None:
    generator = torch.Generator().manual_seed(0)
    scores = torch.randn(200, 5, generator=generator, dtype=torch.float64)
    codes = (scores / 0.3).softmax(1).multinomial(1, generator=generator)[:, 0]  # 0.3 is the truth
    chosen = choose_temperature(scores, codes)
    assert chosen == pytest.approx(0.3, rel=0.2)
    losses = {}
    for temperature in np.geomspace(0.05, 2, 400):
        likelihood = (scores / temperature).log_softmax(1)[torch.arange(200), codes].sum()
        losses[temperature] = float(np.log(temperature) ** 2 / 2 - likelihood)
    assert chosen == pytest.approx(min(losses, key=losses.__getitem__), rel=0.02)


def test_a_temperature_where_every_answer_is_right_or_wrong() -> None:
    """The likelihood alone would choose 0 or infinity; the prior prevents that."""
    scores, right = torch.eye(5).double().repeat(5, 1), torch.arange(5).repeat(5)
    assert 0.1 < choose_temperature(scores, right) < 1
    assert 1 < choose_temperature(scores, (right + 1) % 5) < 100
    assert choose_temperature(scores * 1e6, right) > 0  # and nothing overflows


@pytest.mark.parametrize("classifier", ["centroid", "soft", "knn"])
@pytest.mark.parametrize(
    ("n_shot", "spread"),
    [(1, 0.7), (5, 1.4), *(pytest.param(*one, marks=pytest.mark.slow) for one in [(2, 1.0), (10, 1.4)])],
)
def test_probabilities_are_as_right_as_they_say(classifier: Any, n_shot: int, spread: float) -> None:
    """Over many support sets, the mean probability of the answer is the share of right answers."""
    stated, right = [], []
    for seed in range(60):
        drawn = clouds(seed, n_shot=n_shot, spread=spread)
        model = FewShotClassifier(classifier=classifier).fit(drawn.support, drawn.labels)
        probabilities = model.predict_proba(drawn.query)
        np.testing.assert_allclose(probabilities.sum(1), 1)
        stated.append(probabilities.max(1).mean())
        right.append(model.score(drawn.query, drawn.query_labels))
    assert 0.5 < np.mean(right) < 0.99
    off = 0.1 if classifier == "knn" else 0.06  # two votes say little
    assert np.mean(stated) == pytest.approx(np.mean(right), abs=off)


def test_a_given_temperature_and_the_scale_of_features() -> None:
    drawn = clouds(0, spread=1.2)
    cold, warm = (FewShotClassifier(temperature=t).fit(drawn.support, drawn.labels) for t in (0.01, 10.0))
    assert cold.predict_proba(drawn.query).max(1).mean() > 0.95 > 0.3 > warm.predict_proba(drawn.query).max(1).mean()
    plain = FewShotClassifier(normalise=False)
    expected = plain.fit(drawn.support, drawn.labels).predict_proba(drawn.query)
    scaled = plain.fit(1000 * drawn.support, drawn.labels).predict_proba(1000 * drawn.query)
    np.testing.assert_allclose(scaled, expected, atol=1e-5)


@pytest.mark.parametrize("classifier", ["centroid", "soft", "knn"])
def test_the_estimate_is_what_leaving_out_by_hand_gives(classifier: Any) -> None:
    drawn = clouds(3, spread=1.3)
    n_right = 0
    for number in range(5):
        out = np.arange(25) % 5 == number
        model = FewShotClassifier(classifier=classifier).fit(drawn.support[~out], drawn.labels[~out])
        n_right += int((model.predict(drawn.support[out]) == drawn.labels[out]).sum())
    estimate = FewShotClassifier(classifier=classifier).fit(drawn.support, drawn.labels).estimate_accuracy()
    assert estimate.mean == n_right / 25
    assert (estimate.n, estimate.n_known) == (25, 4)
    low, high = estimate.interval
    assert low < estimate.mean < high


def test_estimates_cover_the_truth_about_as_often_as_they_say() -> None:
    covered, gaps = [], []
    for seed in range(100):
        drawn = clouds(seed, spread=1.4, n_query=60)
        model = FewShotClassifier().fit(drawn.support, drawn.labels)
        truth, estimate = model.score(drawn.query, drawn.query_labels), model.estimate_accuracy()
        covered.append(estimate.interval[0] <= truth <= estimate.interval[1])
        gaps.append(estimate.mean - truth)
    assert np.mean(covered) > 0.88
    assert -0.06 < np.mean(gaps) < 0.01  # a little too low, as a classifier of four images a class is


def test_an_estimate_of_many_images_and_of_none() -> None:
    drawn = clouds(0, n_shot=50)
    estimate = FewShotClassifier().fit(drawn.support, drawn.labels).estimate_accuracy()
    assert (estimate.n, estimate.n_known) == (250, 47)
    for rows in (slice(None, None, 50), slice(5)):  # one image per class, and one class
        with pytest.raises(InputError, match="at least 2 classes, and at least 2 images"):
            FewShotClassifier().fit(drawn.support[rows], drawn.labels[rows]).estimate_accuracy()
    right = HeldOut(torch.eye(2).repeat(5, 1), torch.arange(2).repeat(5), 4)
    assert estimate_from(right._replace(codes=1 - right.codes), torch.tensor([5, 5])).interval[0] == 0.0
    for sizes, told in (
        ([6, 5], "10 of 11 images held out"),
        ([21, 1000, 1, 1], "10 of 1,021 images held out in 20 parts; not tested: 2 classes with a single image"),
    ):
        assert estimate_from(right, torch.tensor(sizes)).method == told
