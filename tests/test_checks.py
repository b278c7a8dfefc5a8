"""Numbers and arrays from NumPy are accepted."""

import json
from dataclasses import asdict, replace

import numpy as np
import torch
from tests.helpers.clusters import FEATURES, LABELS

from nearshot.data import EpisodeBatches, EpisodeShape
from nearshot.evaluation import evaluate_features, evaluate_many, sample_episodes
from nearshot.runs.evaluate import Request


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
    many = evaluate_many(FEATURES, LABELS, n_shots=np.array([1, 5]), n_way=3, n_episodes=20)  # type: ignore[arg-type]
    assert [key.n_shot for key in many] == [1, 1, 1, 5, 5, 5]
    json.dumps([one.as_dict() for one in many.values()])
    episodes = replace(sample_episodes(LABELS, n_episodes=20), seed=np.int64(3))  # type: ignore[arg-type]
    json.dumps(evaluate_features(FEATURES, LABELS, episodes=episodes).as_dict())


def test_a_request_by_numpys_numbers_is_a_plain_one() -> None:
    ours = Request(shots=np.array([1, 5]), n_way=np.int64(3), seed=np.int32(2), layers=[3, 4])  # type: ignore[arg-type]
    plain = Request(shots=(1, 5), n_way=3, seed=2, layers=(3, 4))
    assert ours == plain
    assert json.dumps(asdict(ours)) == json.dumps(asdict(plain))


def test_samplers_take_lists_and_arrays_and_numpys_seeds() -> None:
    shape = EpisodeShape(2, 1, 2)
    expected = EpisodeBatches(LABELS, shape, seed=1).epoch_indices()
    for labels in (LABELS.tolist(), LABELS.numpy()):
        batches = EpisodeBatches(labels, shape, seed=np.int64(1))  # type: ignore[arg-type]
        assert torch.equal(batches.epoch_indices(), expected)
