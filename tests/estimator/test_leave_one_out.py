"""Leaving support images out: probabilities that can be believed, the accuracy to expect, and none of these."""

import itertools
import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import scipy.stats
import torch
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import accuracy_score
from tests import reference
from tests.helpers.clouds import clouds

from nearshot import FewShotClassifier
from nearshot.errors import InputError
from nearshot.estimator.leave_one_out import (
    HeldOutScores,
    estimate_accuracy,
    leave_one_out_rounds,
)
from nearshot.estimator.novelty import TYPICAL_BY_SCORE, choose_threshold, held_out_novelties
from nearshot.estimator.ridge import HeldOutRidge
from nearshot.estimator.support import Support
from nearshot.evaluation import CLASSIFIERS

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
    for kept, tested in leave_one_out_rounds(support):
        assert not set(kept.tolist()) & set(tested.tolist())
        left = support.subset(kept).counts
        assert (left >= 1).all()
        assert (
            len(set(sizes)) > 1 or max(sizes) > 20 or len(set(left.tolist())) == 1
        )  # equal classes stay equal
        asked += tested.tolist()
    counts = support.counts[support.codes]
    assert sorted(asked) == (counts > 1).nonzero()[:, 0].tolist()


@pytest.mark.parametrize(("n_classes", "n_shot"), [(51, 5), (500, 2), (1000, 5), (3, 1000)])
def test_of_many_images_all_classes_are_asked_about_equally(n_classes: int, n_shot: int) -> None:
    codes = torch.arange(n_classes).repeat(n_shot)
    asked = torch.cat(
        [
            tested
            for _, tested in leave_one_out_rounds(
                Support(torch.zeros(len(codes), 1), codes, n_classes)
            )
        ]
    )
    assert len(asked.unique()) == len(asked) == min(len(codes), 1000)
    times = torch.bincount(codes[asked], minlength=n_classes)
    assert times.min() > 0
    assert times.max() - times.min() <= 1


@pytest.mark.parametrize("dim", [2, 40])
def test_held_out_scores_of_ridge_regression_without_another_fit(dim: int) -> None:
    """Against a fit to the kept images in each round, with the weights and the penalty of all images."""
    generator = torch.Generator().manual_seed(0)
    support = support_of([2, 5, 3, 1], 3)
    features = (
        torch.randn(len(support.codes), dim, generator=generator, dtype=torch.float64)
        + support.codes[:, None]
    )
    support = replace(support, features=features)
    ridge = HeldOutRidge(support)
    counts = support.counts.tolist()
    weights = [len(features) / 4 / counts[code] for code in support.codes.tolist()]
    mean = torch.stack([features[support.codes == code].mean(0) for code in range(4)]).mean(0)
    penalty = float(
        (torch.tensor(weights, dtype=torch.float64) * (features - mean).square().sum(1)).mean()
    )
    n_tested = 0
    for kept, tested in leave_one_out_rounds(support):
        found = ridge.held_out_scores(tested, kept)
        by_class = [
            [image for image in kept.tolist() if support.codes[image] == code] for code in range(4)
        ]
        left = [weights[image] for images in by_class for image in images]
        for image, scores in zip(tested.tolist(), found, strict=True):
            classes = [features[images] for images in by_class]
            expected = reference.ridge_scores(
                classes, features[image], weights=left, penalty=penalty
            )
            torch.testing.assert_close(
                scores, torch.tensor(expected, dtype=torch.float64), atol=1e-9, rtol=0
            )
            n_tested += 1
    assert n_tested == 10


@given(st.lists(st.integers(1, 6), min_size=2, max_size=4), st.integers(0, 1000))
def test_distance_between_classes_against_a_loop(sizes: list[int], seed: int) -> None:
    support = support_of(sizes, seed)
    pairs = [
        float((support.features[i] - support.features[j]).square().sum())
        for i, j in itertools.combinations(range(len(support.codes)), 2)
        if support.codes[i] != support.codes[j]
    ]
    assert support.between == pytest.approx(np.mean(pairs))
    assert Support(torch.ones(4, 2), torch.tensor([0, 0, 1, 1]), 2).between is None


@pytest.mark.parametrize("classifier", CLASSIFIERS)
@pytest.mark.parametrize(
    ("n_shot", "spread"),
    [
        (1, 0.7),
        (5, 1.4),
        *(pytest.param(*one, marks=pytest.mark.slow) for one in [(2, 1.0), (10, 1.4)]),
    ],
)
def test_probabilities_are_as_right_as_they_say(
    classifier: Any, n_shot: int, spread: float
) -> None:
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


