"""Leave-one-out: which images are held out, and the accuracy to expect."""

import itertools
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.helpers.clouds import clouds
from tests.helpers.supports import random_support

from nearshot import FewShotClassifier
from nearshot.errors import InputError
from nearshot.estimator.groups import Groups
from nearshot.estimator.leave_one_out import (
    GAIN_EXPONENT,
    AccuracyEstimate,
    HeldOutScores,
    estimate_accuracy,
    leave_one_out_rounds,
)
from nearshot.estimator.support import Support
from nearshot.evaluation import CLASSIFIERS


@given(st.lists(st.integers(1, 45), min_size=1, max_size=5), st.integers(0, 1000))
def test_every_image_that_is_not_alone_is_held_out_once(sizes: list[int], seed: int) -> None:
    support = random_support(sizes, seed)
    all_tested: list[int] = []
    for kept, tested in leave_one_out_rounds(Groups.singles(support.codes, len(sizes))):
        assert not set(kept.tolist()) & set(tested.tolist())
        counts = support.subset(kept).counts
        assert (counts >= 1).all()
        if len(set(sizes)) == 1 and max(sizes) <= 20:  # classes of equal size stay equal
            assert len(set(counts.tolist())) == 1
        all_tested += tested.tolist()
    class_sizes = support.counts[support.codes]
    assert sorted(all_tested) == (class_sizes > 1).nonzero()[:, 0].tolist()


@pytest.mark.parametrize(("n_classes", "n_shot"), [(51, 5), (500, 2), (1000, 5), (3, 1000)])
def test_of_many_images_equally_many_of_each_class_are_tested(n_classes: int, n_shot: int) -> None:
    codes = torch.arange(n_classes).repeat(n_shot)
    rounds = leave_one_out_rounds(Groups.singles(codes, n_classes))
    tested = torch.cat([number.tested for number in rounds])
    assert len(tested.unique()) == len(tested) == min(len(codes), 1000)
    counts = torch.bincount(codes[tested], minlength=n_classes)
    assert counts.min() > 0
    assert counts.max() - counts.min() <= 1


@given(st.lists(st.integers(1, 6), min_size=2, max_size=4), st.integers(0, 1000))
def test_distance_between_classes_against_a_loop(sizes: list[int], seed: int) -> None:
    support = random_support(sizes, seed)
    squares = []
    for i, j in itertools.combinations(range(len(support.codes)), 2):
        if support.codes[i] != support.codes[j]:
            squares.append(float((support.features[i] - support.features[j]).square().sum()))
    assert support.between == pytest.approx(np.mean(squares))


def test_labels_that_are_not_by_hand_train_but_are_not_tested() -> None:
    """Temperature, threshold and estimate are those of the other held-out rows."""
    drawn = clouds(0, n_shot=6)
    by_hand = np.arange(len(drawn.labels)) % 3 > 0
    model = FewShotClassifier(reject_rate=0.1)
    model.fit(drawn.support, drawn.labels, by_hand=by_hand)
    everything = FewShotClassifier(reject_rate=0.1).fit(drawn.support, drawn.labels)
    held_out = model.fitted_state().held_out
    expected = everything.fitted_state().held_out
    rows = by_hand[expected.images.numpy()]
    np.testing.assert_array_equal(held_out.images, expected.images[rows])
    np.testing.assert_array_equal(held_out.scores, expected.scores[rows])
    assert model.estimate_accuracy().n == by_hand.sum()
    assert model.temperature_ != everything.temperature_
    # All of them train: the answers for images that are not rejected are the same.
    distances, _ = model.kneighbors(drawn.query)
    np.testing.assert_array_equal(distances, everything.kneighbors(drawn.query)[0])
    best = model.predict_proba(drawn.query).argmax(1)
    np.testing.assert_array_equal(best, everything.predict_proba(drawn.query).argmax(1))
    first = FewShotClassifier(reject_rate=0.1)
    first.fit(drawn.support[:10], drawn.labels[:10], by_hand=by_hand[:10])
    first.partial_fit(drawn.support[10:], drawn.labels[10:], by_hand=by_hand[10:])
    assert first.temperature_ == model.temperature_
    assert first.threshold_ == model.threshold_
    with pytest.raises(InputError, match="by_hand"):
        model.fit(drawn.support, drawn.labels, by_hand=by_hand[1:])


