"""Novelty, its threshold, and the label of rejected images."""

import math

import numpy as np
import pytest
import scipy.stats
import torch
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import accuracy_score
from tests import reference
from tests.helpers.clouds import clouds
from tests.helpers.supports import random_support

from nearshot import FewShotClassifier
from nearshot.estimator.novelty import TYPICAL_BY_SCORE, choose_threshold, held_out_novelties


@given(st.lists(st.integers(1, 6), min_size=1, max_size=4), st.integers(0, 1000))
def test_held_out_novelties_against_a_loop(sizes: list[int], seed: int) -> None:
    support = random_support(sizes, seed)
    features = support.features.numpy()
    codes = support.codes.numpy()
    between = support.between
    weight = 0 if between is None else 2  # a single class has no distances to others
    expected = []
    for image in range(len(codes)):
        if sizes[codes[image]] == 1 or sizes in ([1], [2]):
            continue
        is_kept = np.arange(len(codes)) != image
        classes = [features[is_kept & (codes == code)] for code in range(len(sizes))]
        squares = [((rows - rows.mean(0)) ** 2).sum() for rows in classes]
        freedom = sum(len(rows) - 1 for rows in classes)
        shared = (weight * 0.225 * (between or 0) + sum(squares)) / (weight + freedom)
        novelties = []
        for rows, own in zip(classes, squares, strict=True):
            variance = (24 * shared + own) / (24 + len(rows) - 1) * (1 + 1 / len(rows))
            novelties.append(((features[image] - rows.mean(0)) ** 2).sum() / variance)
        expected.append(min(novelties))
    np.testing.assert_allclose(held_out_novelties(support), expected, rtol=1e-6)


@pytest.mark.parametrize(
    ("n_way", "n_shot", "rate"),
    [
        (5, 5, 0.05),
        (1, 5, 0.2),
        (5, 2, 0.01),
        (5, 2, 0.05),
        (5, 2, 0.2),
        (5, 5, 0.01),
        (5, 5, 0.2),
        (2, 5, 0.01),
        (2, 5, 0.05),
        (2, 5, 0.2),
        (1, 5, 0.01),
        (1, 5, 0.05),
        (20, 3, 0.01),
        (20, 3, 0.05),
        (20, 3, 0.2),
    ],
)
def test_the_rate_of_false_rejections_is_kept(n_way: int, n_shot: int, rate: float) -> None:
    """Over many support sets; images of other classes are rejected far more often."""
    known_rejected = []
    others_rejected = []
    for seed in range(60):
        drawn = clouds(seed, n_way=n_way, n_shot=n_shot)
        model = FewShotClassifier(reject_rate=rate).fit(drawn.support, drawn.labels)
        known_rejected.append((model.predict(drawn.query) == "none of these").mean())
        others_rejected.append((model.predict(drawn.strangers) == "none of these").mean())
    assert rate / 5 < np.mean(known_rejected) < 2 * rate
    assert np.mean(others_rejected) > 0.75


@given(st.lists(st.floats(0.05, 20), max_size=30), st.floats(0.001, 0.999))
def test_the_threshold_against_learning_image_by_image(values: list[float], rate: float) -> None:
    """A normal distribution, and the more images lie beyond the quantile, the empirical one."""
    mean = 0.95
    weight = 1.0
    squares = 4 * 0.14**2
    freedom = 4.0
    roots = [value ** (1 / 3) for value in values]
    for root in roots:
        squares += weight / (weight + 1) * (root - mean) ** 2
        mean += (root - mean) / (weight + 1)
        weight += 1
        freedom += 1
    scale = math.sqrt(squares / freedom * (1 + 1 / weight))
    predictive = scipy.stats.t(freedom) if roots else scipy.stats.norm()
    expected = mean + scale * float(predictive.isf(rate))
    if roots:
        n_beyond = len(roots) * rate
        position = min(1.0, (len(roots) + 1) * (1 - rate) / len(roots))
        expected = (expected + n_beyond * float(np.quantile(roots, position))) / (1 + n_beyond)
    threshold = choose_threshold(torch.tensor(values, dtype=torch.float64), rate)
    assert threshold == pytest.approx(max(expected, 0.0) ** 3, rel=1e-6, abs=1e-9)


