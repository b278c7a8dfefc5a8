"""A run that is killed or stopped and resumed ends bitwise like one that never was."""

import io
import os
import shutil
import signal
import subprocess
import sys
import zipfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from tests.helpers.settings import TINY, change, stops
from tests.helpers.tiny import prepare_tiny

from nearshot.data.augment import Augmentation
from nearshot.errors import FileFormatError, InputError
from nearshot.training import train
from nearshot.training.checkpoint import PARTS, read_checkpoint, write_checkpoint

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "tests" / "helpers" / "kill_and_resume.py"
DONE = change(TINY, epochs=5, validate_every=1)  # the configuration of the fixture `run`


def check_equal(run: Path, other: Path) -> None:
    """Check that two runs have bitwise the same weights, log and state."""
    assert (run / "metrics.jsonl").read_bytes() == (other / "metrics.jsonl").read_bytes()
    files = sorted(file.name for file in (run / "weights").iterdir())
    assert files == sorted(file.name for file in (other / "weights").iterdir())
    first = read_checkpoint(run / "checkpoint.pt")
    second = read_checkpoint(other / "checkpoint.pt")
    assert first.keys() == second.keys()
    for name in (
        "learner",
        "optimiser",
        "average",
        "sampler",
        "generator",
        "loss_modules",
        "random",
        "progress",
    ):
        check_same(first[name], second[name], name)
    for file in files:
        weights = safetensors.torch.load_file(run / "weights" / file)
        other_weights = safetensors.torch.load_file(other / "weights" / file)
        check_same(weights, other_weights, file)


def check_same(value: Any, expected: Any, where: str) -> None:
    assert type(value) is type(expected), where
    if isinstance(value, torch.Tensor):
        assert torch.equal(value, expected), where
    elif isinstance(value, dict | list):
        assert len(value) == len(expected), where
        for key in value if isinstance(value, dict) else range(len(value)):
            check_same(value[key], expected[key], f"{where}.{key}")
    else:
        assert value == expected, where


@pytest.mark.parametrize(
    ("n_kills", "seed", "signal"),
    [
        (2, 0, "SIGKILL"),
        *(pytest.param(20, seed, "SIGKILL", marks=pytest.mark.slow) for seed in (1, 2)),
        pytest.param(3, 3, "SIGTERM", marks=pytest.mark.slow),
    ],
)
def test_kills_change_nothing(
    data_dir: Path, tmp_path: Path, n_kills: int, seed: int, signal: str
) -> None:
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT), *filter(None, sys.path)])}
    whole = tmp_path / "whole"
    killed = tmp_path / "killed"
    command = [
        sys.executable,
        str(SCRIPT),
        str(data_dir),
        str(whole),
        str(killed),
        str(n_kills),
        str(seed),
        signal,
    ]
    subprocess.run(command, check=True, env=environment, timeout=600)
    check_equal(whole, killed)


# Settings with a state of their own; a folder stands for the run in it.
INGREDIENTS: dict[str, Any] = {
    "teacher": "teacher",
    "rotation_weight": 1.0,
    "ema_decay": 0.9,
    "mixup": 1.0,
    "mix_stages": True,
    "cutmix": 1.0,
    "mix_probability": 0.8,
    "augmentation": Augmentation(n_operations=1),
}
FROM_A_RUN: dict[str, Any] = {
    "init": "teacher",
    "freeze": 1,
    "learning_rate": 1e-4,
    "validate_every": 1,
}


@pytest.mark.parametrize(
    ("number", "n_steps", "changes"),
    [
        (signal.SIGTERM, 8, {}),  # of 6 per epoch: in the middle of the second
        (signal.SIGINT, 12, {}),  # at its end
        (signal.SIGTERM, 3, FROM_A_RUN),
        (signal.SIGTERM, 8, INGREDIENTS),
    ],
    ids=["middle", "end", "initial network", "ingredients"],
)
def test_a_signal_saves_and_stops(
    number: signal.Signals,
    n_steps: int,
    changes: dict[str, Any],
    teacher: Path,
    data_dir: Path,
    tmp_path: Path,
) -> None:
    changes = {
        name: str(teacher) if value == "teacher" else value for name, value in changes.items()
    }
    n_calls = (
        2 * n_steps if "mixup" in changes else n_steps
    )  # of a mixed batch, the loss is computed twice
    config = change(TINY, method=stops(n_calls, number), **changes)
    stopped = train(config, folder=tmp_path / "stopped", data_dir=data_dir, progress=False)
    assert not stopped.finished
    state = read_checkpoint(tmp_path / "stopped" / "checkpoint.pt")
    assert state["progress"]["step"] == n_steps
    resumed = train(
        config, folder=tmp_path / "stopped", data_dir=data_dir, resume=True, progress=False
    )
    whole = train(config, folder=tmp_path / "whole", data_dir=data_dir, progress=False)
    assert resumed.finished
    assert whole.finished
    assert bool(whole.initial) == (config.init is not None)
    assert resumed.initial == whole.initial
    check_equal(tmp_path / "whole", tmp_path / "stopped")


