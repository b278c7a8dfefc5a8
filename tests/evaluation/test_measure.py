"""Classifiers and accuracies against loops over single queries; and what can go wrong."""

import json
import math
from dataclasses import asdict, replace
from functools import partial
from itertools import product
from typing import Any

import numpy as np
import pytest
import torch
from tests import reference
from tests.helpers.clusters import FEATURES, LABELS
from torch import Tensor

from nearshot.errors import InputError, LeakError
from nearshot.evaluation import (
    CLASSIFIERS,
    ClassAccuracy,
    Classifier,
    Episodes,
    EvaluationSpec,
    FeatureSet,
    Protocol,
    compare,
    evaluate_classes,
    evaluate_episodes,
    evaluate_features,
    evaluate_mahalanobis,
    evaluate_many,
    knn,
    prepare_features,
    sample_episodes,
    score_predictions,
)
from nearshot.losses import nca_loss


def percent_right(name: str, features: Tensor, episodes: Episodes) -> Tensor:
    """The accuracy of each way of each episode, (episode, way), by a loop over queries."""
    answer = reference.ANSWERS[name]
    percents = []
    for support, queries in zip(episodes.support, episodes.query, strict=True):
        of_episode = []
        for way, images in enumerate(queries):
            answers = [answer(features[support], features[image]) for image in images]
            of_episode.append(100 * answers.count(way) / len(answers))
        percents.append(of_episode)
    return torch.tensor(percents, dtype=torch.float64)


@pytest.mark.parametrize("name", CLASSIFIERS)
@pytest.mark.parametrize("normalise", [True, False])
@pytest.mark.parametrize("centred", [True, False])
def test_the_accuracy_is_that_of_a_loop_over_the_same_episodes(
    name: Any, normalise: bool, centred: bool
) -> None:
    centre = FEATURES.mean(0) + 0.3 if centred else None
    shape: dict[str, Any] = {"n_way": 4, "n_shot": 3, "n_query": 2, "n_episodes": 15}
    accuracy = evaluate_features(
        FEATURES, LABELS, classifier=name, centre=centre, normalise=normalise, **shape
    )
    features = FEATURES if centre is None else FEATURES - centre
    features = features / features.norm(dim=1, keepdim=True) if normalise else features
    expected = percent_right(name, features, sample_episodes(LABELS, **shape)).mean(1)
    torch.testing.assert_close(accuracy.per_episode, expected)
    protocol = accuracy.protocol
    assert (protocol.centred, protocol.normalised, protocol.classifier) == (
        centred,
        normalise,
        name,
    )


def test_many_at_once_are_the_same_as_one_by_one() -> None:
    centre = FEATURES.mean(0) + 0.3
    specs = [
        EvaluationSpec(
            n_shot=n_shot,
            n_episodes=300,
            seed=seed,
            classifier=classifier,
            centred=centred,
            normalise=normalise,
        )
        for seed, n_shot, classifier, centred, normalise in product(
            (3, 4), (1, 5), ("centroid", "soft", "ridge"), (False, True), (False, True)
        )
    ]
    accuracies = evaluate_many(FEATURES, LABELS, specs=specs, centre=centre, split="val")
    for spec, accuracy in zip(specs, accuracies, strict=True):
        alone = evaluate_features(
            FEATURES,
            LABELS,
            n_shot=spec.n_shot,
            n_episodes=300,
            seed=spec.seed,
            classifier=spec.classifier,
            centre=centre,
            centred=spec.centred,
            normalise=spec.normalise,
            split="val",
        )
        assert torch.equal(accuracy.per_episode, alone.per_episode)
        assert accuracy.protocol == alone.protocol


def test_by_default_the_protocol_is_the_papers() -> None:
    """Section 3.1: 5-way, 1 and 5 shots, 15 queries, 10,000 episodes."""
    alone = evaluate_features(FEATURES, LABELS).protocol
    assert alone == Protocol(
        5, 5, 15, 10_000, 0, alone.episodes, "centroid", centred=False, normalised=True
    )
    (one_shot,) = evaluate_many(
        FEATURES, LABELS, specs=[EvaluationSpec(n_shot=1)], centre=FEATURES[0] / 2
    )
    assert one_shot.protocol == replace(alone, n_shot=1, centred=True)
    assert alone.episodes == sample_episodes(LABELS).digest


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_features_of_any_float_type(dtype: torch.dtype) -> None:
    low = FEATURES.to(dtype)
    accuracy = evaluate_features(low, LABELS, n_episodes=200)
    assert accuracy.mean == pytest.approx(
        evaluate_features(low.double(), LABELS, n_episodes=200).mean, abs=0.05
    )
    assert prepare_features(low).dtype == (
        torch.float64 if dtype == torch.float64 else torch.float32
    )