@pytest.mark.parametrize("n_copies", [2, 3])
def test_copies_that_share_a_vote_leave_the_threshold_unchanged(n_copies: int) -> None:
    values = torch.tensor([0.3, 1.1, 0.7, 2.0], dtype=torch.float64)
    copies = values.repeat_interleave(n_copies)
    votes = torch.full_like(copies, 1 / n_copies)
    threshold = choose_threshold(values, 0.2)  # its quantile is one of the values
    assert choose_threshold(copies, 0.2, votes=votes) == pytest.approx(threshold)
    assert choose_threshold(copies, 0.2) != pytest.approx(threshold, rel=0.01)


def test_the_reject_label_may_be_a_string_among_numbers() -> None:
    drawn = clouds(2)
    model = FewShotClassifier(reject_rate=0.1).fit(drawn.support, np.repeat(np.arange(5), 5))
    answers = model.predict(drawn.strangers)
    assert answers.dtype == object
    assert "none of these" in answers.tolist()
    assert model.score(drawn.query, np.repeat(np.arange(5), 15)) > 0.8


def test_a_reject_label_that_is_an_integer_keeps_answers_integers() -> None:
    drawn = clouds(2)
    model = FewShotClassifier(reject_rate=0.1, reject_label=-1)
    model.fit(drawn.support, np.repeat(np.arange(5), 5))
    images = np.concatenate([drawn.query, drawn.strangers])
    labels = [*np.repeat(np.arange(5), 15), *[-1] * 75]
    answers = model.predict(images)
    assert answers.dtype.kind == "i"
    assert model.score(images, labels) == accuracy_score(labels, answers) > 0.8


def test_the_reject_label_may_be_longer_than_the_classes() -> None:
    drawn = clouds(2)
    model = FewShotClassifier(reject_rate=0.1, reject_label="none of these at all")
    model.fit(drawn.support, drawn.labels)
    assert "none of these at all" in model.predict(drawn.strangers)


def test_the_novelty_of_ridge_regression_counts_its_score() -> None:
    """A query with a highest score of 1/2 is as novel as its distance says; a higher score less."""
    drawn = clouds(5, spread=1.1, n_query=4)
    ridge = FewShotClassifier(classifier="ridge", reject_rate=0.1, normalise=False)
    centroid = FewShotClassifier(classifier="centroid", reject_rate=0.1, normalise=False)
    ridge.fit(drawn.support, drawn.labels)
    centroid.fit(drawn.support, drawn.labels)
    support = torch.from_numpy(drawn.support).view(5, 5, -1)
    queries = torch.from_numpy(drawn.query)
    highest = np.array([max(reference.ridge_scores(list(support), query)) for query in queries])
    assert highest.min() < 0.5 < highest.max()
    expected = centroid.novelty(drawn.query) * np.exp(2 * (0.5 - highest))
    np.testing.assert_allclose(ridge.novelty(drawn.query), expected, rtol=1e-9)
    # The threshold comes from images that are held out: one of every class at a time.
    by_distance = held_out_novelties(ridge.fitted_state().support).view(5, 5)
    held_out = []
    for number in range(5):
        kept = [torch.cat([images[:number], images[number + 1 :]]) for images in support]
        for code in range(5):
            score = max(reference.ridge_scores(kept, support[code, number]))
            held_out.append(float(by_distance[code, number]) * math.exp(2 * (0.5 - score)))
    threshold = choose_threshold(torch.tensor(held_out), 0.1, typical=TYPICAL_BY_SCORE)
    assert ridge.threshold_ == pytest.approx(threshold, rel=1e-5)


def test_the_novelty_of_a_single_class_is_its_distance() -> None:
    drawn = clouds(5, spread=1.1, n_query=4)
    ridge = FewShotClassifier(classifier="ridge", reject_rate=0.1)
    centroid = FewShotClassifier(classifier="centroid", reject_rate=0.1)
    ridge.fit(drawn.support[:5], drawn.labels[:5])
    centroid.fit(drawn.support[:5], drawn.labels[:5])
    np.testing.assert_array_equal(ridge.novelty(drawn.query), centroid.novelty(drawn.query))
