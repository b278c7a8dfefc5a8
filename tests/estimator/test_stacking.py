"""The mixture of ridge regressions on several feature sets."""

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests import reference
from tests.helpers.feature_sets import SETS, SetClouds, set_clouds

from nearshot import FewShotClassifier
from nearshot.estimator import stacking
from nearshot.estimator.calibration import SHARPEST, SOFTEST
from nearshot.estimator.leave_one_out import leave_one_out_rounds
from nearshot.estimator.stacking import stacking_weights
from nearshot.estimator.suggestions import held_out_probabilities

EVEN = [4, 4, 4]


def fitted(
    drawn: SetClouds, classifier: str = "auto", reject_rate: float = 0.0
) -> FewShotClassifier:
    model = FewShotClassifier(
        None, feature_sets=SETS, classifier=classifier, reject_rate=reject_rate
    )
    return model.fit(drawn.support, drawn.labels)


def expected(model: FewShotClassifier, drawn: SetClouds) -> reference.Stacked:
    """Return what a loop says that leaves each block out and fits again."""
    state = model.fitted_state()
    sets: list[torch.Tensor] = []
    queries: list[torch.Tensor] = []
    for feature_set in SETS.sets:
        for rows, features in ((sets, drawn.support), (queries, drawn.query)):
            of_set = torch.from_numpy(features[:, feature_set.columns])
            rows.append(of_set.sqrt() if feature_set.is_rooted else of_set)
    names = [feature_set.name for feature_set in SETS.sets]
    candidates = [[names.index(name) for name in candidate] for candidate in SETS.candidates]
    rounds = [
        (kept.tolist(), tested.tolist())
        for kept, tested in leave_one_out_rounds(state.groups)
        if len(tested) > 0
    ]
    step = math.log(SOFTEST / SHARPEST) / 32
    temperatures = [SOFTEST * math.exp(-step * number) for number in range(60)]
    return reference.stacked_ridges(
        sets, drawn.labels.tolist(), queries, candidates, rounds, temperatures
    )


@pytest.mark.parametrize("sizes", [[3, 3, 3], [4, 2, 1], [2, 2], [1, 5], [2, 1, 1, 1]], ids=str)
def test_the_mixture_against_a_loop_that_fits_again(sizes: list[int]) -> None:
    drawn = set_clouds(1, sizes, n_query=1)
    model = fitted(drawn)
    slow = expected(model, drawn)
    mixture = model.fitted_state().mixture
    assert mixture is not None
    weights = np.zeros(len(SETS.candidates))
    weights[list(mixture.candidates)] = mixture.weights
    # The loop has more sharp temperatures, of hardly any weight.
    np.testing.assert_allclose(weights, slow.weights, atol=1e-3)
    np.testing.assert_allclose(model.predict_proba(drawn.query), slow.answers, atol=1e-3)
    images, held_out = held_out_probabilities(model)
    assert sorted(images) == [image for image, code in enumerate(drawn.labels) if sizes[code] > 1]
    for image, probabilities in zip(images.tolist(), held_out, strict=True):
        if image in slow.held_out:
            np.testing.assert_allclose(probabilities, slow.held_out[image], atol=1e-3)


@pytest.mark.slow
def test_a_hundred_classes_against_a_loop_that_fits_again() -> None:
    drawn = set_clouds(2, [2] * 100, n_query=1)
    drawn = drawn._replace(query=drawn.query[:3])
    model = fitted(drawn)
    slow = expected(model, drawn)
    np.testing.assert_allclose(model.predict_proba(drawn.query), slow.answers, atol=1e-3)


