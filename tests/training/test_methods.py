"""Methods: names, files, modules of a user's own, and the pairs that they count."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from tests.helpers.settings import TINY, change
from torch import Tensor, nn

from nearshot.errors import InputError
from nearshot.losses import nca_loss, prototypical_loss
from nearshot.runs import open_run
from nearshot.training import METHODS, Batch, Method, TrainConfig, TrainResult, train
from nearshot.training.checkpoint import read_checkpoint
from nearshot.training.methods import (
    NCA,
    MatchingNetworks,
    PairsInBatch,
    SimpleShot,
    UnknownMethod,
    change_method,
    method_as_dict,
    method_class,
    method_from_dict,
    method_name,
)
from nearshot.training.plan import open_splits, plan_run
from nearshot.training.run_folder import run_name

TrainTiny = Callable[..., TrainResult]


@dataclass(frozen=True)
class Proxies(Method):
    """A vector for each class, and cross-entropy of the similarities to them."""

    title: ClassVar[str] = "proxies"

    scale: float = 1.0
    layers: tuple[int, ...] = (1,)

    def modules(self, embedding_dim: int, n_classes: int) -> Mapping[str, nn.Module]:
        return {"proxies": nn.Linear(embedding_dim, n_classes, bias=False, dtype=torch.float32)}

    def loss(self, batch: Batch) -> Tensor:
        logits = self.scale * batch.modules["proxies"](batch.embeddings)
        return nn.functional.cross_entropy(logits, batch.labels)


@dataclass(frozen=True)
class OwnPrototypes(Method):
    """Prototypical Networks, by support and query."""

    needs_episodes: ClassVar[bool] = True
    n_shot: int = 2

    def loss(self, batch: Batch) -> Tensor:
        return prototypical_loss(
            batch.support,
            batch.support_labels,
            batch.query,
            batch.query_labels,
            background=1e-10,
        )


@dataclass(frozen=True)
class OwnNCA(Method):
    """The built-in loss."""

    def loss(self, batch: Batch) -> Tensor:
        return nca_loss(batch.embeddings, batch.labels, background=1e-10)


@dataclass(frozen=True)
class WithoutGradient(Method):
    """A loss that teaches nothing."""

    def loss(self, batch: Batch) -> Tensor:
        return batch.embeddings.detach().sum()


@dataclass
class NotFrozen(Method):
    """Settings that could change during a run."""

    margin: float = 0.2


@dataclass(frozen=True)
class Ambiguous(Method):
    """A setting that the run has, too."""

    seed: int = 0


class Undecorated(NCA):
    """A setting that a dataclass would have."""

    margin: float = 0.2


@pytest.mark.parametrize("method", [*(kind() for kind in METHODS.values()), Proxies(scale=2.0)])
def test_a_method_survives_json(method: Method) -> None:
    values = json.loads(json.dumps(method_as_dict(method)))
    assert method_from_dict(values) == method
    assert method_class(values["name"]) is type(method)
    config = TrainConfig(method=method)
    assert TrainConfig.from_dict(json.loads(json.dumps(config.as_dict()))) == config


def test_a_method_of_ones_own_is_known_by_its_class_and_its_settings() -> None:
    first, other = (TrainConfig(method=Proxies(scale=scale)) for scale in (0.2, 0.3))
    assert first.method_name == f"{__name__}:Proxies"
    assert first.as_dict()["method"] == {
        "name": f"{__name__}:Proxies",
        "scale": 0.2,
        "layers": [1],
    }
    assert run_name(first) != run_name(other)


def test_a_method_that_cannot_be_imported_is_listed_and_not_trained() -> None:
    values = {"name": "nowhere:Lost", "margin": 0.3}
    config = TrainConfig.from_dict({"method": values, "epochs": 3})
    assert config.method == UnknownMethod("nowhere:Lost", {"margin": 0.3})
    assert isinstance(hash(config), int)
    assert config.as_dict()["method"] == values
    assert "nowhere-Lost" in run_name(config)
    with pytest.raises(InputError, match="nowhere:Lost"):
        config.method.loss(Batch(torch.ones(2, 2), torch.tensor([0, 1])))


@pytest.mark.parametrize(
    "name", ["magic", "nowhere:Lost", "json:dumps", f"{__name__}:Missing", f"{__name__}:Path"]
)
def test_what_is_not_a_method_is_refused(name: str) -> None:
    with pytest.raises(InputError, match=name):
        method_class(name)


def test_an_unknown_setting_is_refused() -> None:
    with pytest.raises(InputError, match="simpleshot.*'temperature'"):
        method_from_dict({"name": "simpleshot", "temperature": 0.5})


@pytest.mark.parametrize(
    ("method", "expected"),
    [
        (NotFrozen(), "NotFrozen.*frozen"),
        (Undecorated(), "Undecorated.*dataclass"),
        (Ambiguous(), "Ambiguous.*'seed'"),
    ],
)
def test_a_method_of_ones_own_must_be_a_frozen_dataclass_of_its_own_settings(
    method: Method, expected: str
) -> None:
    with pytest.raises(InputError, match=expected):
        TrainConfig(method=method)


def test_another_method_keeps_the_settings_that_both_have() -> None:
    nca = NCA(temperature=0.5, keep_positives=0.5)
    assert change_method(nca, MatchingNetworks) == MatchingNetworks(temperature=0.5)
    assert change_method(nca, SimpleShot) == SimpleShot()


@pytest.mark.parametrize("name", METHODS)
def test_a_name_is_that_of_the_registry(name: str) -> None:
    method = METHODS[name]()
    assert method_name(method) == name
    assert all(item.name != "name" for item in fields(method))


@pytest.mark.parametrize(
    ("own", "name"), [(OwnNCA(), "nca"), (OwnPrototypes(), "prototypical")], ids=str
)
def test_a_method_of_ones_own_may_be_the_built_in_one(
    own: Method, name: str, train_tiny: TrainTiny
) -> None:
    losses = []
    for folder, method in (("own", own), ("built-in", name)):
        result = train_tiny(folder, epochs=1, method=method)
        losses.append(result.history[0]["loss"])
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)


def test_modules_of_ones_own_are_trained_saved_and_resumed(data_dir: Path, tmp_path: Path) -> None:
    config = change(TINY, epochs=2, method=Proxies(), validate_every=1)
    whole = train(config, folder=tmp_path / "whole", data_dir=data_dir, progress=False)
    first = replace(config, epochs=1)
    train(first, folder=tmp_path / "first", data_dir=data_dir, progress=False)
    after_one, after_two = (
        read_checkpoint(tmp_path / name / "checkpoint.pt")["loss_modules"]
        for name in ("first", "whole")
    )
    assert after_one.keys() == after_two.keys() == {"proxies.weight"}
    assert not torch.equal(after_one["proxies.weight"], after_two["proxies.weight"])
    assert whole.history[1]["loss"] < whole.history[0]["loss"]
    assert open_run(tmp_path / "whole", data_dir=data_dir).config.method == Proxies()


def test_a_loss_without_a_gradient_is_refused(train_tiny: TrainTiny) -> None:
    with pytest.raises(InputError, match="WithoutGradient.*gradient"):
        train_tiny(method=WithoutGradient())


def test_support_needs_episodes() -> None:
    batch = Batch(torch.ones(2, 2), torch.tensor([0, 1]))
    with pytest.raises(InputError, match="episodes"):
        _ = batch.support


def test_pairs_are_counted_as_a_loop_counts_them() -> None:
    for labels in ([0, 0, 0, 1, 1, 2], [3, 3, 4, 5, 6, 7]):
        positive = sum(labels[i] == labels[j] for i in range(6) for j in range(i))
        alone = sum(labels.count(label) == 1 for label in labels)
        expected = PairsInBatch(alone, positive, 15 - positive)
        assert NCA().pairs(torch.tensor(labels), None) == expected


def test_pairs_that_are_kept_are_rounded_down() -> None:
    method = NCA(keep_positives=0.5, keep_negatives=0.1)  # of 22 and 28 ordered negatives
    assert method.pairs(torch.tensor([0, 0, 0, 1, 1, 2]), None) == (1, 2.0, 1.0)
    assert method.pairs(torch.tensor([3, 3, 4, 5, 6, 7]), None) == (4, 0.5, 1.0)


@pytest.mark.parametrize(
    ("settings", "has_message"),
    [
        ({"learn_temperature": True}, True),
        ({"learn_temperature": True, "method": "prototypical"}, True),
        ({"learn_temperature": True, "temperature": 640.0}, False),
        ({"learn_temperature": True, "optimiser": "adam"}, False),
        ({"learn_temperature": True, "distance": "cosine"}, False),
        ({}, False),
    ],
)
def test_a_learnt_temperature_that_starts_too_low_has_a_message(
    settings: dict[str, Any], has_message: bool, data_dir: Path
) -> None:
    config = change(TINY, **settings)
    plan = plan_run(config, open_splits(config, data_dir))
    assert any("learn_temperature" in message for message in plan.messages) == has_message
