"""Accuracy by class agrees with the accuracy that it takes apart."""

from __future__ import annotations

import inspect

import pytest
import torch

from nearshot.evaluation import evaluate_features, prepare_features, sample_episodes
from nearshot.experiments.by_class import accuracy_by_class, measure_classes

NAMES = tuple(f"class {label}" for label in range(6))


def _data() -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(6).repeat_interleave(25)[torch.randperm(150, generator=generator)]
    features = torch.randn(6, 8, generator=generator)[labels] + torch.randn(150, 8, generator=generator)
    return prepare_features(features), labels


def test_the_classes_make_up_the_accuracy() -> None:
    features, labels = _data()
    whole = evaluate_features(features, labels, n_way=3, n_shot=2, n_query=9, n_episodes=250, seed=3)
    by_class = accuracy_by_class(features, labels, NAMES, n_way=3, n_shot=2, n_query=9, n_episodes=250, seed=3)
    episodes = sample_episodes(labels, n_way=3, n_shot=2, n_query=9, n_episodes=250, seed=3)
    weights = labels[episodes.query[:, :, 0]].flatten().bincount(minlength=6)
    mean = sum(by_class[name] * int(weight) for name, weight in zip(NAMES, weights, strict=True)) / int(weights.sum())
    assert mean == pytest.approx(whole.mean)
    assert len(set(by_class.values())) > 1


def test_a_class_on_top_of_another_is_the_one_that_suffers() -> None:
    features, labels = _data()
    features = torch.eye(6)[labels]
    features[labels == 5] = features[labels == 4][0]
    by_class = accuracy_by_class(features, labels, NAMES, n_episodes=200)
    assert all(by_class[name] == 100 for name in NAMES[:4])
    assert by_class["class 4"] < 100
    assert by_class["class 5"] < 100


def test_by_default_it_is_over_the_episodes_of_the_accuracy() -> None:
    whole, of_classes, of_splits = (
        inspect.signature(function).parameters for function in (evaluate_features, accuracy_by_class, measure_classes)
    )
    for name in ("n_way", "n_query", "n_episodes", "seed"):
        assert of_classes[name].default == whole[name].default
    for name in ("n_way", "n_episodes"):
        assert of_splits[name].default == whole[name].default