def nearest(support: Tensor, query: Tensor) -> Tensor:
    return CLASSIFIERS["centroid"](support, query)


def test_a_users_own_classifier() -> None:
    own = evaluate_features(
        FEATURES, LABELS, n_shot=3, n_episodes=100, classifier=nearest, inductive=True
    )
    ours = evaluate_features(FEATURES, LABELS, n_shot=3, n_episodes=100)
    assert torch.equal(own.per_episode, ours.per_episode)
    assert (own.protocol.classifier, own.protocol.inductive) == ("nearest", True)
    with pytest.raises(InputError, match="inductive .*'nearest'"):
        evaluate_features(FEATURES, LABELS, n_episodes=100, classifier=nearest)
    specs = [
        EvaluationSpec(n_episodes=100, classifier=classifier) for classifier in (knn(k=3), nearest)
    ]
    three, _ = evaluate_many(FEATURES, LABELS, specs=specs, inductive=False)
    assert (three.protocol.classifier, three.protocol.inductive) == ("knn(k=3)", True)
    alone = evaluate_features(FEATURES, LABELS, n_episodes=100, classifier=knn(k=3))
    assert torch.equal(alone.per_episode, three.per_episode)


def test_a_users_classifier_may_look_change_and_learn() -> None:
    """A transductive one is marked as such; its input is its own; and it may use gradients."""

    def greedy(support: Tensor, query: Tensor) -> Tensor:
        query -= query.mean(1, keepdim=True)
        support *= -1
        with torch.enable_grad():
            weight = torch.ones((), dtype=query.dtype, requires_grad=True)
            (weight * query).sum().backward()
        return nearest(support, query)

    specs = [
        EvaluationSpec(n_episodes=50, classifier=classifier)
        for classifier in (greedy, nearest, "centroid")
    ]
    theirs, another, ours = evaluate_many(FEATURES, LABELS, specs=specs, inductive=False)
    assert torch.equal(another.per_episode, ours.per_episode)
    assert (theirs.protocol.inductive, ours.protocol.inductive) == (False, True)


def by_all_queries(support: Tensor, query: Tensor) -> Tensor:
    """Nearest centroid, of queries from which their mean is subtracted."""
    return nearest(
        support - support.mean((1, 2), keepdim=True), query - query.mean(1, keepdim=True)
    )


def spread_scores(similarities: Tensor, class_sizes: Tensor) -> Tensor:
    return similarities - similarities.mean(-2, keepdim=True)


@pytest.mark.parametrize(
    "classifier", [by_all_queries, Classifier("spread", spread_scores, prototypes=True)]
)
def test_a_classifier_that_looks_at_all_queries_is_recorded_as_such(classifier: Any) -> None:
    """Whatever was said of it."""
    settings: dict[str, Any] = {"n_shot": 2, "n_query": 4, "n_episodes": 20, "inductive": True}
    with pytest.warns(UserWarning, match="without the other queries"):
        accuracy = evaluate_features(FEATURES, LABELS, classifier=classifier, **settings)
    assert not accuracy.protocol.inductive
    with pytest.warns(UserWarning, match="without the other queries"):
        adapted = evaluate_mahalanobis(
            FEATURES, LABELS, loss=nca_loss, classifier=classifier, **settings
        )
    assert not adapted.protocol.inductive


def test_numpy_features_are_measured_as_tensors_are() -> None:
    settings: dict[str, Any] = {"n_shot": 2, "n_query": 4, "n_episodes": 20}
    expected = evaluate_features(FEATURES, LABELS, centre=FEATURES.mean(0), **settings)
    accuracy = evaluate_features(
        FEATURES.numpy(), LABELS.numpy(), centre=FEATURES.mean(0).numpy(), **settings
    )
    assert torch.equal(accuracy.per_episode, expected.per_episode)
    of_set = FeatureSet(FEATURES.numpy(), LABELS.numpy())  # type: ignore[arg-type]
    assert torch.equal(of_set.features, FEATURES)
    with pytest.raises(InputError, match="labels .*<U"):
        evaluate_features(FEATURES, np.array(["cat"] * len(LABELS)), **settings)


