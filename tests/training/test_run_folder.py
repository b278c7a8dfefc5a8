"""A run's folder: its files, what is kept of it, and which epoch is the best."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from nearshot.errors import FileFormatError, InputError
from nearshot.training import RunFolder, TrainConfig
from nearshot.training.classes import TrainedOn
from nearshot.training.run_folder import best_epoch, describe_environment

TRAINED_ON = TrainedOn("tiny", ("otter", "seal"))


@given(st.dictionaries(st.integers(1, 30), st.integers(1, 200)), st.integers(1, 40))
def test_the_best_epoch_is_that_of_the_nearest_number_of_shots(epochs: dict[int, int], n_shot: int) -> None:
    best: dict[str, dict[str, Any]] = {f"{shots}-shot centroid": {"epoch": epoch} for shots, epoch in epochs.items()}
    best |= {f"{shots}-shot soft": {"epoch": 1000 + epoch} for shots, epoch in epochs.items()}
    nearest = sorted(epochs, key=lambda shots: (abs(shots - n_shot), shots))  # of two as near, the fewer
    expected = epochs[nearest[0]] if nearest else None
    assert best_epoch(best, n_shot, "centroid") == best_epoch(best, n_shot, "knn") == expected
    assert best_epoch(best, n_shot, "soft") == (None if expected is None else 1000 + expected)


def test_weights_of_other_epochs_before_one_are_removed(tmp_path: Path) -> None:
    run = RunFolder(tmp_path)
    run.weights.mkdir()
    for epoch in (1, 2, 3, 5, 10, 11):
        run.weights_of(epoch).touch()
    run.keep_weights({2, 10}, before=10)
    assert sorted(file.name for file in run.weights.iterdir()) == [
        f"epoch-00{epoch}.safetensors" for epoch in ("02", "10", "11")
    ]


def test_where_a_run_was_before_stays_in_its_environment(tmp_path: Path) -> None:
    """If it goes on from there; a training that starts anew has no past."""
    run = RunFolder(tmp_path)
    run.describe(TrainConfig(), {"device": "first"}, TRAINED_ON)
    run.describe(TrainConfig(), {"device": "second"}, TRAINED_ON)
    assert run.read("environment.json") == {"device": "second"}
    run.checkpoint.touch()
    for device in ("third", "fourth"):
        run.describe(TrainConfig(), {"device": device}, TRAINED_ON)
    earlier = [{"device": "second"}, {"device": "third"}]
    assert run.read("environment.json") == {"device": "fourth", "earlier": earlier}
    assert run.read_trained_on() == TRAINED_ON
    assert run.read_config() == TrainConfig()


def test_free_settings_are_as_the_run_was_begun_with(tmp_path: Path) -> None:
    run, asked = RunFolder(tmp_path), TrainConfig(batch_size=512, seed=7)
    assert run.as_begun(asked, ["batch_size"]) is None  # nothing was begun
    run.checkpoint.touch()
    assert run.as_begun(asked, ["batch_size"]) is None  # nothing says how
    run.write("config.json", TrainConfig(batch_size=64, seed=1).as_dict())
    assert run.as_begun(asked, ["batch_size"]) == TrainConfig(batch_size=64, seed=7)
    assert run.as_begun(asked, []) == asked


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "result.json is damaged"),
        ("[]", "result.json is not a file of a run"),
        ("{}", "it has no best epochs"),
        ('{"best": 3}', "it has no best epochs"),
        ('{"best": {"5-shot centroid": 3}}', "it has no best epochs"),
        ('{"best": {"5-shot centroid": {}}}', "it has no best epochs"),
    ],
)
def test_a_damaged_result_is_named(tmp_path: Path, content: str, message: str) -> None:
    (tmp_path / "result.json").write_text(content)
    with pytest.raises(FileFormatError, match=message):
        RunFolder(tmp_path).read_best()


def test_starting_a_run(tmp_path: Path) -> None:
    run = RunFolder(tmp_path / "run")
    assert not run.start(resume=True, overwrite=False)  # there is nothing to go on from
    with pytest.raises(InputError, match="Another training is running"):
        RunFolder(run.path).start(resume=False, overwrite=False)
    run.release()
    mine, unfinished = run.path / "notes.txt", run.weights / ".epoch-0001.safetensors.1.partial"
    for file in (mine, unfinished, run.checkpoint, run.weights_of(3), run.path / "result.json"):
        file.touch()
    with pytest.raises(InputError, match="There is a run in .* already. Go on with --resume"):
        run.start(resume=False, overwrite=False)
    with pytest.raises(InputError, match="--resume or --overwrite"):
        run.start(resume=True, overwrite=True)
    assert run.start(resume=True, overwrite=False)
    assert not unfinished.exists()
    run.release()
    run.checkpoint.unlink()
    with pytest.raises(InputError, match="is finished, and its checkpoint is gone"):
        run.start(resume=True, overwrite=False)
    assert not run.start(resume=False, overwrite=True)  # whoever was refused has let go of the folder
    run.release()
    assert {file.name for file in run.path.rglob("*") if file.is_file()} == {"notes.txt", ".lock"}
    in_the_way = tmp_path / "file"
    in_the_way.touch()
    with pytest.raises(InputError, match="cannot be made: "):
        RunFolder(in_the_way / "run").start(resume=False, overwrite=False)


def test_the_environment_says_nothing_of_where_things_lie(monkeypatch: pytest.MonkeyPatch) -> None:
    home = str(Path.home() / "secret")
    monkeypatch.setattr(sys, "argv", [f"{home}/nearshot", "train", "--data-dir", f"{home}/data", "--seed", "3"])
    environment = describe_environment(torch.device("cpu"))
    assert environment["command"] == ["nearshot", "train", "--data-dir", "data", "--seed", "3"]
    assert "secret" not in str(environment)
    assert environment["torch"] == torch.__version__
    assert environment["device"]
    assert "\n" not in environment["device"]