def test_equal_images_have_no_distance_between_classes() -> None:
    assert Support(torch.ones(4, 2), torch.tensor([0, 0, 1, 1]), 2).between is None


@pytest.mark.parametrize("classifier", CLASSIFIERS)
def test_the_estimate_against_classifiers_without_the_images(classifier: Any) -> None:
    drawn = clouds(3, spread=1.3)
    n_right = 0
    for number in range(5):
        is_held_out = np.arange(25) % 5 == number
        model = FewShotClassifier(classifier=classifier)
        model.fit(drawn.support[~is_held_out], drawn.labels[~is_held_out])
        answers = model.predict(drawn.support[is_held_out])
        n_right += int((answers == drawn.labels[is_held_out]).sum())
    model = FewShotClassifier(classifier=classifier).fit(drawn.support, drawn.labels)
    estimate = model.estimate_accuracy()
    assert estimate.recognised == n_right / 25
    odds = (n_right / 25 - 0.2) / (1 - n_right / 25) * 1.25**GAIN_EXPONENT  # beyond chance
    assert estimate.mean == pytest.approx((odds + 0.2) / (odds + 1))
    assert (estimate.n, estimate.n_known) == (25, 4)
    low, high = estimate.interval
    assert low < estimate.mean < high


@pytest.mark.parametrize("n_shot", [2, 5])
def test_intervals_cover_the_true_accuracy(n_shot: int) -> None:
    is_covered = []
    differences = []
    for seed in range(100):
        drawn = clouds(seed, n_shot=n_shot, spread=1.4, n_query=60)
        model = FewShotClassifier().fit(drawn.support, drawn.labels)
        truth = model.score(drawn.query, drawn.query_labels)
        estimate = model.estimate_accuracy()
        low, high = estimate.interval
        is_covered.append(low <= truth <= high)
        differences.append(estimate.mean - truth)
    assert np.mean(is_covered) > 0.9
    assert abs(np.mean(differences)) < 0.06


@pytest.mark.parametrize(("n_way", "n_shot"), [(2, 2), (10, 2), (5, 3)])
def test_where_nothing_can_be_learnt_chance_is_expected(n_way: int, n_shot: int) -> None:
    generator = np.random.default_rng(0)
    estimates = []
    for _ in range(150):
        features = generator.normal(size=(n_way * n_shot, 30))
        model = FewShotClassifier().fit(features, np.repeat(np.arange(n_way), n_shot))
        estimates.append(model.estimate_accuracy().mean)
    assert np.mean(estimates) == pytest.approx(1 / n_way, abs=0.06)


def test_an_estimate_of_many_images() -> None:
    drawn = clouds(0, n_shot=50)
    estimate = FewShotClassifier().fit(drawn.support, drawn.labels).estimate_accuracy()
    assert (estimate.n, estimate.n_known) == (250, 47)
    assert not estimate.has_few_images


@pytest.mark.parametrize("rows", [slice(None, None, 50), slice(5)], ids=["one image", "one class"])
def test_an_estimate_needs_two_classes_and_two_images(rows: slice) -> None:
    drawn = clouds(0, n_shot=50)
    model = FewShotClassifier().fit(drawn.support[rows], drawn.labels[rows])
    with pytest.raises(InputError, match="2 classes.* 2 images"):
        model.estimate_accuracy()


def test_the_interval_and_the_method_of_an_estimate() -> None:
    right = HeldOutScores(
        scores=torch.eye(2).repeat(5, 1),
        codes=torch.arange(2).repeat(5),
        images=torch.arange(10),
        rounds=torch.arange(5).repeat_interleave(2),
        n_known=torch.full((10,), 4),
        votes=torch.ones(10),
    )

    def estimate_for(held_out: HeldOutScores, sizes: list[int]) -> AccuracyEstimate:
        codes = torch.arange(len(sizes)).repeat_interleave(torch.tensor(sizes))
        groups = Groups.singles(codes, len(sizes))
        return estimate_accuracy(held_out, groups, range(len(sizes)))

    wrong = replace(right, codes=1 - right.codes)
    estimate = estimate_for(wrong, [5, 5])
    assert estimate.recognised == 0.0
    assert estimate.mean == estimate.interval[0] == 0.0
    assert estimate.has_few_images
    assert "10 of 11 " in estimate_for(right, [6, 5]).method
    method = estimate_for(right, [21, 1000, 1, 1]).method
    for words in ("10 of 1,021 ", "20 parts", "2 classes"):
        assert words in method
