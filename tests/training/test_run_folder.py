"""The folder of a run: its files, its name, and the best epoch."""

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.helpers.settings import change

from nearshot.errors import InputError
from nearshot.evaluation import TrainingClasses
from nearshot.training import PRESETS, RunFolder, TrainConfig
from nearshot.training.presets import PHOTOS
from nearshot.training.run_folder import (
    best_epoch,
    describe_environment,
    folder_name,
)

CLASSES = TrainingClasses("tiny", ("otter", "seal"))


@given(st.dictionaries(st.integers(1, 30), st.integers(1, 200)), st.integers(1, 40))
def test_the_best_epoch_is_that_of_the_nearest_number_of_shots(
    epochs: dict[int, int], n_shot: int
) -> None:
    best: dict[str, dict[str, Any]] = {
        f"{shots}-shot centroid": {"epoch": epoch} for shots, epoch in epochs.items()
    }
    best |= {f"{shots}-shot soft": {"epoch": 1000 + epoch} for shots, epoch in epochs.items()}
    nearest = sorted(
        epochs, key=lambda shots: (abs(shots - n_shot), shots)
    )  # of two as near, the fewer
    expected = epochs[nearest[0]] if nearest else None
    assert best_epoch(best, n_shot, "centroid") == best_epoch(best, n_shot, "knn") == expected
    assert best_epoch(best, n_shot, "soft") == (None if expected is None else 1000 + expected)


def test_a_resumed_run_keeps_its_earlier_environments(tmp_path: Path) -> None:
    run = RunFolder(tmp_path)
    run.describe(TrainConfig(), {"device": "first"}, CLASSES)
    run.describe(TrainConfig(), {"device": "second"}, CLASSES)
    assert run.read("environment.json") == {"device": "second"}
    run.checkpoint.touch()
    for device in ("third", "fourth"):
        run.describe(TrainConfig(), {"device": device}, CLASSES)
    earlier = [{"device": "second"}, {"device": "third"}]
    assert run.read("environment.json") == {"device": "fourth", "earlier": earlier}
    assert run.read_trained_on() == CLASSES
    assert run.read_config() == TrainConfig()


def test_starting_a_run(tmp_path: Path) -> None:
    run = RunFolder(tmp_path / "run")
    assert not run.start(resume=True, overwrite=False)
    with pytest.raises(InputError, match="training in .*run"):
        RunFolder(run.path).start(resume=False, overwrite=False)
    run.release()
    mine = run.path / "notes.txt"
    unfinished = run.weights / ".epoch-0001.safetensors.1.partial"
    for file in (mine, unfinished, run.checkpoint, run.weights_of(3), run.path / "result.json"):
        file.touch()
    assert run.start(resume=True, overwrite=False)
    assert not unfinished.exists()
    run.release()
    assert not run.start(resume=False, overwrite=True)
    run.release()
    assert {file.name for file in run.path.rglob("*") if file.is_file()} - {".lock"} == {
        "notes.txt"
    }


def test_the_environment_has_no_absolute_paths(monkeypatch: pytest.MonkeyPatch) -> None:
    home = str(Path.home() / "secret")
    monkeypatch.setattr(
        sys, "argv", [f"{home}/nearshot", "train", "--data-dir", f"{home}/data", "--seed", "3"]
    )
    environment = describe_environment(torch.device("cpu"))
    assert environment["command"] == ["nearshot", "train", "--data-dir", "data", "--seed", "3"]
    assert "secret" not in str(environment)
    assert environment["torch"] == torch.__version__
    assert environment["device"]
    assert "\n" not in environment["device"]


def test_folders_have_short_names() -> None:
    preset = PRESETS["cifar-fs-nca"]
    assert folder_name(preset) == "cifar-fs-nca"
    assert folder_name(replace(preset, seed=2)) == "cifar-fs-nca-seed2"
    assert folder_name(replace(PHOTOS, dataset="/home/me/my photos")) == "my-photos-nca"
    changes = [
        change(preset, temperature=value, seed=seed) for value in (0.5, 2.0) for seed in (0, 1)
    ]
    names = {folder_name(config) for config in (preset, *changes)}
    assert len(names) == 5
    assert all(name.startswith("cifar-fs-nca") and len(name) <= 24 for name in names)