@pytest.mark.parametrize("classifier", CLASSIFIERS)
def test_the_estimate_is_what_leaving_out_by_hand_gives(classifier: Any) -> None:
    drawn = clouds(3, spread=1.3)
    n_right = 0
    for number in range(5):
        out = np.arange(25) % 5 == number
        model = FewShotClassifier(classifier=classifier).fit(
            drawn.support[~out], drawn.labels[~out]
        )
        n_right += int((model.predict(drawn.support[out]) == drawn.labels[out]).sum())
    estimate = (
        FewShotClassifier(classifier=classifier)
        .fit(drawn.support, drawn.labels)
        .estimate_accuracy()
    )
    assert estimate.recognised == n_right / 25
    assert estimate.mean == pytest.approx(1 - (1 - n_right / 25) * 0.8**0.35)
    assert (estimate.n, estimate.n_known) == (25, 4)
    low, high = estimate.interval
    assert low < estimate.mean < high


@pytest.mark.parametrize("n_shot", [2, 5])
def test_estimates_cover_the_truth_about_as_often_as_they_say(n_shot: int) -> None:
    covered, gaps = [], []
    for seed in range(100):
        drawn = clouds(seed, n_shot=n_shot, spread=1.4, n_query=60)
        model = FewShotClassifier().fit(drawn.support, drawn.labels)
        truth, estimate = model.score(drawn.query, drawn.query_labels), model.estimate_accuracy()
        covered.append(estimate.interval[0] <= truth <= estimate.interval[1])
        gaps.append(estimate.mean - truth)
    assert np.mean(covered) > 0.9
    assert abs(np.mean(gaps)) < 0.04


def test_an_estimate_of_many_images_and_of_none() -> None:
    drawn = clouds(0, n_shot=50)
    estimate = FewShotClassifier().fit(drawn.support, drawn.labels).estimate_accuracy()
    assert (estimate.n, estimate.n_known) == (250, 47)
    for rows in (slice(None, None, 50), slice(5)):  # one image per class, and one class
        with pytest.raises(InputError, match="at least 2 classes, and at least 2 images"):
            FewShotClassifier().fit(drawn.support[rows], drawn.labels[rows]).estimate_accuracy()
    right = HeldOutScores(
        scores=torch.eye(2).repeat(5, 1),
        codes=torch.arange(2).repeat(5),
        images=torch.arange(10),
        rounds=torch.arange(5).repeat_interleave(2),
        n_known=torch.full((10,), 4),
    )
    wrong = replace(right, codes=1 - right.codes)
    nothing_recognised = estimate_accuracy(wrong, torch.tensor([5, 5]))
    assert nothing_recognised.recognised == 0.0
    assert nothing_recognised.interval[0] < 0.08
    assert nothing_recognised.has_few_images
    assert not estimate.has_few_images
    for sizes, told in (
        ([6, 5], "10 of 11 images held out"),
        (
            [21, 1000, 1, 1],
            "10 of 1,021 images held out in 20 parts; not tested: 2 classes with a single image",
        ),
    ):
        assert estimate_accuracy(right, torch.tensor(sizes)).method == told


@given(st.lists(st.integers(1, 6), min_size=1, max_size=4), st.integers(0, 1000))
def test_held_out_novelties_against_a_loop(sizes: list[int], seed: int) -> None:
    support = support_of(sizes, seed)
    features, codes = support.features.numpy(), support.codes.numpy()
    between = support.between
    usual = 0 if between is None else 2  # a class alone has no distances to others
    expected = []
    for image in range(len(codes)):
        kept = np.arange(len(codes)) != image
        if sizes[codes[image]] == 1 or sizes in ([1], [2]):
            continue
        classes = [features[kept & (codes == code)] for code in range(len(sizes))]
        squares = [((rows - rows.mean(0)) ** 2).sum() for rows in classes]
        shared = (usual * 0.225 * (between or 0) + sum(squares)) / (
            usual + sum(len(rows) - 1 for rows in classes)
        )
        expected.append(
            min(
                ((features[image] - rows.mean(0)) ** 2).sum()
                / ((24 * shared + own) / (24 + len(rows) - 1) * (1 + 1 / len(rows)))
                for rows, own in zip(classes, squares, strict=True)
            )
        )
    np.testing.assert_allclose(held_out_novelties(support), expected, rtol=1e-6)


SETS = [
    (way, shot, rate)
    for way, shot in [(5, 2), (5, 5), (2, 5), (1, 5), (20, 3)]
    for rate in (0.01, 0.05, 0.2)
]
FAST = [(5, 5, 0.05), (1, 5, 0.2)]