@pytest.mark.parametrize(
    ("sizes", "classifier"), [([1, 1, 1], "auto"), ([5], "auto"), (EVEN, "ridge"), (EVEN, "soft")]
)
def test_where_nothing_can_be_weighed_the_plain_features_answer(
    sizes: list[int], classifier: str
) -> None:
    """To the last bit."""
    drawn = set_clouds(3, sizes)
    model = fitted(drawn, classifier)
    plain = FewShotClassifier(None, classifier=classifier)
    plain.fit(drawn.support[:, :6], drawn.labels)
    assert model.fitted_state().mixture is None
    np.testing.assert_array_equal(
        model.predict_proba(drawn.query), plain.predict_proba(drawn.query[:, :6])
    )
    np.testing.assert_array_equal(model.novelty(drawn.query), plain.novelty(drawn.query[:, :6]))


def test_many_images_are_answered_by_the_plain_features(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn = set_clouds(3, EVEN)
    assert fitted(drawn).fitted_state().mixture is not None
    monkeypatch.setattr("nearshot.estimator.state.MAX_STACKED", 11)
    assert fitted(drawn).fitted_state().mixture is None


def test_the_mixture_finds_the_features_that_tell_classes_apart() -> None:
    accuracies = []
    plain_accuracies = []
    for seed in range(20):
        drawn = set_clouds(seed, [5] * 5, n_query=10)
        accuracies.append(fitted(drawn).score(drawn.query, drawn.query_labels))
        plain = fitted(drawn, "ridge")
        plain_accuracies.append(plain.score(drawn.query, drawn.query_labels))
    assert np.mean(accuracies) > np.mean(plain_accuracies) + 0.15


def test_the_estimate_is_right_on_average() -> None:
    differences = []
    for seed in range(40):
        drawn = set_clouds(seed, [3] * 4, n_query=30)
        model = fitted(drawn)
        truth = model.score(drawn.query, drawn.query_labels)
        differences.append(model.estimate_accuracy().mean - truth)
    assert abs(np.mean(differences)) < 0.05


@pytest.mark.parametrize("sizes", [[60, 60, 60], [100, 20, 30]], ids=str)
def test_many_images(sizes: list[int]) -> None:
    """Kernels have roots, and are left out in closed form, or weighed anew."""
    drawn = set_clouds(5, sizes, n_query=30)
    model = fitted(drawn)
    images, held_out = held_out_probabilities(model)
    assert sorted(images) == list(range(sum(sizes)))
    held_out_accuracy = (held_out.argmax(1) == drawn.labels[images]).mean()
    assert model.score(drawn.query, drawn.query_labels) == pytest.approx(held_out_accuracy, abs=0.1)


def test_partial_fits_equal_one_fit() -> None:
    drawn = set_clouds(7, [4, 3, 5])
    whole = fitted(drawn, reject_rate=0.1)
    parts = FewShotClassifier(None, feature_sets=SETS, reject_rate=0.1)
    for rows in np.array_split(np.arange(12), 3):
        parts.partial_fit(drawn.support[rows], drawn.labels[rows])
    np.testing.assert_array_equal(
        parts.predict_proba(drawn.query), whole.predict_proba(drawn.query)
    )
    np.testing.assert_array_equal(parts.predict(drawn.query), whole.predict(drawn.query))
    one_class_more = FewShotClassifier(None, feature_sets=SETS)
    one_class_more.fit(np.concatenate([drawn.support, drawn.query[:2]]), [*drawn.labels, 9, 9])
    one_class_more.forget(9)
    np.testing.assert_array_equal(
        one_class_more.predict_proba(drawn.query), fitted(drawn).predict_proba(drawn.query)
    )


def test_answers_agree_with_probabilities() -> None:
    drawn = set_clouds(8, [4, 2, 5], n_query=20)
    model = fitted(drawn)
    probabilities = model.predict_proba(drawn.query)
    np.testing.assert_array_equal(model.predict(drawn.query), probabilities.argmax(1))
    np.testing.assert_allclose(probabilities.sum(1), 1)
    for explanation, row in zip(model.explain(drawn.query), probabilities, strict=True):
        assert list(explanation.probabilities.values()) == sorted(row, reverse=True)


def test_images_are_compared_by_the_kernel_of_the_mixture() -> None:
    """The squared distance is the weighted mean of those of the candidates."""
    drawn = set_clouds(9, EVEN)
    model = fitted(drawn)
    state = model.fitted_state()
    mixture = state.mixture
    assert mixture is not None

    def prepare(rows: np.ndarray, columns: slice, *, is_rooted: bool) -> np.ndarray:
        of_set = np.sqrt(rows[:, columns]) if is_rooted else rows[:, columns]
        support = drawn.support[:, columns]
        support = np.sqrt(support) if is_rooted else support
        mean = (support / np.linalg.norm(support, axis=1, keepdims=True)).mean(0)
        centred = of_set / np.linalg.norm(of_set, axis=1, keepdims=True) - mean
        return np.asarray(centred / np.linalg.norm(centred, axis=1, keepdims=True))

    squares = np.zeros((len(drawn.query), len(drawn.support)))
    for candidate, weight in zip(mixture.candidates, mixture.weights, strict=True):
        names = SETS.candidates[candidate]
        for name in names:
            options = SETS[name].columns, SETS[name].is_rooted
            query = prepare(drawn.query, options[0], is_rooted=options[1])
            support = prepare(drawn.support, options[0], is_rooted=options[1])
            differences = query[:, None] - support
            squares += weight / len(names) * np.square(differences).sum(2)
    distances, indices = model.kneighbors(drawn.query, 12)
    np.testing.assert_allclose(
        distances, np.sqrt(np.take_along_axis(squares, indices, axis=1)), atol=1e-7
    )
    assert (np.diff(distances, axis=1) >= 0).all()


def test_a_saved_mixture_answers_the_same(tmp_path: Path) -> None:
    drawn = set_clouds(10, [3, 4, 5])
    model = FewShotClassifier(None, feature_sets=SETS, reject_rate=0.1)
    model.fit(drawn.support, drawn.labels, none_of_these=drawn.query[:3])
    model.save(tmp_path / "model.safetensors")
    loaded = FewShotClassifier.load(tmp_path / "model.safetensors")
    for method in ("predict", "predict_proba", "novelty"):
        np.testing.assert_array_equal(
            getattr(loaded, method)(drawn.query), getattr(model, method)(drawn.query)
        )
    assert loaded.estimate_accuracy() == model.estimate_accuracy()
    assert loaded.estimate_rejection() == model.estimate_rejection()
    loaded.partial_fit(drawn.query[:2], [0, 0])
    model.partial_fit(drawn.query[:2], [0, 0])
    np.testing.assert_array_equal(
        loaded.predict_proba(drawn.query), model.predict_proba(drawn.query)
    )


@given(st.integers(0, 1000), st.integers(1, 6), st.integers(1, 5))
@settings(max_examples=30)
def test_weights_are_a_fixed_point_or_near_it(seed: int, n_images: int, n_candidates: int) -> None:
    """They add up to 1, and a candidate that is better for every image never weighs less."""
    generator = torch.Generator().manual_seed(seed)
    likelihoods = torch.rand(n_candidates, n_images, generator=generator, dtype=torch.float64)
    likelihoods = likelihoods.clamp(min=0.01)
    likelihoods = torch.cat([likelihoods, likelihoods[-1:] * 0.5])
    votes = torch.ones(n_images, dtype=torch.float64)
    weights = stacking_weights(likelihoods, votes)
    assert sum(weights) == pytest.approx(1)
    assert weights[-1] <= weights[-2]
    assert weights[0] >= stacking.PRIOR_OF_PLAIN / (n_images + 1) - 1e-9


def test_copies_share_a_vote() -> None:
    """An image given twice in one group says as much as once."""
    likelihoods = torch.tensor([[0.2, 0.5, 0.9], [0.7, 0.4, 0.3]], dtype=torch.float64)
    doubled = likelihoods[:, [0, 1, 2, 2]]
    votes = torch.tensor([1, 1, 0.5, 0.5], dtype=torch.float64)
    assert stacking_weights(doubled, votes) == pytest.approx(
        stacking_weights(likelihoods, torch.ones(3, dtype=torch.float64))
    )
