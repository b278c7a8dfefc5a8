"""A run's identity: what differs from the defaults, so that new settings leave published results where they are."""

from collections import Counter
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from nearshot.data.augment import Augmentation
from nearshot.paper import RECIPES, Results
from nearshot.paper.identity import run_id
from nearshot.paper.jobs import jobs_of
from nearshot.paper.sizes import PAPER, at_input_size
from nearshot.training import PRESETS, TrainConfig
from nearshot.training.methods import NCA, SupCon

COMMITTED = Path(__file__).parents[2] / "results"
# How many committed results each recipe finds, on all of its datasets.
FOUND = {
    "paper": {
        "batch-size": 7, "pair-subsampling": 2, "ablations": 3, "comparison": 13, "classifiers": 4, "schedule": 2,
        "adaptation": 4, "supcon": 4, "pn-implementations": 5, "choices": 4, "floor": 3, "methods": 4,
        "adaptation-steps": 4, "snell-ways": 2, "epochs": 11, "last-epoch": 9,
    },
    "32px": {
        "batch-size": 30, "pair-subsampling": 14, "ablations": 21, "comparison": 1, "classifiers": 1, "schedule": 4,
        "adaptation": 1, "supcon": 1, "choices": 5, "floor": 24, "methods": 3, "adaptation-steps": 1,
        "epochs": 1, "last-epoch": 7,
    },
}  # fmt: skip


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


def test_runs_that_differ_in_one_setting_differ_in_their_identity() -> None:
    changes: list[dict[str, object]] = [
        {}, {"seed": 1}, {"dataset": "cifar-fs"}, {"batch_size": 256}, {"epochs": 60}, {"warm_up": 0.0},
        {"method": SupCon()}, {"method": SupCon(variant="published")}, {"method": NCA(temperature=0.5)}, {"optimiser": "adam"},
        {"momentum": 0.8}, {"batches": "episodes"}, {"batches": "episodes", "least_images": 8},
        {"augmentation": Augmentation(flip=0.0)}, {"schedule": "cosine"}, {"precision": "float32"},
    ]  # fmt: skip
    assert len({run_id(TrainConfig(**one)) for one in changes}) == len(changes)  # type: ignore[arg-type]


@pytest.mark.parametrize("scale", FOUND)
def test_all_committed_results_are_found_by_the_recipes_that_want_them(scale: str) -> None:
    size = at_input_size(32) if scale == "32px" else PAPER
    results = Results(COMMITTED, size)
    n_found = Counter[str]()
    for name, recipe in RECIPES.items():
        for job in jobs_of([recipe], "all", size, range(3)):
            n_found[name] += results.get(job.config) is not None
    # A new recipe that shares runs with these is not listed.
    assert {name: n_found[name] for name in FOUND[scale]} == FOUND[scale]
    files = COMMITTED.glob(f"{scale}/*/*.json")
    assert sorted(file.stem for file in files) == sorted(one.id for one in results)
