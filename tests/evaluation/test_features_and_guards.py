"""Embedding, feature files, and the guards against leaks, each triggered."""

import functools
import pickle
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from tests.helpers.layouts import Call
from torch.utils.data import DataLoader, TensorDataset

from nearshot.errors import FileFormatError, LeakError
from nearshot.evaluation import (
    FeatureSet,
    check_distinct_content,
    check_unseen_classes,
    embed,
    evaluate_features,
    load_features,
    sample_episodes,
    save_features,
)
from nearshot.evaluation.leaks import ContentGuard
from nearshot.models import build_backbone

IMAGES = torch.randn(20, 3, 16, 16, generator=torch.Generator().manual_seed(0))


@pytest.fixture
def backbone() -> Any:
    torch.manual_seed(0)
    return build_backbone("conv4", input_size=16).eval()


def test_embedding_in_batches_is_embedding(backbone: Any) -> None:
    with torch.no_grad():
        expected = backbone(IMAGES)
    torch.testing.assert_close(
        embed(backbone, IMAGES, batch_size=7), expected, rtol=1e-4, atol=1e-5
    )
    torch.testing.assert_close(embed(backbone, IMAGES.split(6)), expected, rtol=1e-4, atol=1e-5)
    assert embed(backbone.multi_layer, IMAGES).shape == (20, 192)
    features = embed(backbone, IMAGES)
    assert not features.requires_grad
    features += 1  # an ordinary tensor, not an inference-mode one
    loader = DataLoader(TensorDataset(IMAGES, torch.arange(20)), batch_size=20)
    torch.testing.assert_close(
        embed(backbone, (batch[0] for batch in loader)), expected, rtol=1e-4, atol=1e-5
    )


def test_a_network_left_in_training_mode_is_refused(backbone: Any) -> None:
    backbone.train()
    for network in (
        backbone,
        backbone.multi_layer,
        functools.partial(backbone.multi_layer, stages=[4]),
    ):
        with pytest.raises(LeakError, match="in training mode.*network.eval()"):
            embed(network, IMAGES)
    backbone.eval()
    backbone.blocks[2].train()  # one part is enough
    with pytest.raises(LeakError, match="in training mode"):
        embed(backbone, IMAGES)
    network = torch.nn.Sequential(
        torch.nn.Conv2d(3, 4, 3), torch.nn.BatchNorm2d(4, track_running_stats=False)
    )
    with pytest.raises(LeakError, match="batch norm '1' keeps no running statistics"):
        embed(network.eval(), IMAGES)


class Dropping(torch.nn.Module):
    """A network whose batch norm, or dropout, works as in training."""

    def __init__(self, layer: torch.nn.Module) -> None:
        super().__init__()
        self.layers = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(768, 8), layer)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        features: torch.Tensor = self.layers(images)
        return features


@pytest.mark.parametrize("layer", [torch.nn.BatchNorm1d(8), torch.nn.Dropout()])
def test_a_network_in_training_mode_inside_a_function_is_noticed(layer: torch.nn.Module) -> None:
    network = Dropping(layer)
    with pytest.warns(UserWarning, match="differently.*network.eval()"):
        embed(lambda images: 1 * network(images), IMAGES, batch_size=16)
    network.eval()
    embed(lambda images: 1 * network(images), IMAGES, batch_size=16)  # warnings are errors


def test_training_classes_come_back_and_are_not_measured(tmp_path: Path) -> None:
    path = tmp_path / "f.safetensors"
    labels = torch.arange(3).repeat_interleave(20)
    features = FeatureSet(torch.randn(60, 4), labels, class_names=("otter", "seal", "whale"))
    save_features(features, path)
    assert load_features(path).training_classes is None
    evaluate_features(load_features(path), n_way=3, n_shot=1, n_episodes=5)
    save_features(replace(features, training_classes=["seal", "fox"]), path)
    assert load_features(path).training_classes == ("seal", "fox")
    with pytest.raises(LeakError, match="'seal'"):
        evaluate_features(load_features(path), n_way=3, n_shot=1, n_episodes=5)


def test_features_come_back_from_their_file(tmp_path: Path) -> None:
    """The file is known by what is in it, not by its name."""
    names = ("otter", "seal", "two\nlines")
    features = FeatureSet(
        torch.randn(6, 4).half(),
        torch.tensor([0, 0, 1, 1, 2, 2]),
        centre=torch.randn(4),
        class_names=names,
        split="test",
        fingerprint="0123",
        content=torch.arange(6),
    )
    for path in (tmp_path / "f.safetensors", tmp_path / "f.npz"):
        save_features(features, path)
        again = load_features(path)
        for name in ("features", "labels", "centre", "content"):
            assert torch.equal(getattr(again, name), getattr(features, name))
        assert (again.class_names, again.split, again.fingerprint) == (names, "test", "0123")


