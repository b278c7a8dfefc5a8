"""A failure gives one clear sentence, and leaves the last good state."""

import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from tests.helpers.settings import TINY, change
from torch import Tensor

from nearshot.cli import main
from nearshot.errors import NearshotError
from nearshot.training import Batch, train
from nearshot.training.checkpoint import read_checkpoint, write_checkpoint
from nearshot.training.methods import NCA

n_losses = 0  # that `BreaksLater` has computed


@dataclass(frozen=True)
class BreaksLater(NCA):
    """NCA, whose loss is not finite after 11 steps; an epoch has 6."""

    def loss(self, batch: Batch) -> Tensor:
        global n_losses  # noqa: PLW0603 (settings do not change)
        n_losses += 1
        return super().loss(batch) * (1.0 if n_losses <= 11 else float("nan"))


MOUNT = shutil.which("mount")
UNMOUNT = shutil.which("umount")


def test_a_loss_that_is_not_finite_stops_and_keeps_the_state_before_it(
    data_dir: Path, tmp_path: Path
) -> None:
    config = change(TINY, epochs=3, method=BreaksLater())
    with pytest.raises(NearshotError, match="loss is nan in epoch 2"):
        train(
            config, folder=tmp_path / "run", data_dir=data_dir, checkpoint_seconds=0, progress=False
        )
    state = read_checkpoint(tmp_path / "run" / "checkpoint.pt")
    assert state["progress"]["epoch"] == 2
    assert all(value.isfinite().all() for value in state["learner"].values())
    assert not (tmp_path / "run" / "result.json").exists()


@pytest.mark.parametrize("method", ["nca", "simpleshot"])
def test_weights_that_are_not_finite_are_never_saved(
    method: str, data_dir: Path, tmp_path: Path
) -> None:
    config = change(
        TINY, method=method, epochs=30, learning_rate=1e12, steps_per_epoch=1, validate_every=30
    )
    with pytest.raises(NearshotError, match=r"in epoch \d+.* learning_rate"):
        train(
            config, folder=tmp_path / "run", data_dir=data_dir, checkpoint_seconds=0, progress=False
        )
    if (tmp_path / "run" / "checkpoint.pt").is_file():
        state = read_checkpoint(tmp_path / "run" / "checkpoint.pt")
        assert all(value.isfinite().all() for value in state["learner"].values())


@contextmanager
def small_disk(mount: Path, size: str) -> Iterator[Path]:
    """Mount a file system of some size, where the system allows it."""
    mount.mkdir()
    command = [MOUNT or "", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(mount)]
    if (
        MOUNT is None
        or UNMOUNT is None
        or subprocess.run(command, capture_output=True, check=False).returncode
    ):
        pytest.skip("needs the right to mount a small file system")
    try:
        yield mount
    finally:
        subprocess.run([UNMOUNT, str(mount)], check=True)


def test_a_full_disk_stops_and_keeps_the_last_checkpoint(data_dir: Path, tmp_path: Path) -> None:
    with small_disk(tmp_path / "small", "1m") as mount:
        write_checkpoint(mount / "checkpoint.pt", {"learner": {"weights": torch.ones(1000)}})
        with pytest.raises(NearshotError, match="disk is full"):
            write_checkpoint(
                mount / "checkpoint.pt", {"learner": {"weights": torch.ones(1_000_000)}}
            )
        kept = torch.load(mount / "checkpoint.pt", weights_only=True)
        assert kept["learner"]["weights"].numel() == 1000
        assert [file.name for file in mount.iterdir()] == ["checkpoint.pt"]
    with (
        small_disk(tmp_path / "smaller", "300k") as mount,
        pytest.raises(NearshotError, match="disk is full"),
    ):
        train(
            change(TINY, epochs=3),
            folder=mount / "run",
            data_dir=data_dir,
            checkpoint_seconds=0,
            progress=False,
        )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["train", "--backbone", "resnet11"], "'resnet11'"),
        (["train", "--validation-n-way", "500"], "at most 3"),
        (["train", "--validation-n-shot", "20"], "more than 20 images"),
        (["train", "--graph", "True"], "single GPU"),
        (["train", "--accelerator", "nope"], "cannot train on"),
        (["evaluate", "RUN", "--device", "nope"], "'nope'"),
        (["evaluate", "RUN", "--split", "nope"], "'nope'"),
        (["evaluate", "/dev"], "/dev"),
    ],
)
def test_a_wrong_request_gives_one_sentence(
    arguments: list[str],
    message: str,
    run: Path,
    data_dir: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    given = [str(run) if argument == "RUN" else argument for argument in arguments]
    if arguments[0] == "train":
        settings = [
            "--dataset",
            "tiny",
            "--backbone",
            "conv4-32",
            "--batch-size",
            "32",
            "--validation-n-way",
            "2",
        ]
        given = ["train", *settings, "--output", str(run.with_name("new")), *given[1:]]
        assert main([*given, "--data-dir", str(data_dir), "--dry-run"]) == 1
    assert main([*given, "--data-dir", str(data_dir)]) == 1
    err = capsys.readouterr().err
    assert message in err
    assert err.splitlines()[-1].startswith("nearshot: ")
    assert not run.with_name("new").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--epochs", "0"], "epochs must be an integer of at least 1 (got 0)"),
        (["--epochs", "2.5"], "--epochs"),
        (["--method", "simpleshot", "--temperature", "0.5"], "--temperature"),
        (["--batch-size", "many"], "--batch-size"),
    ],
)
def test_a_wrong_setting_is_shown_in_a_box(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["train", *arguments])
    assert ended.value.code == 2
    assert message in capsys.readouterr().err


def test_an_unknown_option_of_train_is_an_error() -> None:
    with pytest.raises(TypeError, match="fit"):
        train(TINY, fit=("batch_size",))  # type: ignore[call-arg]
