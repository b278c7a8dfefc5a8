"""Functions accept numbers and arrays from NumPy."""

import json

import numpy as np
import torch
from tests.helpers.clusters import FEATURES, LABELS

from nearshot.data import EpisodeBatches, EpisodeShape
from nearshot.evaluation import (
    EvaluationSpec,
    evaluate_episodes,
    evaluate_features,
    sample_episodes,
)


def test_an_accuracy_by_numpys_numbers_is_json() -> None:
    asked = {
        "n_shot": np.int64(5),
        "n_way": np.int64(3),
        "n_episodes": np.int64(50),
        "seed": np.int64(3),
    }
    ours = evaluate_features(FEATURES, LABELS, **asked)  # type: ignore[arg-type]
    plain = evaluate_features(FEATURES, LABELS, n_shot=5, n_way=3, n_episodes=50, seed=3)
    assert json.dumps(ours.as_dict()) == json.dumps(plain.as_dict())
    episodes = sample_episodes(LABELS, n_episodes=20, seed=np.int64(3))  # type: ignore[arg-type]
    json.dumps(evaluate_episodes(FEATURES, LABELS, episodes=episodes).as_dict())


def test_an_evaluation_by_numpys_numbers_is_a_plain_one() -> None:
    ours = EvaluationSpec(n_shot=np.int64(1), n_way=np.int64(3), seed=np.int32(2))  # type: ignore[arg-type]
    plain = EvaluationSpec(n_shot=1, n_way=3, seed=2)
    assert ours == plain
    assert ours.identity == plain.identity
    assert json.dumps(ours.as_dict()) == json.dumps(plain.as_dict())


def test_samplers_take_lists_and_arrays_and_numpys_seeds() -> None:
    shape = EpisodeShape(2, 1, 2)
    expected = EpisodeBatches(LABELS, shape, seed=1).epoch_indices()
    for labels in (LABELS.tolist(), LABELS.numpy()):
        batches = EpisodeBatches(labels, shape, seed=np.int64(1))  # type: ignore[arg-type]
        assert torch.equal(batches.epoch_indices(), expected)
