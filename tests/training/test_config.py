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
from nearshot.training import PRESETS, Method, TrainConfig
from nearshot.training.methods import (
    NCA,
    MatchingNetworks,
    PrototypicalNetworks,
    SimpleShot,
    SupCon,
)
from nearshot.training.presets import closest_preset
from nearshot.training.run_folder import run_name


@pytest.mark.parametrize("name", PRESETS)
def test_a_preset_is_closest_to_itself(name: str) -> None:
    config = PRESETS[name]
    assert closest_preset(config) == (name, {})
    assert run_name(config) == name


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
        method=st.builds(NCA, temperature=st.floats(1e-3, 1e3))
        | st.builds(PrototypicalNetworks, n_shot=st.integers(1, 10)),
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
        run_name(replace(base, seed=seed, method=NCA(temperature=temperature)))
        for seed in range(3)
        for temperature in (1.0, 0.5)
    }
    assert len(names) == 6
    assert (
        len({run_name(replace(base, validation_n_shot=(*range(1, 30), last))) for last in (30, 31)})
        == 2
    )


# The last value that is right, and the first that is wrong: one setting of each kind.
EDGES: list[tuple[str, Any, Any]] = [
    ("epochs", 1, 0),
    ("micro_batch", 1, 0),
    ("validation_n_query", 1, 0),
    ("validation_n_way", 2, 1),
    ("learning_rate", 1e-9, 0.0),
    ("weight_decay", 0.0, -1e-9),
    ("warm_up", 0.0, -1e-9),
    ("mixup", 0.0, -1e-9),
    ("momentum", 0.0, -1e-9),
    ("ema_decay", 0.999, 1.0),
    ("mix_stages", False, True),  # without mixup
    ("milestones", (0.01, 0.99), (0.5, 1.0)),
    ("milestones", (), 0.5),
    ("warm_up", 120.0, 120.5),
    ("validation_n_shot", (1, 5), (5, 0)),
    ("validation_n_shot", (1,), 5),
    ("epochs", 3, "3"),
    ("epochs", 120, 120.0),
    ("epochs", 120, np.int64(120)),
    ("seed", 1, True),
    ("learning_rate", 0.1, float("nan")),
    ("learning_rate", 1, "0.1"),
    ("method", NCA(), "nca"),
    ("method", NCA(), NCA),
    ("backbone", "conv4", torch.nn.Flatten()),
    ("optimiser", "adam", "adamw"),
    ("schedule", "cosine", "cos"),
    ("batches", "episodes", "episodic"),
    ("precision", "float32", "float16"),
    ("n_way", None, 5),
    ("freeze", 0, 1),  # without init
]
EDGES_OF_METHODS: list[tuple[type[Method], str, Any, Any]] = [
    (NCA, "temperature", 1e-9, 0.0),
    (NCA, "distance", "cosine", "manhattan"),
    (NCA, "background", 0.0, -1e-9),
    (NCA, "keep_positives", 1.0, 1.01),
    (NCA, "keep_negatives", 1e-9, 0.0),
    (NCA, "projection", 1, 0),
    (PrototypicalNetworks, "n_shot", 1, 0),
    (PrototypicalNetworks, "temperature", 1, "1"),
    (SimpleShot, "label_smoothing", 0.0, -1e-9),
    (SimpleShot, "label_smoothing", 1.0, 1.01),
    (SupCon, "variant", "published", "original"),
]


@pytest.mark.parametrize(("name", "right", "wrong"), EDGES)
def test_a_setting_may_go_as_far_as_this(name: str, right: Any, wrong: Any) -> None:
    assert getattr(TrainConfig(**{name: right}), name) == right
    with pytest.raises(InputError, match=name):
        TrainConfig(**{name: wrong})


@pytest.mark.parametrize(("kind", "name", "right", "wrong"), EDGES_OF_METHODS)
def test_a_setting_of_a_method_may_go_as_far_as_this(
    kind: type[Method], name: str, right: Any, wrong: Any
) -> None:
    assert getattr(kind(**{name: right}), name) == right
    with pytest.raises(InputError, match=name):
        kind(**{name: wrong})


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"method": MatchingNetworks(), "batches": "shuffled"}, "episodes.*'shuffled'"),
        ({"nesterov": True, "optimiser": "adam"}, "nesterov .*adam"),
        ({"least_images": 10}, "least_images.* shuffled.*10"),
        ({"method": PrototypicalNetworks(), "mixup": 1.0}, "mixup .*not be 'episodes'"),
        ({"batches": "episodes", "cutmix": 1.0}, "cutmix .*not be 'episodes'"),
    ],
)
def test_settings_that_do_not_go_together_are_refused(
    settings: dict[str, Any], message: str
) -> None:
    with pytest.raises(InputError, match=message):
        TrainConfig(**settings)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"cross_entropy_weight": 0.5, "keep_negatives": 0.5}, "cross_entropy_weight .*0.5"),
        ({"label_smoothing": 0.1}, "label_smoothing .*cross_entropy_weight"),
    ],
)
def test_settings_of_nca_that_do_not_go_together_are_refused(
    settings: dict[str, Any], message: str
) -> None:
    with pytest.raises(InputError, match=message):
        NCA(**settings)


def test_runs_warm_up_by_default_and_the_papers_do_not() -> None:
    """And what is said in two ways is one training."""
    assert TrainConfig(epochs=60).warm_up_epochs == 5
    assert TrainConfig(epochs=1).warm_up_epochs < 1
    for name, preset in PRESETS.items():
        assert preset.warm_up == 0.0, name
        assert getattr(preset.method, "background", 1e-10) == 1e-10, name
    assert run_id(TrainConfig(epochs=120)) == run_id(TrainConfig(epochs=120, warm_up=10.0))
    assert run_id(TrainConfig(epochs=120)) != run_id(TrainConfig(epochs=120, warm_up=0.0))


@pytest.mark.parametrize("seed", [-1, 1 << 70, 1.5, True])
def test_a_seed_that_no_generator_takes_is_an_error(seed: Any) -> None:
    with pytest.raises(InputError, match="seed"):
        TrainConfig(seed=seed)