def test_a_single_spec_is_a_list_of_one() -> None:
    spec = EvaluationSpec(n_episodes=10)
    (alone,) = evaluate_many(FEATURES, LABELS, specs=spec)
    (listed,) = evaluate_many(FEATURES, LABELS, specs=[spec])
    assert torch.equal(alone.per_episode, listed.per_episode)


def test_a_users_classifier_that_returns_nonsense() -> None:
    wrong: dict[str, Any] = {
        "NaN": lambda s, q: nearest(s, q) * torch.nan,
        r"\(\d+, 75, 6\)": lambda s, q: q,
    }
    for message, broken in wrong.items():
        with pytest.raises(InputError, match=f"'<lambda>' .*{message}"):
            evaluate_features(FEATURES, LABELS, n_episodes=10, classifier=broken, inductive=True)


def test_a_feature_set_brings_all_it_knows() -> None:
    names = tuple(f"class {i}" for i in range(8))
    data = FeatureSet(FEATURES, LABELS, FEATURES.mean(0), names, "val", "0123", torch.arange(200))
    accuracy = evaluate_features(data, n_episodes=100, training_classes=["other"])
    assert accuracy.protocol.centred
    assert (accuracy.protocol.split, accuracy.protocol.fingerprint) == ("val", "0123")
    plain = evaluate_features(FEATURES, LABELS, n_episodes=100, centre=FEATURES.mean(0))
    assert torch.equal(accuracy.per_episode, plain.per_episode)
    # Arguments win over the set.
    other = evaluate_features(data, LABELS.flip(0), n_episodes=100, centre=FEATURES[0] / 2)
    alone = evaluate_features(FEATURES, LABELS.flip(0), n_episodes=100, centre=FEATURES[0] / 2)
    assert torch.equal(other.per_episode, alone.per_episode)
    with pytest.raises(LeakError, match="1 .*'class 3'"):
        evaluate_features(data, n_episodes=100, training_classes=["class 3", "other"])
    with pytest.raises(InputError, match="training_classes .*class_names"):
        evaluate_features(FEATURES, LABELS, training_classes=["a"])
    with pytest.raises(InputError, match="Class 'class 0' has 25 images"):
        evaluate_features(data, n_query=30)
    content = torch.arange(200)
    content[1] = content[0]
    for evaluate in (evaluate_features, partial(evaluate_mahalanobis, loss=nca_loss)):
        with pytest.raises(LeakError, match="query.*support"):
            evaluate(replace(data, content=content), n_episodes=500)


def test_results_of_every_kind_can_be_compared_in_pairs() -> None:
    """Drawn, given or scored, one shot or five: the same questions are the same."""
    episodes = sample_episodes(LABELS, n_episodes=100)
    drawn = evaluate_features(FEATURES, LABELS, n_episodes=100, normalise=False)
    given = evaluate_episodes(FEATURES, LABELS, episodes=episodes, normalise=False)
    answers = CLASSIFIERS["centroid"](
        FEATURES[episodes.support], FEATURES[episodes.query].flatten(1, 2)
    ).argmax(2)
    predictions = answers.view(100, 5, 15)
    scored = score_predictions(predictions, episodes, classifier="theirs", inductive=False)
    assert compare(drawn, given).ties == 100
    assert compare(drawn, scored).ties == 100
    tuned = score_predictions(
        predictions,
        episodes,
        classifier="theirs",
        inductive=False,
        adapted="fine-tuned",
        split="test",
        fingerprint="0123",
    )
    assert tuned.protocol == Protocol(
        n_way=5,
        n_shot=5,
        n_query=15,
        n_episodes=100,
        seed=0,
        episodes=episodes.digest,
        classifier="theirs",
        centred=None,
        normalised=None,
        adapted="fine-tuned",
        inductive=False,
        split="test",
        fingerprint="0123",
    )
    one_shot = evaluate_features(FEATURES, LABELS, n_shot=1, n_episodes=100, normalise=False)
    assert compare(drawn, one_shot).difference > 0
    first_shots = Episodes(episodes.images[:, :, :16], n_query=15)
    fewer = evaluate_episodes(FEATURES, LABELS, episodes=first_shots, normalise=False)
    assert torch.equal(fewer.per_episode, one_shot.per_episode)
    for wrong in (LABELS[episodes.query], predictions + 1, predictions - 1, answers):
        with pytest.raises(InputError, match="predictions"):
            score_predictions(wrong, episodes, classifier="theirs", inductive=True)


