"""What goes wrong ends with one clear sentence, and leaves the last good state."""

from __future__ import annotations

import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from settings import TINY
from torch import Tensor

from nearshot.cli import main
from nearshot.errors import FileFormatError, InputError, NearshotError
from nearshot.losses import nca_loss
from nearshot.runs.evaluate import Request, evaluate_run
from nearshot.training import train
from nearshot.training.checkpoint import CheckpointWriter, read_checkpoint

# What else a checkpoint must have.
FILLER: dict[str, object] = dict.fromkeys(("config", "fingerprints", "optimiser", "sampler", "generator", "progress"))
MOUNT, UNMOUNT = shutil.which("mount"), shutil.which("umount")


class BreaksLater:
    """NCA for some steps, then not a number."""

    __name__ = "breaks_later"

    def __init__(self, n_good: int) -> None:
        self.n_left = n_good

    def __call__(self, embeddings: Tensor, labels: Tensor) -> Tensor:
        self.n_left -= 1
        return nca_loss(embeddings, labels) * (1.0 if self.n_left >= 0 else float("nan"))


def test_a_loss_that_is_no_number_stops_and_keeps_the_state_before_it(data_dir: Path, tmp_path: Path) -> None:
    n_steps = len(train(replace(TINY, epochs=1), folder=tmp_path / "count", data_dir=data_dir, show=False).history)
    assert n_steps == 1
    steps = int(read_checkpoint(tmp_path / "count" / "checkpoint.pt")["progress"]["step"])
    config = replace(TINY, epochs=3, method=BreaksLater(steps + 1))
    with pytest.raises(NearshotError, match="The loss is nan in epoch 2"):
        train(config, folder=tmp_path / "run", data_dir=data_dir, checkpoint_seconds=0, show=False)
    state = read_checkpoint(tmp_path / "run" / "checkpoint.pt")
    assert state["progress"]["epoch"] == 2
    assert all(value.isfinite().all() for value in state["learner"].values())
    assert not (tmp_path / "run" / "result.json").exists()


@contextmanager
def small_disk(mount: Path, size: str) -> Iterator[Path]:
    """Mount a file system of some size, where the system lets us."""
    if MOUNT is None or UNMOUNT is None:
        pytest.skip("this system has no mount")
    mount.mkdir()
    command = [MOUNT, "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(mount)]
    if subprocess.run(command, capture_output=True, check=False).returncode:
        pytest.skip("this system does not let us mount a small file system")
    try:
        yield mount
    finally:
        subprocess.run([UNMOUNT, str(mount)], check=True)


def test_a_full_disk_stops_and_keeps_the_last_checkpoint(tmp_path: Path) -> None:
    """A real full disk: a file system of one mebibyte, where the system lets us make one."""
    with small_disk(tmp_path / "small", "1m") as mount:
        with (
            pytest.raises(NearshotError, match="The disk is full"),
            CheckpointWriter(mount / "checkpoint.pt") as writer,
        ):
            writer.save(FILLER | {"learner": {"weights": torch.ones(1000)}})
            writer.wait()
            writer.save(FILLER | {"learner": {"weights": torch.ones(1_000_000)}})
        assert read_checkpoint(mount / "checkpoint.pt")["learner"]["weights"].numel() == 1000
        assert [file.name for file in mount.iterdir()] == ["checkpoint.pt"]


def test_what_is_not_prepared_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="nearshot data prepare cifar-fs"):
        train(replace(TINY, dataset="cifar-fs"), folder=tmp_path / "run", data_dir=tmp_path, show=False)
    assert not (tmp_path / "run").exists()


def test_a_batch_larger_than_the_dataset_is_refused(data_dir: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="A batch of 4096"):
        train(replace(TINY, batch_size=4096), folder=tmp_path / "run", data_dir=data_dir, show=False)


@pytest.mark.skipif(sys.platform == "win32", reason="no such threads there")
def test_writing_goes_on_in_another_thread_and_copies_first(tmp_path: Path) -> None:
    weights = torch.zeros(100_000)
    with CheckpointWriter(tmp_path / "checkpoint.pt") as writer:
        writer.save(FILLER | {"learner": {"weights": weights}})
        weights.fill_(1)  # training goes on
    assert not read_checkpoint(tmp_path / "checkpoint.pt")["learner"]["weights"].any()


