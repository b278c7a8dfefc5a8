import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from nearshot.data import EpisodeShape
from nearshot.data.augment import Augmentation
from nearshot.errors import InputError
from nearshot.paper.identity import run_id
from nearshot.training import PRESETS, OwnLoss, TrainConfig
from nearshot.training.methods import resolve_method
from nearshot.training.presets import closest_preset
from nearshot.training.run_folder import run_name


@pytest.mark.parametrize("name", PRESETS)
def test_a_preset_is_closest_to_itself(name: str) -> None:
    config = PRESETS[name]
    assert closest_preset(config) == (name, {})
    assert run_name(config) == name
    resolve_method(config)


def test_the_presets_have_the_published_batches() -> None:
    assert PRESETS["cifar-fs-prototypical"].shape == EpisodeShape(32, 5, 11)
    assert PRESETS["mini-imagenet-matching-snell"].shape == EpisodeShape(20, 5, 15)
    assert PRESETS["tiered-imagenet-nca"].shape == EpisodeShape(63, 5, 11)
    assert PRESETS["tiered-imagenet-nca"].batches == "episodes"
    assert PRESETS["glyphs-nca"].augmentation.flip == 0


@given(
    st.builds(
        TrainConfig,
        epochs=st.integers(1, 500),
        temperature=st.floats(1e-3, 1e3),
        milestones=st.lists(st.floats(0.01, 0.99), max_size=3).map(tuple),
        augmentation=st.builds(Augmentation, flip=st.floats(0, 1)),
        micro_batch=st.none() | st.integers(1, 64),
    )
)
def test_settings_survive_json(config: TrainConfig) -> None:
    assert TrainConfig.from_dict(json.loads(json.dumps(config.as_dict()))) == config
    with pytest.raises(InputError, match="'colour'"):
        TrainConfig.from_dict({"colour": 1})


def test_names_of_runs_differ_where_settings_do() -> None:
    base = PRESETS["cifar-fs-nca"]
    names = {
        run_name(replace(base, seed=seed, temperature=t)) for seed in range(3) for t in (1.0, 0.5)
    }
    assert len(names) == 6
    assert (
        len({run_name(replace(base, validation_shots=(*range(1, 30), last))) for last in (30, 31)})
        == 2
    )


# The last value that is right, and the first that is wrong: one setting of each kind.
EDGES: list[tuple[str, Any, Any]] = [
    *((name, 1, 0) for name in ("epochs", "micro_batch", "validation_queries")),
    ("validation_way", 2, 1),
    ("learning_rate", 1e-9, 0.0),
    *(
        (name, 0.0, -1e-9)
        for name in ("weight_decay", "warm_up", "mixup", "label_smoothing", "momentum")
    ),
    *((name, 1.0, 1.01) for name in ("keep_positives", "label_smoothing")),
    ("keep_negatives", 1e-9, 0.0),
    ("ema_decay", 0.999, 1.0),
    ("mix_stages", False, True),  # without mixup
    ("milestones", (0.01, 0.99), (0.5, 1.0)),
    ("warm_up", 120.0, 120.5),
    ("validation_shots", (1, 5), (5, 0)),
    ("validation_shots", (1,), 5),
    ("epochs", 3, "3"),
    ("epochs", 120, 64.5),
    ("learning_rate", 0.1, float("nan")),
    ("method", "nca", torch.square),
    ("backbone", "conv4", torch.nn.Flatten()),
    ("n_way", None, 5),
]


