"""What goes wrong ends with one clear sentence, and leaves the last good state."""

from __future__ import annotations

import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from settings import TINY
from torch import Tensor

from nearshot.errors import InputError, NearshotError
from nearshot.losses import nca_loss
from nearshot.training import train
from nearshot.training.checkpoints import CheckpointWriter, read_checkpoint

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
        train(config, folder=tmp_path / "run", data_dir=data_dir, show=False)
    state = read_checkpoint(tmp_path / "run" / "checkpoint.pt")
    assert state["progress"]["epoch"] == 2
    assert all(value.isfinite().all() for value in state["learner"].values())
    assert not (tmp_path / "run" / "result.json").exists()


@pytest.mark.skipif(MOUNT is None or UNMOUNT is None, reason="this system has no mount")
def test_a_full_disk_stops_and_keeps_the_last_checkpoint(tmp_path: Path) -> None:
    """A real full disk: a file system of one mebibyte, where the system lets us make one."""
    assert MOUNT is not None
    assert UNMOUNT is not None
    mount = tmp_path / "small"
    mount.mkdir()
    made = subprocess.run(
        [MOUNT, "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(mount)], capture_output=True, check=False
    )
    if made.returncode:
        pytest.skip("this system does not let us mount a small file system")
    try:
        with (
            pytest.raises(NearshotError, match="The disk is full"),
            CheckpointWriter(mount / "checkpoint.pt") as writer,
        ):
            writer.save({"weights": torch.ones(1000)})
            writer.wait()
            writer.save({"weights": torch.ones(1_000_000)})
        assert read_checkpoint(mount / "checkpoint.pt")["weights"].numel() == 1000
        assert [file.name for file in mount.iterdir()] == ["checkpoint.pt"]
    finally:
        subprocess.run([UNMOUNT, str(mount)], check=True)


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
        writer.save({"weights": weights})
        weights.fill_(1)  # training goes on
    assert not read_checkpoint(tmp_path / "checkpoint.pt")["weights"].any()