def test_weights_that_came_while_a_checkpoint_was_written_are_not_removed(
    data_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a slow disk, the tidying after a checkpoint comes when a later epoch has been the best already."""
    write = CheckpointWriter._write

    def slowly(self: CheckpointWriter, state: dict[str, object], afterwards: Callable[[], None] | None) -> None:
        def later() -> None:
            time.sleep(0.7)
            if afterwards is not None:
                afterwards()

        write(self, state, later)

    monkeypatch.setattr(CheckpointWriter, "_write", slowly)
    config = replace(TINY, epochs=8, validate_every=1)
    result = train(config, folder=tmp_path / "run", data_dir=data_dir, checkpoint_seconds=0.3, show=False)
    files = {file.name for file in (tmp_path / "run" / "weights").iterdir()}
    assert files == {f"epoch-{epoch:04d}.safetensors" for epoch in {*result.best_epochs.values(), 8}}


@pytest.mark.parametrize("method", ["nca", "simpleshot"])
def test_weights_that_are_no_numbers_are_never_saved(method: str, data_dir: Path, tmp_path: Path) -> None:
    config = replace(TINY, method=method, epochs=30, learning_rate=1e12, steps_per_epoch=1, validate_every=30)
    with pytest.raises(NearshotError, match=r"in epoch \d+, so training stopped; .*A lower learning rate"):
        train(config, folder=tmp_path / "run", data_dir=data_dir, checkpoint_seconds=0, show=False)
    if (tmp_path / "run" / "checkpoint.pt").is_file():
        state = read_checkpoint(tmp_path / "run" / "checkpoint.pt")
        assert all(value.isfinite().all() for value in state["learner"].values())


def test_a_full_disk_stops_a_training_with_one_sentence(data_dir: Path, tmp_path: Path) -> None:
    with small_disk(tmp_path / "small", "300k") as mount, pytest.raises(NearshotError, match="The disk is full"):
        train(replace(TINY, epochs=3), folder=mount / "run", data_dir=data_dir, checkpoint_seconds=0, show=False)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["train", "--accelerator", "nope"], "cannot train on"),
        (["train", "--accelerator", "cuda"], "--accelerator must be one that there is"),
        (["train", "--output", "/dev/null/run"], "cannot be made"),
        (["train", "--resume", "--overwrite"], "--resume or --overwrite"),
        (["evaluate", "RUN", "--device", "nope"], "no device 'nope'"),
        (["evaluate", "RUN", "--split", "nope"], "no split 'nope'"),
    ],
)
def test_what_is_asked_for_wrongly_gets_one_sentence(
    arguments: list[str], sentence: str, data_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    if "cuda" in arguments and torch.cuda.is_available():
        pytest.skip("there is one")
    config = replace(TINY, epochs=1)
    if "RUN" in arguments:
        train(config, folder=tmp_path / "run", data_dir=data_dir, show=False)
    given = [str(tmp_path / "run") if argument == "RUN" else argument for argument in arguments]
    if arguments[0] == "train":
        given += ["--dataset", "tiny", "--backbone", "conv4-32", "--batch-size", "32", "--validation-way", "2"]
        given += [] if "--output" in arguments else ["--output", str(tmp_path / "new")]
    assert main([*given, "--data-dir", str(data_dir)]) == 1
    err = capsys.readouterr().err
    assert sentence in err
    assert "Traceback" not in err


@pytest.mark.parametrize(
    ("name", "content"), [("result.json", "{}"), ("config.json", "[]"), ("config.json", '{"epochs": "x"}')]
)
def test_a_damaged_run_is_refused(name: str, content: str, data_dir: Path, tmp_path: Path) -> None:
    train(replace(TINY, epochs=1), folder=tmp_path / "run", data_dir=data_dir, show=False)
    (tmp_path / "run" / name).write_text(content)
    with pytest.raises(FileFormatError, match=name):
        evaluate_run(tmp_path / "run", Request(n_way=2), data_dir=data_dir)
