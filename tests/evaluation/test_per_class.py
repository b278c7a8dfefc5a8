"""Accuracy by class agrees with a loop over single queries, and with the accuracy that it takes apart."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

import reference
from nearshot.errors import FileFormatError, InputError
from nearshot.evaluation import (
    ClassAccuracy,
    FeatureSet,
    evaluate_classes,
    evaluate_many,
    prepare_features,
    sample_episodes,
)

NAMES = tuple(f"class {label}" for label in range(6))


@pytest.fixture(scope="module")
def data() -> FeatureSet:
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(6).repeat_interleave(25)[torch.randperm(150, generator=generator)]
    features = torch.randn(6, 8, generator=generator)[labels] + torch.randn(150, 8, generator=generator)
    return FeatureSet(features.double(), labels, centre=features.double().mean(0), class_names=NAMES)


@pytest.mark.parametrize("classifier", reference.ANSWERS)
def test_by_class_is_what_a_loop_over_queries_finds(classifier: Any, data: FeatureSet) -> None:
    episodes = sample_episodes(data.labels, n_way=3, n_shot=2, n_query=4, n_episodes=30)
    features, expected = prepare_features(data.features, centre=data.centre), dict[str, list[float]]()
    for support, queries in zip(episodes.support, episodes.query, strict=True):
        for way, images in enumerate(queries):
            right = [reference.ANSWERS[classifier](features[support], features[image]) == way for image in images]
            expected.setdefault(NAMES[int(data.labels[images[0]])], []).append(100 * sum(right) / len(right))
    both: list[dict[str, Any]] = [{"episodes": episodes}, {"n_way": 3, "n_shot": 2, "n_query": 4, "n_episodes": 30}]
    for given in both:
        found = evaluate_classes(data, classifier=classifier, **given)
        assert list(found) == list(NAMES)  # in the order of the labels
        for name, one in found.items():
            values = torch.tensor(expected[name], dtype=torch.float64)
            half = 1.96 * float(values.std()) / math.sqrt(len(values))
            assert (one.mean, one.interval95) == pytest.approx((float(values.mean()), half))
            assert one.n_episodes == len(values)
            assert str(one) == f"{one.mean:.2f} ± {one.interval95:.2f}"
    assert len({round(one.mean, 6) for one in found.values()}) > 1


@pytest.mark.parametrize("n_shot", [1, 5])
def test_the_classes_make_up_the_accuracy(n_shot: int, data: FeatureSet) -> None:
    episodes = sample_episodes(data.labels, n_way=3, n_episodes=250)
    many = evaluate_many(data, n_way=3, n_shots=(1, 5), classifiers=("soft",), n_episodes=250)
    (whole,) = [one for measured, one in many.items() if measured.n_shot == n_shot]
    by_class = evaluate_classes(data, n_shot=n_shot, classifier="soft", episodes=episodes)
    assert sum(one.n_episodes for one in by_class.values()) == 3 * 250
    assert sum(one.mean * one.n_episodes for one in by_class.values()) / (3 * 250) == pytest.approx(whole.mean)


def test_small_classes_and_classes_that_nobody_asks_about_are_left_out(data: FeatureSet) -> None:
    labels = torch.cat([data.labels, torch.tensor([6, 7])])
    features = torch.cat([data.features, torch.ones(2, 8)])
    with pytest.raises(InputError, match="1 image"):
        evaluate_classes(features, labels, n_episodes=10)
    assert list(evaluate_classes(features, labels, n_episodes=100, small_classes="leave out")) == list("012345")
    one = evaluate_classes(data, n_way=2, n_episodes=1)
    assert len(one) == 2
    assert all(accuracy.n_episodes == 1 and math.isnan(accuracy.interval95) for accuracy in one.values())
    assert "±" not in "".join(map(str, one.values()))


@pytest.mark.parametrize("half", [0.25, math.nan])
def test_it_can_be_kept_as_json(half: float) -> None:
    one = ClassAccuracy(50.5, half, 7)
    again = ClassAccuracy.from_dict(one.as_dict())
    assert again == one or (math.isnan(half) and math.isnan(again.interval95) and again.n_episodes == 7)
    assert (one.as_dict()["interval95"] is None) == math.isnan(half)
    for broken in ({}, {"mean": 1.0, "interval95": 1.0}, {"mean": "x", "interval95": 1.0, "n_episodes": 1}):
        with pytest.raises(FileFormatError, match="class"):
            ClassAccuracy.from_dict(broken)
