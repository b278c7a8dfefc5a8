"""Strays: images of none of the classes, which teach what to reject."""

import math

import numpy as np
import pytest
import torch
from sklearn.metrics import roc_auc_score
from tests import reference
from tests.helpers.clouds import Clouds, clouds
from tests.helpers.feature_sets import SETS, set_clouds

from nearshot import FewShotClassifier
from nearshot.errors import InputError
from nearshot.estimator.strays import MAX_REFITTED, StrayRidge
from nearshot.estimator.support import Support


def margin(
    classes: list[torch.Tensor], strays: torch.Tensor, query: torch.Tensor, weight: float = 5
) -> float:
    """Return the margin by a ridge regression with one more class, which weighs as 5 images."""
    n_images = sum(len(of_class) for of_class in classes)
    weights = []
    for of_class in classes:
        weights += [n_images / len(classes) / len(of_class)] * len(of_class)
    weights += [weight / len(strays)] * len(strays)
    rows = torch.cat([*classes, strays])
    total = sum(weights)
    mean = sum(weight * row for weight, row in zip(weights, rows, strict=True)) / total
    squares = [
        weight * float((row - mean).square().sum())
        for weight, row in zip(weights, rows, strict=True)
    ]
    scores = reference.ridge_scores(
        [*classes, strays], query, weights=weights, penalty=sum(squares) / total
    )
    return max(scores[:-1]) - scores[-1]


@pytest.mark.parametrize("sizes", [[3, 3], [4, 1, 2], [5]], ids=str)
def test_novelty_against_a_regression_with_one_more_class(sizes: list[int]) -> None:
    """The margin takes the place of the highest score of a class."""
    drawn = clouds(0, n_way=len(sizes), n_shot=max(sizes), n_query=2)
    rows = np.concatenate(
        [np.flatnonzero(drawn.labels == f"class {c}")[:n] for c, n in enumerate(sizes)]
    )
    support, labels = drawn.support[rows], drawn.labels[rows]
    strays = drawn.strangers[:3]
    model = FewShotClassifier(normalise=False, reject_rate=0.1)
    model.fit(support, labels, none_of_these=strays)
    by_distance = FewShotClassifier(normalise=False, classifier="centroid").fit(support, labels)
    classes = [torch.from_numpy(support[labels == label]) for label in model.classes_]
    queries = np.concatenate([drawn.query, drawn.strangers])
    margins = [margin(classes, torch.from_numpy(strays), torch.from_numpy(row)) for row in queries]
    expected = by_distance.novelty(queries) * np.exp(2 * (0.5 - np.array(margins)))
    np.testing.assert_allclose(model.novelty(queries), expected, rtol=1e-7)


@pytest.mark.parametrize("n_strays", [4, MAX_REFITTED])
def test_held_out_margins_against_fits_without_the_images(n_strays: int) -> None:
    """Few strays weigh as much less as images are held out. Many: in closed form, as all weigh."""
    drawn = clouds(1, n_way=3, n_shot=3, n_query=n_strays)
    codes = torch.arange(3).repeat_interleave(3)
    support = Support(torch.from_numpy(drawn.support), codes, 3)
    strays = torch.from_numpy(drawn.strangers[:n_strays])
    model = FewShotClassifier(None).fit(drawn.support, drawn.labels)
    ridge = StrayRidge(support, strays)
    images, margins = ridge.held_out_margins(model.fitted_state().groups)
    assert sorted(images.tolist()) == list(range(9))
    for image, value in zip(images.tolist(), margins.tolist(), strict=True):
        kept = [i for i in range(9) if i % 3 != image % 3]
        classes = [support.features[[i for i in kept if codes[i] == code]] for code in range(3)]
        weight = 5 * 6 / 9 if n_strays == 4 else 5
        expected = margin(classes, strays, support.features[image], weight)
        assert value == pytest.approx(expected, abs=1e-8 if n_strays == 4 else 0.05)
    held_out = ridge.held_out_stray_margins()
    if n_strays == 4:
        classes = [support.features[codes == code] for code in range(3)]
        for stray in range(4):
            others = strays[[i for i in range(4) if i != stray]]
            expected = margin(classes, others, strays[stray])
            assert float(held_out[stray]) == pytest.approx(expected)


def with_strays(drawn: Clouds, n_strays: int, reject_rate: float = 0.05) -> FewShotClassifier:
    model = FewShotClassifier(reject_rate=reject_rate)
    strays = drawn.strangers[::15][:n_strays]  # of every other class
    return model.fit(drawn.support, drawn.labels, none_of_these=strays)


