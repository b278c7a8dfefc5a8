"""A run that is killed again and again ends as one that never was."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import safetensors.torch
import torch
from settings import TINY

from nearshot.errors import FileFormatError, InputError
from nearshot.training import train
from nearshot.training.checkpoint import read_checkpoint

SCRIPT = Path(__file__).with_name("kill_and_resume.py")


def run_script(data_dir: Path, folder: Path, n_kills: int, *, seed: int = 0, signal: str = "SIGKILL") -> float:
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(SCRIPT.parent), *sys.path])}
    command = [sys.executable, str(SCRIPT), str(data_dir), str(folder), str(n_kills), str(seed), signal]
    subprocess.run(command, check=True, env=environment, timeout=600)
    hit, seconds = (folder / "kills").read_text().split()
    assert int(hit) == n_kills  # each hit a running training
    return float(seconds)


@pytest.fixture(scope="module")
def uninterrupted(data_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "uninterrupted"
    os.environ["WHOLE_RUN_SECONDS"] = str(run_script(data_dir, folder, 0))
    return folder


def check_equal(one: Path, other: Path) -> None:
    """Bitwise the same weights and log, and the same state but for its serialisation."""
    assert (one / "metrics.jsonl").read_bytes() == (other / "metrics.jsonl").read_bytes()
    files = sorted(file.name for file in (one / "weights").iterdir())
    assert files == sorted(file.name for file in (other / "weights").iterdir())
    first, second = (read_checkpoint(folder / "checkpoint.pt") for folder in (one, other))
    assert first.keys() == second.keys()
    for name in ("learner", "optimiser", "sampler", "generator", "log_temperature", "random", "progress"):
        _check_same(first[name], second[name], name)
    for file in files:
        mine, yours = (safetensors.torch.load_file(folder / "weights" / file) for folder in (one, other))
        _check_same(mine, yours, file)


def _check_same(one: object, other: object, where: str) -> None:
    assert type(one) is type(other), where
    if isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor):
        assert torch.equal(one, other), where
    elif isinstance(one, dict) and isinstance(other, dict):
        assert one.keys() == other.keys(), where
        for key in one:
            _check_same(one[key], other[key], f"{where}.{key}")
    elif isinstance(one, list) and isinstance(other, list):
        assert len(one) == len(other), where
        for number, (mine, yours) in enumerate(zip(one, other, strict=True)):
            _check_same(mine, yours, f"{where}[{number}]")
    else:
        assert one == other, where


def test_three_kills_change_nothing(data_dir: Path, uninterrupted: Path) -> None:
    folder = uninterrupted.with_name("killed-three-times")
    run_script(data_dir, folder, 3)
    check_equal(uninterrupted, folder)


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2])
def test_twenty_kills_change_nothing(data_dir: Path, uninterrupted: Path, seed: int) -> None:
    folder = uninterrupted.with_name(f"killed-{seed}-twenty")
    run_script(data_dir, folder, 20, seed=seed)
    check_equal(uninterrupted, folder)


def test_sigterm_saves_in_the_middle_of_an_epoch_and_leaves(data_dir: Path, uninterrupted: Path) -> None:
    folder = uninterrupted.with_name("terminated")
    run_script(data_dir, folder, 3, seed=3, signal="SIGTERM")
    check_equal(uninterrupted, folder)


def test_a_checkpoint_of_another_configuration_is_refused_with_the_difference(data_dir: Path, tmp_path: Path) -> None:
    train(replace(TINY, epochs=1), folder=tmp_path / "run", data_dir=data_dir, show=False)
    with pytest.raises(InputError, match="learning_rate was 0.02 and is now 0.5"):
        train(
            replace(TINY, epochs=1, learning_rate=0.5),
            folder=tmp_path / "run",
            data_dir=data_dir,
            resume=True,
            show=False,
        )


def test_a_checkpoint_of_other_data_is_refused(data_dir: Path, tmp_path: Path) -> None:
    from tiny import prepare_tiny

    prepare_tiny(tmp_path / "other", seed=1)
    config = replace(TINY, epochs=1)
    train(config, folder=tmp_path / "run", data_dir=data_dir, show=False)
    with pytest.raises(InputError, match="other data: the train split"):
        train(config, folder=tmp_path / "run", data_dir=tmp_path / "other", resume=True, show=False)


def test_a_run_is_not_thrown_away_unasked(data_dir: Path, tmp_path: Path) -> None:
    config = replace(TINY, epochs=1)
    train(config, folder=tmp_path / "run", data_dir=data_dir, show=False)
    with pytest.raises(InputError, match="--resume"):
        train(config, folder=tmp_path / "run", data_dir=data_dir, show=False)
    assert train(config, folder=tmp_path / "run", data_dir=data_dir, overwrite=True, show=False).finished


def test_a_finished_run_is_not_begun_anew_where_its_checkpoint_is_gone(data_dir: Path, tmp_path: Path) -> None:
    train(replace(TINY, epochs=1), folder=tmp_path / "run", data_dir=data_dir, show=False)
    (tmp_path / "run" / "checkpoint.pt").unlink()  # as somebody may who needs the room
    files = {path: path.read_bytes() for path in (tmp_path / "run").rglob("*") if path.is_file()}
    for resume in (True, False):
        with pytest.raises(InputError, match=r"is finished, and its checkpoint is gone.* nearshot evaluate .*run meas"):
            train(replace(TINY, epochs=1), folder=tmp_path / "run", data_dir=data_dir, resume=resume, show=False)
    assert {path: path.read_bytes() for path in (tmp_path / "run").rglob("*") if path.is_file()} == files
    train(replace(TINY, epochs=1), folder=tmp_path / "run", data_dir=data_dir, overwrite=True, show=False)


def test_resuming_a_finished_run_gives_its_result(data_dir: Path, tmp_path: Path) -> None:
    config = replace(TINY, epochs=2)
    first = train(config, folder=tmp_path / "run", data_dir=data_dir, show=False)
    again = train(config, folder=tmp_path / "run", data_dir=data_dir, resume=True, show=False)
    assert again.best_epochs == first.best_epochs
    assert again.history == first.history


class Evil:
    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.system, ("touch evil-was-here",)


def test_a_checkpoint_that_would_run_code_is_refused(
    data_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "run").mkdir()
    torch.save({"format": "nearshot-checkpoint", "version": 1, "evil": Evil()}, tmp_path / "run" / "checkpoint.pt")
    with pytest.raises(FileFormatError, match="not a checkpoint"):
        train(TINY, folder=tmp_path / "run", data_dir=data_dir, resume=True, show=False)
    assert not (tmp_path / "evil-was-here").exists()


@pytest.mark.parametrize("content", [b"", b"nonsense", b"PK\x03\x04 half a zip"])
def test_a_damaged_checkpoint_is_refused(content: bytes, tmp_path: Path) -> None:
    file = tmp_path / "checkpoint.pt"
    file.write_bytes(content)
    with pytest.raises(FileFormatError, match="checkpoint"):
        read_checkpoint(file)
