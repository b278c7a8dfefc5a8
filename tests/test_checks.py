"""Numbers from NumPy, and things that are nearly what is asked for: taken, or refused in a sentence."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest
import torch

from nearshot.data import EpisodeBatches, EpisodeShape, ShuffledBatches
from nearshot.errors import InputError, LeakError
from nearshot.evaluation import FeatureSet, evaluate_features, evaluate_many, load_features, save_features
from nearshot.losses import nca_loss
from nearshot.runs.evaluate import Request

LABELS = torch.arange(8).repeat_interleave(24)
FEATURES = torch.randn(8, 6, generator=torch.Generator().manual_seed(0))[LABELS] + torch.randn(
    len(LABELS), 6, generator=torch.Generator().manual_seed(1)
)


def test_an_accuracy_by_numpys_numbers_is_json() -> None:
    asked = {"n_shot": np.int64(5), "n_way": np.int64(3), "n_episodes": np.int64(50), "seed": np.int64(3)}
    ours = evaluate_features(FEATURES, LABELS, **asked)  # type: ignore[arg-type]
    plain = evaluate_features(FEATURES, LABELS, n_shot=5, n_way=3, n_episodes=50, seed=3)
    assert json.dumps(ours.as_dict()) == json.dumps(plain.as_dict())
    many = evaluate_many(FEATURES, LABELS, n_shots=np.array([1, 5]), n_way=3, n_episodes=20)  # type: ignore[arg-type]
    assert [key.n_shot for key in many] == [1, 1, 1, 5, 5, 5]
    json.dumps([one.as_dict() for one in many.values()])
    one = evaluate_features(FEATURES, LABELS, n_episodes=1)  # without an interval
    assert type(one).from_dict(json.loads(json.dumps(one.as_dict(), allow_nan=False))).mean == one.mean


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
    with pytest.raises(InputError, match=r"batch_size .* 4\.0"):
        ShuffledBatches(10, 4.0)  # type: ignore[arg-type]


def test_what_is_nearly_right_is_refused_in_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="labels .*list"):
        nca_loss(FEATURES, LABELS.tolist(), keep_positives=0.5, generator=torch.Generator())  # type: ignore[arg-type]
    with pytest.raises(InputError, match="centre .*list"):
        evaluate_features(FEATURES, LABELS, centre=[0.0] * 6)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="shots .*1"):
        Request(shots=1)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="labels"):
        save_features(FeatureSet(FEATURES, LABELS + 0.5), tmp_path / "f.safetensors")


def test_features_of_another_order_of_bytes_are_read(tmp_path: Path) -> None:
    np.savez(tmp_path / "f.npz", features=FEATURES.numpy().astype(">f4"), labels=LABELS.numpy().astype(">i8"))
    read = load_features(tmp_path / "f.npz")
    assert torch.equal(read.features, FEATURES)
    assert torch.equal(read.labels, LABELS)


def test_repeated_pictures_are_counted_among_the_episodes_that_were_looked_at() -> None:
    content = torch.arange(len(LABELS))
    content[1] = 0
    with pytest.raises(LeakError, match=r"In \d+ of the episodes \d+ to \d+ a query"):
        evaluate_features(FeatureSet(FEATURES, LABELS, content=content), n_episodes=10_000)