@pytest.mark.parametrize(("name", "right", "wrong"), EDGES)
def test_a_setting_may_go_as_far_as_this(name: str, right: Any, wrong: Any) -> None:
    assert getattr(TrainConfig(**{name: right}), name) == right
    with pytest.raises(InputError, match=f"(?i){name.replace('_', '.')}"):
        TrainConfig(**{name: wrong})


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (TrainConfig(method="proto"), "There is no method 'proto'"),
        (TrainConfig(method="matching", batches="shuffled"), "episodes.*'shuffled'"),
        (TrainConfig(method="simpleshot", keep_positives=0.5), "keep_positives .*simpleshot"),
        (TrainConfig(method="simpleshot", distance="cosine"), "distance .*simpleshot"),
        (
            TrainConfig(method=OwnLoss("mine", torch.dist), learn_temperature=True),
            "learn_temperature .*own-mine",
        ),
        (TrainConfig(nesterov=True, optimiser="adam"), "nesterov .*adam"),
        (
            TrainConfig(cross_entropy_weight=0.5, keep_negatives=0.5),
            "cross_entropy_weight .*keep_negatives",
        ),
        (TrainConfig(method=OwnLoss("mine", torch.nn.Linear(2, 1))), "mine has parameters"),
        (TrainConfig(least_images=10), "least_images.* shuffled"),
        (TrainConfig(label_smoothing=0.1), "label_smoothing needs cross-entropy"),
        (TrainConfig(method="prototypical", mixup=1.0), "mixup .*not episodes"),
        (TrainConfig(batches="episodes", cutmix=1.0), "cutmix .*not episodes"),
    ],
)
def test_settings_that_do_not_go_together_are_refused(config: TrainConfig, message: str) -> None:
    with pytest.raises(InputError, match=message):
        resolve_method(config)


def test_numbers_of_numpy_and_whole_numbers_with_a_point_are_numbers() -> None:
    """As of a sweep over 2 ** np.arange(6, 9), or of a spreadsheet; a run's files have numbers, not text."""
    plain: dict[str, Any] = {
        "batch_size": 64,
        "learning_rate": 0.1,
        "seed": 3,
        "n_way": 5,
        "n_query": 3,
        "epochs": 12,
    }
    given: dict[str, Any] = {name: np.array(value)[()] for name, value in plain.items()}
    plain |= {"validation_shots": (1, 5), "nesterov": True, "augmentation": Augmentation(flip=0.25)}
    given |= {"validation_shots": np.array([1, 5]), "nesterov": np.bool_(True), "epochs": 12.0}
    given |= {"augmentation": Augmentation(flip=np.float64(0.25))}
    config = TrainConfig(**given)
    assert json.dumps(config.as_dict()) == json.dumps(TrainConfig(**plain).as_dict())
    assert (
        TrainConfig.from_dict(json.loads(json.dumps(config.as_dict())))
        == config
        == TrainConfig(**plain)
    )
    assert run_id(config) == run_id(TrainConfig(**plain))


def test_a_loss_of_ones_own_is_known_by_its_name() -> None:
    first, again, other = (
        TrainConfig(method=OwnLoss(name, function))
        for name, function in (
            ("triplet-0.2", torch.dist),
            ("triplet-0.2", torch.cdist),
            ("triplet-0.3", torch.dist),
        )
    )
    assert (
        first.method_name
        == first.as_dict()["method"]
        == resolve_method(first).title
        == "own-triplet-0.2"
    )
    assert first == again != other
    assert run_name(first) == run_name(again) != run_name(other)
    assert TrainConfig.from_dict(first.as_dict()).method_name == first.method_name
    with pytest.raises(InputError, match="two words"):
        OwnLoss("two words", torch.dist)


def test_runs_warm_up_by_default_and_the_papers_do_not() -> None:
    """And what is said in two ways is one training."""
    assert TrainConfig(epochs=60).warm_up_epochs == 5
    assert TrainConfig(epochs=1).warm_up_epochs < 1
    for name, preset in PRESETS.items():
        assert (preset.warm_up, preset.background) == (0.0, 1e-10), name
    assert run_id(TrainConfig(epochs=120)) == run_id(TrainConfig(epochs=120, warm_up=10.0))
    assert run_id(TrainConfig(epochs=120)) != run_id(TrainConfig(epochs=120, warm_up=0.0))