def test_strays_tell_further_ones_apart_and_leave_the_classes_alone() -> None:
    aurocs: dict[int, list[float]] = {0: [], 5: []}
    for seed in range(20):
        drawn = clouds(seed, spread=1.2)
        further = np.delete(drawn.strangers, np.arange(0, 75, 15), axis=0)
        for n_strays, values in aurocs.items():
            model = with_strays(drawn, n_strays)
            novelty = model.novelty(np.concatenate([drawn.query, further]))
            values.append(float(roc_auc_score(np.arange(len(novelty)) >= 75, novelty)))
        plain = FewShotClassifier().fit(drawn.support, drawn.labels)
        np.testing.assert_array_equal(
            model.predict_proba(drawn.query), plain.predict_proba(drawn.query)
        )
    assert np.mean(aurocs[5]) > np.mean(aurocs[0]) + 0.02


def test_the_rates_that_are_estimated_are_reached() -> None:
    own = []
    strays = []
    for seed in range(40):
        drawn = clouds(seed, spread=0.8)
        taught = np.arange(len(drawn.strangers)) % 15 < 4
        model = FewShotClassifier(reject_rate=0.1)
        model.fit(drawn.support, drawn.labels, none_of_these=drawn.strangers[taught])
        estimate = model.estimate_rejection()
        assert estimate.own is not None
        assert estimate.strays is not None
        assert (estimate.n_own, estimate.n_strays) == (25, 20)
        own.append((estimate.own, (model.predict(drawn.query) == "none of these").mean()))
        answers = model.predict(drawn.strangers[~taught])
        strays.append((estimate.strays, (answers == "none of these").mean()))
    for pairs in (own, strays):
        estimated, true = np.mean(pairs, axis=0)
        assert abs(estimated - true) < 0.05
    assert np.mean(own, axis=0)[1] < 0.2


def test_one_class_with_strays() -> None:
    """Without strays nothing tells images of the class from others."""
    rejected = []
    for seed in range(20):
        drawn = clouds(seed, spread=0.8)
        model = FewShotClassifier(reject_rate=0.1)
        model.fit(drawn.support[:5], drawn.labels[:5], none_of_these=drawn.strangers[::15])
        others = np.delete(drawn.strangers, np.arange(0, 75, 15), axis=0)
        rejected.append(
            [(model.predict(rows) == "none of these").mean() for rows in (drawn.query[:15], others)]
        )
    own, others_rejected = np.mean(rejected, axis=0)
    assert own < 0.25
    assert others_rejected > 0.8


def test_strays_are_added_and_forgotten() -> None:
    drawn = clouds(3, spread=0.8)
    whole = with_strays(drawn, 4)
    parts = FewShotClassifier(reject_rate=0.05).fit(drawn.support, drawn.labels)
    without = parts.novelty(drawn.query)
    parts = with_strays(drawn, 2)
    parts.partial_fit(drawn.support[:1], drawn.labels[:1], none_of_these=drawn.strangers[::15][2:4])
    whole.partial_fit(drawn.support[:1], drawn.labels[:1])
    np.testing.assert_array_equal(parts.novelty(drawn.query), whole.novelty(drawn.query))
    assert whole.forget("none of these").classes_.tolist() == [f"class {c}" for c in range(5)]
    plain = FewShotClassifier(reject_rate=0.05).fit(drawn.support, drawn.labels)
    np.testing.assert_array_equal(plain.novelty(drawn.query), without)
    with pytest.raises(InputError, match="label"):
        plain.forget("none of these")


def test_strays_without_a_rate_reject_nothing() -> None:
    drawn = clouds(4)
    model = with_strays(drawn, 5, reject_rate=0)
    assert set(model.predict(drawn.strangers)) <= set(drawn.labels)
    assert math.isinf(model.threshold_)


def test_strays_of_another_dimension_are_an_error() -> None:
    drawn = clouds(4)
    with pytest.raises(InputError, match=r"none_of_these .*16.*got 3"):
        FewShotClassifier().fit(drawn.support, drawn.labels, none_of_these=np.ones((2, 3)))


def test_strays_beside_a_mixture() -> None:
    """They are told apart by the kernel of the mixture; probabilities do not depend on them."""
    aurocs = []
    for seed in range(20):
        drawn = set_clouds(seed, [5] * 6, n_query=8)
        is_own = drawn.labels < 3
        is_own_query = drawn.query_labels < 3
        model = FewShotClassifier(None, feature_sets=SETS, reject_rate=0.1)
        model.fit(drawn.support[is_own], drawn.labels[is_own])
        probabilities = model.predict_proba(drawn.query)
        plain = roc_auc_score(~is_own_query, model.novelty(drawn.query))
        model.fit(drawn.support[is_own], drawn.labels[is_own], none_of_these=drawn.support[~is_own])
        np.testing.assert_array_equal(model.predict_proba(drawn.query), probabilities)
        aurocs.append([plain, roc_auc_score(~is_own_query, model.novelty(drawn.query))])
    plain_mean, taught_mean = np.mean(aurocs, axis=0)
    assert taught_mean > plain_mean + 0.05