def test_features_of_other_programs(tmp_path: Path) -> None:
    """With other arrays in the file, and another name."""
    features = np.arange(6.0).reshape(3, 2)
    arrays = {"features": features, "labels": np.array([0, 0, 1]), "centre": features[0]}
    np.savez(tmp_path / "f.npz", **arrays, files=np.array(["0.jpg", "1.jpg", "2.jpg"]))
    loaded = load_features((tmp_path / "f.npz").rename(tmp_path / "theirs"))
    for name, array in arrays.items():
        assert getattr(loaded, name).tolist() == array.tolist()
    assert loaded.class_names == ()
    assert (loaded.content, loaded.split, loaded.fingerprint) == (None, None, None)
    for wrong in (
        {"features": np.zeros(3)},
        {"features": np.zeros((3, 2), int)},
        {"labels": np.zeros((3, 1), int)},
        {"labels": np.zeros(3)},
        {"centre": np.zeros((1, 2))},
    ):
        np.savez(tmp_path / "wrong.npz", **arrays | wrong)
        with pytest.raises(FileFormatError, match="one integer label"):
            load_features(tmp_path / "wrong.npz")


def test_bad_feature_files(tmp_path: Path) -> None:
    exploit = Call(Path.touch, tmp_path / "ran")
    np.savez(tmp_path / "evil.npz", features=np.array([exploit], dtype=object), labels=np.zeros(1))
    (tmp_path / "evil.safetensors").write_bytes(pickle.dumps(exploit))
    (tmp_path / "evil2.npz").write_bytes(pickle.dumps(exploit))
    for name in ("evil.npz", "evil.safetensors", "evil2.npz"):
        with pytest.raises(FileFormatError, match="damaged"):
            load_features(tmp_path / name)
    assert not (tmp_path / "ran").exists()
    (tmp_path / "cut.npz").write_bytes((tmp_path / "evil.npz").read_bytes()[:200])
    (tmp_path / "empty.npz").write_bytes(b"")
    save_file(
        {"features": torch.zeros(3, 2)},
        tmp_path / "other",
        {"format": "nearshot-features", "version": "2"},
    )
    np.savez(tmp_path / "partial.npz", features=np.zeros((3, 2)))
    np.savez(
        tmp_path / "named.npz", features=np.zeros((3, 2)), labels=np.array(["cat", "cat", "dog"])
    )
    messages = {
        "empty.npz": "damaged",
        "cut.npz": "damaged",
        "other": "version 1",
        "partial.npz": "'labels'",
        "named.npz": "labels .*<U3",
    }
    for name, message in messages.items():
        with pytest.raises(FileFormatError, match=message):
            load_features(tmp_path / name)


def test_training_classes_must_not_be_evaluated() -> None:
    check_unseen_classes(["otter", "seal"], ["whale"])
    with pytest.raises(LeakError, match="7 .*'c0', 'c1', 'c2', 'c3', 'c4' and 2 more"):
        check_unseen_classes([f"c{i}" for i in range(9)], [f"c{i}" for i in range(7)])


def test_the_same_image_must_not_be_support_and_query() -> None:
    labels = torch.arange(6).repeat_interleave(25)
    content = torch.arange(150)
    episodes = sample_episodes(labels, n_episodes=500)
    check_distinct_content(episodes, content)
    content[7] = content[3]  # two images of class 0 are the same
    support = episodes.support.flatten(1)
    query = episodes.query.flatten(1)
    clashes = [
        (support == first).any(1) & (query == second).any(1) for first, second in ((3, 7), (7, 3))
    ]
    n_clashes = int((clashes[0] | clashes[1]).sum())
    assert n_clashes > 0
    with pytest.raises(LeakError, match=f"In {n_clashes} of the episodes 0 to 499 "):
        check_distinct_content(episodes, content)


def test_the_same_image_is_named_with_its_episode() -> None:
    content = torch.arange(40)
    content[5] = content[9]
    drawn = torch.arange(40).view(2, 2, 10)  # way 0 of episode 0 has the images 0 to 9
    guard = ContentGuard(content)
    guard.check(drawn[1:], n_query=7)
    for n_query in (7, 6):
        with pytest.raises(
            LeakError, match="In 1 of the episodes 100 to 101 .* episode 100, images 9 and 5"
        ):
            guard.check(drawn, n_query, first_episode=100)
    guard.check(drawn, n_query=5)  # both are support