def test_given_episodes_determine_the_protocol_and_must_fit_the_labels() -> None:
    episodes = sample_episodes(LABELS, n_way=3, n_shot=2, n_query=4, n_episodes=50, seed=9)
    given = {"n_way": 3, "n_shot": 2, "n_query": 4, "n_episodes": 50, "seed": 9}.items()
    assert asdict(evaluate_episodes(FEATURES, LABELS, episodes=episodes).protocol).items() >= given
    with pytest.raises(InputError, match="more than one class"):
        evaluate_episodes(FEATURES, LABELS.roll(1), episodes=episodes)


@pytest.mark.parametrize(
    ("features", "labels", "keywords", "message"),
    [
        (FEATURES, LABELS[:-1], {}, r"labels .*\(200,\).*\(199,\)"),
        (FEATURES, None, {}, "labels"),
        (FEATURES.index_fill(0, torch.tensor([7]), torch.nan), LABELS, {}, "image 7 .*NaN"),
        (FEATURES.index_fill(0, torch.tensor([4]), 0.0), LABELS, {}, "image 4 is zero"),
        (FEATURES.float() * 1e30, LABELS, {}, "image 0 is too large"),
        (FEATURES, LABELS, {"centre": FEATURES[3]}, "image 3 is zero .*centre"),
        (FEATURES, LABELS, {"centre": torch.zeros(3)}, r"centre .*\(6,\).*\(3,\)"),
        (FEATURES, LABELS, {"centre": torch.full((6,), torch.nan)}, "centre .*NaN"),
        (FEATURES, LABELS, {"centred": True}, "centre"),
        (FEATURES, LABELS, {"classifier": "svm"}, "'svm'; .*'centroid', 'soft', 'knn'"),
        (FEATURES, LABELS.float(), {}, "labels must be integers"),
        (FEATURES.long(), LABELS, {}, "features .*int64"),
        (FEATURES[:, :, None], LABELS, {}, r"features .*\(200, 6, 1\)"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_bad_input_is_refused(
    features: Tensor, labels: Tensor | None, keywords: dict[str, Any], message: str
) -> None:
    with pytest.raises(InputError, match=message):
        evaluate_features(features, labels, **{"n_episodes": 10, **keywords})


NAMES = tuple(f"class {label}" for label in range(8))


@pytest.mark.parametrize("classifier", reference.ANSWERS)
def test_by_class_is_what_a_loop_over_queries_finds(classifier: Any) -> None:
    shape: dict[str, Any] = {"n_way": 3, "n_shot": 2, "n_query": 4, "n_episodes": 30}
    episodes = sample_episodes(LABELS, **shape)
    percent = percent_right(classifier, prepare_features(FEATURES), episodes)
    classes = LABELS[episodes.query[:, :, 0]]
    accuracies = evaluate_classes(
        FeatureSet(FEATURES, LABELS, class_names=NAMES), classifier=classifier, **shape
    )
    assert list(accuracies) == list(NAMES)  # in the order of the labels
    for name, accuracy in accuracies.items():
        values = percent[classes == NAMES.index(name)]
        half = 1.96 * float(values.std()) / math.sqrt(len(values))
        assert (accuracy.mean, accuracy.interval95) == pytest.approx((float(values.mean()), half))
        assert accuracy.n_episodes == len(values)
    assert len({round(accuracy.mean, 6) for accuracy in accuracies.values()}) > 1


@pytest.mark.parametrize("interval95", [0.25, math.nan])
def test_the_accuracy_of_a_class_comes_back_from_json(interval95: float) -> None:
    accuracy = ClassAccuracy(50.5, interval95, 7)
    again = ClassAccuracy.from_dict(json.loads(json.dumps(accuracy.as_dict(), allow_nan=False)))
    assert (again.mean, again.n_episodes) == (50.5, 7)
    assert again.interval95 == pytest.approx(interval95, nan_ok=True)