@pytest.mark.parametrize(
    ("n_way", "n_shot", "rate"),
    [one if one in FAST else pytest.param(*one, marks=pytest.mark.slow) for one in SETS],
)
def test_the_rate_is_kept(n_way: int, n_shot: int, rate: float) -> None:
    """Over many support sets, so many of the known are taken for unknown; of the unknown far more."""
    rejected, found = [], []
    for seed in range(60):
        drawn = clouds(seed, n_way=n_way, n_shot=n_shot)
        model = FewShotClassifier(unknown_rate=rate).fit(drawn.support, drawn.labels)
        rejected.append((model.predict(drawn.query) == "unknown").mean())
        found.append((model.predict(drawn.strangers) == "unknown").mean())
    assert rate / 5 < np.mean(rejected) < 2 * rate
    assert np.mean(found) > 0.75


@given(st.lists(st.floats(0.05, 20), max_size=30), st.floats(0.001, 0.999))
def test_a_threshold_is_what_is_believed_after_one_image_after_another(
    values: list[float], rate: float
) -> None:
    """A normal distribution, learnt image by image, and the more of them lie beyond the quantile, their own order."""
    mean, weight, squares, freedom = 0.95, 1.0, 4 * 0.14**2, 4.0
    roots = [value ** (1 / 3) for value in values]
    for root in roots:
        squares += weight / (weight + 1) * (root - mean) ** 2
        mean += (root - mean) / (weight + 1)
        weight, freedom = weight + 1, freedom + 1
    scale = math.sqrt(squares / freedom * (1 + 1 / weight))
    believed = scipy.stats.t(freedom) if roots else scipy.stats.norm()
    expected = mean + scale * float(believed.isf(rate))
    if roots:
        beyond = len(roots) * rate
        ordered = np.quantile(roots, min(1.0, (len(roots) + 1) * (1 - rate) / len(roots)))
        expected = (expected + beyond * float(ordered)) / (1 + beyond)
    found = choose_threshold(torch.tensor(values, dtype=torch.float64), rate)
    assert found == pytest.approx(max(expected, 0.0) ** 3, rel=1e-6, abs=1e-9)


def test_what_unknown_is_called() -> None:
    drawn = clouds(2)
    numbers = np.repeat(np.arange(5), 5)
    text = FewShotClassifier(unknown_rate=0.1).fit(drawn.support, numbers)
    assert "unknown" in text.predict(drawn.strangers).tolist()
    whole = FewShotClassifier(unknown_rate=0.1, unknown_label=-1).fit(drawn.support, numbers)
    images, truth = (
        np.concatenate([drawn.query, drawn.strangers]),
        [*np.repeat(np.arange(5), 15), *[-1] * 75],
    )
    answers = whole.predict(images)
    assert answers.dtype.kind == "i"
    assert whole.score(images, truth) == accuracy_score(truth, answers) > 0.8
    assert (
        text.score(drawn.query, np.repeat(np.arange(5), 15)) > 0.8
    )  # though the answers have a text among them
    longer = FewShotClassifier(unknown_rate=0.1, unknown_label="none of these at all").fit(
        drawn.support, drawn.labels
    )
    assert "none of these at all" in longer.predict(drawn.strangers)


def test_the_novelty_of_ridge_regression_counts_its_score() -> None:
    """A query whose best score is 1/2 is as novel as its distance says, and one with a higher score less so."""
    drawn = clouds(5, spread=1.1, n_query=4)
    settings: Any = {"unknown_rate": 0.1, "normalise": False}
    model, by_distance = (
        FewShotClassifier(classifier=one, **settings) for one in ("ridge", "centroid")
    )
    model.fit(drawn.support, drawn.labels)
    by_distance.fit(drawn.support, drawn.labels)
    query, support = torch.from_numpy(drawn.query), torch.from_numpy(drawn.support).view(5, 5, -1)
    best = np.array([max(reference.ridge_scores(list(support), one)) for one in query])
    expected = by_distance.novelty(drawn.query) * np.exp(2 * (0.5 - best))
    np.testing.assert_allclose(model.novelty(drawn.query), expected, rtol=1e-9)
    assert best.min() < 0.5 < best.max()
    # The threshold, from images that are held out: one of every class at a time.
    held_out, distances = [], held_out_novelties(model.fitted_state().support).view(5, 5)
    for number in range(5):
        kept = [torch.cat([images[:number], images[number + 1 :]]) for images in support]
        for code in range(5):
            score = max(reference.ridge_scores(kept, support[code, number]))
            held_out.append(float(distances[code, number]) * math.exp(2 * (0.5 - score)))
    assert model.threshold_ == pytest.approx(
        choose_threshold(torch.tensor(held_out), 0.1, TYPICAL_BY_SCORE), rel=1e-5
    )
    alone = FewShotClassifier(classifier="ridge", unknown_rate=0.1).fit(
        drawn.support[:5], drawn.labels[:5]
    )
    other = FewShotClassifier(classifier="centroid", unknown_rate=0.1).fit(
        drawn.support[:5], drawn.labels[:5]
    )
    np.testing.assert_array_equal(
        alone.novelty(drawn.query), other.novelty(drawn.query)
    )  # one class: distance alone
