"""A run's identity is what differs from the defaults: new settings do not orphan results."""

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from tests.helpers.made_up import make_up

from nearshot.data.augment import Augmentation
from nearshot.paper import RECIPES, Results
from nearshot.paper.identity import resolved, run_id
from nearshot.paper.jobs import jobs_of
from nearshot.paper.result_file import RunResult
from nearshot.paper.sizes import PAPER, QUICK, Size, at_input_size
from nearshot.training import PRESETS, TrainConfig
from nearshot.training.methods import (
    NCA,
    MatchingNetworks,
    Method,
    NCAWithPrototypes,
    PrototypicalNetworks,
    SupCon,
)

COMMITTED = Path(__file__).parents[2] / "results"


@dataclass(frozen=True)
class MoreAugmentation(Augmentation):
    """One setting more."""

    blur: int = 0


@dataclass(frozen=True)
class MoreConfig(TrainConfig):
    """A setting more, and one in the augmentation."""

    a_new_setting: float = 0.5
    augmentation: Augmentation = field(default_factory=MoreAugmentation)


@pytest.mark.parametrize("preset", PRESETS)
def test_a_new_setting_with_a_default_leaves_the_identity_unchanged(preset: str) -> None:
    config = PRESETS[preset]
    same = vars(config) | {"augmentation": MoreAugmentation(**vars(config.augmentation))}
    more = MoreConfig(**same)
    assert "a_new_setting" in more.as_dict()
    assert "blur" in more.as_dict()["augmentation"]
    assert run_id(more) == run_id(config)
    assert run_id(replace(more, a_new_setting=0.6)) != run_id(config)
    assert run_id(replace(more, augmentation=replace(more.augmentation, blur=4))) != run_id(config)  # type: ignore[call-arg]


CHANGES: list[dict[str, Any]] = [
    {},
    {"seed": 1},
    {"dataset": "cifar-fs"},
    {"batch_size": 256},
    {"epochs": 60},
    {"warm_up": 0.0},
    {"method": SupCon()},
    {"method": SupCon(variant="published")},
    {"method": NCA(temperature=0.5)},
    {"optimiser": "adam"},
    {"momentum": 0.8},
    {"batches": "episodes"},
    {"batches": "episodes", "least_images": 8},
    {"augmentation": Augmentation(flip=0.0)},
    {"schedule": "cosine"},
    {"precision": "float32"},
    {"teacher": "0123456789abcdef"},
]


def test_runs_that_differ_in_one_setting_differ_in_their_identity() -> None:
    ids = {run_id(TrainConfig(**settings)) for settings in CHANGES}
    assert len(ids) == len(CHANGES)


@pytest.mark.parametrize(
    ("first", "second"),
    [
        # With one shot, a prototype is the image.
        ({"method": PrototypicalNetworks(n_shot=1)}, {"method": MatchingNetworks(n_shot=1)}),
        ({"method": NCAWithPrototypes(n_shot=1)}, {"method": NCA(), "batches": "episodes"}),
        # NCA has no episodes, and so no images of a class in them.
        ({"images_per_class": 8}, {"images_per_class": 32}),
        ({"optimiser": "adam", "momentum": 0.8}, {"optimiser": "adam"}),
        ({"schedule": "cosine", "decay": 0.5}, {"schedule": "cosine"}),
        ({"distillation_weight": 0.5}, {}),
        ({"augmentation": Augmentation(padding=4)}, {}),
        ({"validation_n_shot": (1,)}, {}),
    ],
)
def test_settings_that_a_run_does_not_use_do_not_matter(
    first: dict[str, Any], second: dict[str, Any]
) -> None:
    assert run_id(TrainConfig(**first)) == run_id(TrainConfig(**second))


@dataclass(frozen=True)
class Own(Method):
    """A method of one's own."""

    margin: float = 0.2
    power: float = 1.0


def test_a_method_of_ones_own_is_identified_by_its_class_and_what_differs() -> None:
    config = TrainConfig(method=Own(margin=0.3))
    assert resolved(config)["method"] == {"name": f"{__name__}:Own", "margin": 0.3}
    assert run_id(TrainConfig.from_dict(config.as_dict())) == run_id(config)


def test_a_result_whose_method_cannot_be_imported_is_listed(tmp_path: Path) -> None:
    results = make_up(tmp_path, ["schedule"], QUICK)
    result = next(iter(results))
    method = {"name": "lost_module:Lost", "margin": 0.3}
    changed = RunResult(result.content | {"config": result.config.as_dict() | {"method": method}})
    results.put(changed)
    assert changed.id in {listed.id for listed in Results(tmp_path, QUICK)}


@pytest.mark.parametrize("size", [PAPER, at_input_size(32)], ids=lambda size: size.name)
def test_every_committed_result_is_of_a_run_of_a_recipe(size: Size) -> None:
    run_ids = {job.id for job in jobs_of(RECIPES.values(), "all", size, range(3))}
    files = list(COMMITTED.glob(f"{size.name}/*/*.json"))
    assert files
    assert {file.stem for file in files} <= run_ids
