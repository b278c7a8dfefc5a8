"""The command line, run as a user would."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from layouts import class_folders, write_folder, write_zip
from PIL import Image

from nearshot.cli import main
from nearshot.data import Store

ANIMALS = [f"animal {i}" for i in range(10)]


def run(*arguments: str | Path) -> int:
    return main([str(argument) for argument in arguments])


@pytest.fixture
def zoo(tmp_path: Path) -> Path:
    """A data folder with a dataset of the user's own."""
    members = class_folders(ANIMALS, 4, side=40)
    members["animal 0/twin.png"] = members["animal 1/0.png"]
    source = write_folder(tmp_path / "pictures", members)
    assert run("data", "prepare", "zoo", "--from", source, "--data-dir", tmp_path / "d", "--side", "32") == 0
    return tmp_path / "d"


def test_prepare_and_list(zoo: Path, capsys: pytest.CaptureFixture[str]) -> None:
    capsys.readouterr()
    assert run("data", "prepare", "zoo", "--from", zoo.parent / "pictures", "--data-dir", zoo, "--side", "32") == 0
    shown = capsys.readouterr().out
    assert "zoo train: 24 images of 6 classes, 32×32; fingerprint" in shown
    assert sum(len(Store.open("zoo", split, zoo)) for split in ("train", "val", "test")) == 41
    assert run("data", "list", "--data-dir", zoo) == 0
    shown = capsys.readouterr().out
    for name in ("glyphs", "cifar-fs", "mini-imagenet", "tiered-imagenet", "omniglot"):
        assert name in shown


def test_verify_reports_repeated_pictures(zoo: Path, capsys: pytest.CaptureFixture[str]) -> None:
    capsys.readouterr()
    assert run("data", "verify", "zoo", "--data-dir", zoo) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "zoo: 41 images are as they were written" in shown
    assert "1 pictures occur more than once" in shown
    store = Store.open("zoo", "train", zoo)
    content = bytearray((store.folder / "images.u8").read_bytes())
    content[0] ^= 1
    (store.folder / "images.u8").write_bytes(content)
    assert run("data", "verify", "zoo", "--data-dir", zoo) == 1
    assert "has changed" in capsys.readouterr().err


def test_show_draws_a_contact_sheet(zoo: Path, tmp_path: Path) -> None:
    sheet = tmp_path / "sheet.png"
    assert run("data", "show", "zoo", "--data-dir", zoo, "--output", sheet, "--classes", "3", "--images", "2") == 0
    assert Image.open(sheet).size == (2 * 34 + 2, 3 * 34 + 2)


def test_broken_pictures_can_be_skipped(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = write_zip(tmp_path / "z.zip", class_folders(ANIMALS, 4) | {"animal 3/bad.png": b"not a picture"})
    arguments: list[str | Path] = ["data", "prepare", "zoo", "--from", source, "--data-dir", tmp_path / "d"]
    assert run(*arguments) == 1
    error = " ".join(capsys.readouterr().err.split())
    assert error.startswith("nearshot: animal 3/bad.png is not an image of a known format")
    assert run(*arguments, "--broken", "skip") == 0
    assert "1 broken left out" in " ".join(capsys.readouterr().out.split())


def test_errors_are_one_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cases: list[tuple[list[str | Path], str]] = [
        (["data", "verify", "zoo"], "Dataset 'zoo' is not prepared in"),
        (["data", "prepare", "mini-imagenet"], "Say where the files of 'mini-imagenet' are: images/ with train.csv"),
        (
            ["data", "prepare", "zoo"],
            "'zoo' is no known dataset; for your own pictures, say where they are: --from PATH",
        ),
        (["data", "prepare", "glyphs", "--from", tmp_path], "'glyphs' needs no files; it is made here"),
        (["data", "show", "zoo"], "Dataset 'zoo' is not prepared in"),
        (["data", "prepare", "cifar-fs", "--from", tmp_path / "nowhere"], "There is no file or folder"),
        (["data", "prepare", "cifar-fs", "--from", tmp_path], "lacks 100 classes of CIFAR-FS"),
    ]
    for arguments, message in cases:
        assert run(*arguments, "--data-dir", tmp_path / "d") == 1
        assert message in " ".join(capsys.readouterr().err.split())


def test_the_installed_command_and_its_help() -> None:
    command = [str(Path(sys.executable).parent / "nearshot"), "data", "prepare", "--help"]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    assert "nearshot data prepare cifar-fs --from cifar100.zip" in done.stdout
