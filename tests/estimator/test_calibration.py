"""Probabilities: the posterior of temperatures against a loop, and how honest the average is."""

import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests import reference
from tests.helpers.clouds import clouds

from nearshot import FewShotClassifier
from nearshot.estimator.calibration import (
    GRID_STEPS,
    SHARPEST,
    SOFTEST,
    Temperatures,
    class_probabilities,
    held_out_probabilities,
    weigh_temperatures,
)
from nearshot.evaluation import CLASSIFIERS

STEP = (SHARPEST / SOFTEST) ** (1 / GRID_STEPS)
GRID = [SOFTEST * STEP**number for number in range(80)]  # far beyond where it has weight


def draw_scores(n_images: int, n_classes: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Draw scores, (image, class), and classes that follow them at the typical temperature."""
    generator = torch.Generator().manual_seed(seed)
    scores = 2 * torch.randn(n_images, n_classes, generator=generator, dtype=torch.float64)
    codes = scores.softmax(1).multinomial(1, generator=generator)[:, 0]
    return scores, codes


@given(st.integers(1, 12), st.integers(2, 5), st.integers(0, 1000))
def test_the_average_is_that_of_a_loop(n_images: int, n_classes: int, seed: int) -> None:
    scores, codes = draw_scores(n_images, n_classes, seed)
    query = draw_scores(1, n_classes, seed + 1)[0]
    temperatures = weigh_temperatures(scores, codes)
    assert math.fsum(temperatures.weights) == pytest.approx(1)
    expected = reference.temperature_average(
        scores.tolist(), codes.tolist(), query[0].tolist(), GRID
    )
    probabilities = class_probabilities(query, temperatures)[0]
    np.testing.assert_allclose(probabilities.numpy(), expected, atol=2e-3)


def test_a_single_temperature_is_a_softmax() -> None:
    scores = draw_scores(4, 3, 0)[0]
    probabilities = class_probabilities(scores, Temperatures.single(0.3))
    torch.testing.assert_close(probabilities, (scores / 0.3).softmax(1), rtol=0, atol=0)


def test_many_images_find_the_temperature_that_made_them() -> None:
    generator = torch.Generator().manual_seed(0)
    scores = torch.randn(3000, 5, generator=generator, dtype=torch.float64)
    codes = (scores / 0.7).softmax(1).multinomial(1, generator=generator)[:, 0]
    assert weigh_temperatures(scores, codes).geometric_mean == pytest.approx(0.7, rel=0.1)


def test_the_grid_goes_on_where_sharp_temperatures_are_right() -> None:
    """As with very many classes, whose held-out scores are all right."""
    scores = 0.01 * torch.eye(50, dtype=torch.float64).repeat(20, 1)
    codes = torch.arange(50).repeat(20)
    temperatures = weigh_temperatures(scores, codes)
    assert min(temperatures.values) < SHARPEST / 10
    assert float(class_probabilities(scores[:1], temperatures)[0, 0]) > 0.9


def test_without_held_out_images_the_typical_temperature_is_the_answer() -> None:
    nothing = torch.zeros(0, 3, dtype=torch.float64)
    temperatures = weigh_temperatures(nothing, torch.zeros(0, dtype=torch.int64))
    assert temperatures == Temperatures.single(1.0)


def test_no_image_has_a_part_in_its_own_answer() -> None:
    """Another label for an image changes the answers of other rounds, and not those of its own."""
    scores, codes = draw_scores(12, 3, 5)
    rounds = torch.arange(4).repeat_interleave(3)
    other_codes = codes.clone()
    other_codes[0] = (codes[0] + 1) % 3
    before = held_out_probabilities(scores, codes, rounds)
    after = held_out_probabilities(scores, other_codes, rounds)
    torch.testing.assert_close(before[:3], after[:3])
    assert not torch.allclose(before[3:], after[3:])


def test_held_out_answers_of_a_round_are_those_weighted_by_the_other_rounds() -> None:
    scores, codes = draw_scores(12, 3, 5)
    rounds = torch.arange(4).repeat_interleave(3)
    temperatures = weigh_temperatures(scores[3:], codes[3:])
    expected = class_probabilities(scores[:3], temperatures)
    answers = held_out_probabilities(scores, codes, rounds)[:3]
    torch.testing.assert_close(answers, expected, atol=1e-3, rtol=0)


@pytest.mark.parametrize(("n_shot", "most"), [(2, 0.73), (10, 0.61)])
def test_labels_at_random_are_not_believed(n_shot: int, most: float) -> None:
    """Of two classes with the same images: a coin toss must not be sure."""
    stated = []
    for seed in range(40):
        generator = np.random.default_rng(seed)
        features = generator.normal(size=(2 * n_shot + 30, 60))
        labels = np.arange(2).repeat(n_shot)
        model = FewShotClassifier().fit(features[: 2 * n_shot], labels)
        stated.append(model.predict_proba(features[2 * n_shot :]).max(1).mean())
    assert 0.5 <= np.mean(stated) <= most


def test_the_temperature_attribute_is_the_geometric_mean() -> None:
    drawn = clouds(0)
    model = FewShotClassifier().fit(drawn.support, drawn.labels)
    temperatures = model.fitted_state().temperatures
    logs = np.log(temperatures.values)
    assert model.temperature_ == pytest.approx(
        math.exp(np.average(logs, weights=temperatures.weights))
    )
    single = FewShotClassifier(temperature=0.1).fit(drawn.support, drawn.labels)
    assert single.fitted_state().temperatures == Temperatures.single(0.1)


@pytest.mark.parametrize("classifier", CLASSIFIERS)
@pytest.mark.parametrize(
    ("n_shot", "spread"),
    [
        (1, 0.7),
        (5, 1.4),
        (2, 1.0),
        (10, 1.4),
    ],
)
def test_probabilities_match_accuracies(classifier: Any, n_shot: int, spread: float) -> None:
    """Over many support sets, the mean probability of the answer is the mean accuracy."""
    confidences = []
    accuracies = []
    for seed in range(60):
        drawn = clouds(seed, n_shot=n_shot, spread=spread)
        model = FewShotClassifier(classifier=classifier).fit(drawn.support, drawn.labels)
        probabilities = model.predict_proba(drawn.query)
        np.testing.assert_allclose(probabilities.sum(1), 1)
        confidences.append(probabilities.max(1).mean())
        accuracies.append(model.score(drawn.query, drawn.query_labels))
    assert 0.5 < np.mean(accuracies) < 0.99
    tolerance = 0.12 if classifier == "knn" else 0.06  # two votes say little
    assert np.mean(confidences) == pytest.approx(np.mean(accuracies), abs=tolerance)