def test_a_checkpoint_of_another_configuration_or_of_other_data_is_refused(
    run: Path, data_dir: Path, tmp_path: Path
) -> None:
    with pytest.raises(InputError, match=r"learning_rate was 0\.02 and is now 0\.5"):
        train(
            replace(DONE, learning_rate=0.5),
            folder=run,
            data_dir=data_dir,
            resume=True,
            progress=False,
        )
    prepare_tiny(tmp_path / "other", seed=1)
    with pytest.raises(InputError, match="other data: the fingerprint of train"):
        train(DONE, folder=run, data_dir=tmp_path / "other", resume=True, progress=False)


def test_a_run_is_replaced_only_on_request(run: Path, data_dir: Path) -> None:
    (run / "thesis.tex").write_text("precious")

    def contents() -> dict[Path, bytes]:
        return {
            path: path.read_bytes()
            for path in run.rglob("*")
            if path.is_file() and path.name != ".lock"
        }

    files = contents()
    with pytest.raises(InputError, match="resume.*overwrite"):
        train(DONE, folder=run, data_dir=data_dir, progress=False)
    with pytest.raises(InputError, match="resume or overwrite"):
        train(DONE, folder=run, data_dir=data_dir, overwrite=True, resume=True, progress=False)
    with pytest.raises(
        InputError, match="more than 20 images"
    ):  # what is refused overwrites nothing
        train(
            replace(DONE, validation_n_shot=(20,)),
            folder=run,
            data_dir=data_dir,
            overwrite=True,
            progress=False,
        )
    (run / "checkpoint.pt").rename(run / "aside")  # somebody may delete it to save space
    for resume in (True, False):
        with pytest.raises(InputError, match="checkpoint is missing.*nearshot evaluate"):
            train(DONE, folder=run, data_dir=data_dir, resume=resume, progress=False)
    (run / "aside").rename(run / "checkpoint.pt")
    assert contents() == files
    assert train(
        change(TINY, epochs=1), folder=run, data_dir=data_dir, overwrite=True, progress=False
    ).finished
    assert (run / "thesis.tex").read_text() == "precious"


class Evil:
    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.system, ("touch evil-was-here",)


def test_a_damaged_checkpoint_or_one_that_would_run_code_is_refused(
    trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flipped = bytearray((trained / "checkpoint.pt").read_bytes())
    largest = max(
        zipfile.ZipFile(trained / "checkpoint.pt").infolist(), key=lambda entry: entry.file_size
    )
    flipped[largest.header_offset + largest.file_size // 2] ^= 1
    monkeypatch.chdir(tmp_path)
    evil = io.BytesIO()
    torch.save({"format": "nearshot-checkpoint", "version": 1, "evil": Evil()}, evil)
    for content in (evil.getvalue(), b"nonsense", flipped):
        Path("checkpoint.pt").write_bytes(content)
        with pytest.raises(FileFormatError, match=r"checkpoint\.pt"):
            read_checkpoint(Path("checkpoint.pt"))
    assert not Path("evil-was-here").exists()


@pytest.mark.parametrize("name", ["version", *PARTS])
def test_a_checkpoint_without_a_part_is_refused(name: str, trained: Path, tmp_path: Path) -> None:
    state = read_checkpoint(trained / "checkpoint.pt")
    for value in (None, "x" if name != "device" else 1):
        write_checkpoint(tmp_path / "checkpoint.pt", state)
        damaged = torch.load(tmp_path / "checkpoint.pt", weights_only=True)
        if value is None:
            del damaged[name]
        else:
            damaged[name] = value
        torch.save(damaged, tmp_path / "checkpoint.pt")
        with pytest.raises(FileFormatError, match=r"checkpoint\.pt"):
            read_checkpoint(tmp_path / "checkpoint.pt")


@pytest.mark.parametrize("name", ["learner", "optimiser", "sampler", "progress", "generator"])
def test_a_checkpoint_of_something_else_is_refused(
    name: str, trained: Path, data_dir: Path, tmp_path: Path
) -> None:
    """Its parts are there, and do not fit the run."""
    run = tmp_path / "run"
    shutil.copytree(trained, run)
    state = read_checkpoint(run / "checkpoint.pt")
    state[name] = torch.zeros(3) if name == "generator" else {"odd": 1}
    if name == "progress":
        state[name] = {"loss_sum": 1}
    write_checkpoint(run / "checkpoint.pt", state)
    with pytest.raises(FileFormatError, match="does not fit this run"):
        train(DONE, folder=run, data_dir=data_dir, resume=True, progress=False)
