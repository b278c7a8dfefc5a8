"""The command line, run as a user would."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from layouts import class_folders, write_folder, write_zip
from PIL import Image

from nearshot.cli import main
from nearshot.data import SOURCES, Store, prepare
from nearshot.data.datasets.source import standard_splits

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
    assert set(SOURCES) < {line.split(":")[0] for line in shown.splitlines()}  # whole, to be typed again


def test_list_has_your_own(
    zoo: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "500")
    (zoo / "embeddings").mkdir()
    (zoo / "zoo" / "32" / "test" / "manifest.json").write_text("{")
    capsys.readouterr()
    assert run("data", "list", "--data-dir", zoo) == 0
    shown = capsys.readouterr().out
    about = " ".join(shown.partition("\nzoo: ")[2].partition("\nFOLDER")[0].split())
    assert about == (
        "your own, prepared 32×32: train, 24 images of 6 classes; val, 9 images of 2 classes; test, damaged, prepare "
        f"it again. From: {tmp_path / 'pictures'} (one folder per class, classes split at random (seed 0))."
    )
    assert "embeddings" not in shown


def test_a_damaged_store_is_mended_by_the_command_that_is_named(zoo: Path, capsys: pytest.CaptureFixture[str]) -> None:
    prepare_again: list[str | Path] = ["data", "prepare", "zoo", "--from", zoo.parent / "pictures", "--side", "32"]
    for file in ("images.u8", "labels.npy"):
        (zoo / "zoo" / "32" / "train" / file).unlink()
        capsys.readouterr()
        assert run("data", "verify", "zoo", "--data-dir", zoo) == 1
        error = capsys.readouterr().err
        assert "nearshot: The store is damaged: " in error
        assert "Prepare the dataset 'zoo' again." in error
        assert run(*prepare_again, "--data-dir", zoo) == 0
        assert "train is damaged" in capsys.readouterr().err
        assert run("data", "verify", "zoo", "--data-dir", zoo) == 0


def test_one_of_each_is_said_as_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = write_folder(tmp_path / "two", class_folders(["ant", "bee"], 1, side=8))
    assert run("data", "prepare", source, "--data-dir", tmp_path / "d", "--fractions", "0.5", "0", "0.5") == 0
    assert "two train: 1 image of 1 class, 84×84;" in capsys.readouterr().out


def test_verify_reports_repeated_pictures(zoo: Path, capsys: pytest.CaptureFixture[str]) -> None:
    capsys.readouterr()
    assert run("data", "verify", "zoo", "--data-dir", zoo) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "zoo: 41 images are unchanged" in shown
    assert "1 image occurs more than once" in shown
    store = Store.open("zoo", "train", zoo)
    content = bytearray((store.folder / "images.u8").read_bytes())
    content[0] ^= 1
    (store.folder / "images.u8").write_bytes(content)
    assert run("data", "verify", "zoo", "--data-dir", zoo) == 1
    assert "has changed" in capsys.readouterr().err


def test_verify_says_between_which_splits_pictures_are_shared(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    members = class_folders(["ant", "bee", "cat", "dog", "elk", "fox"], 3, side=12)
    for twin, of in (("elk/4.png", "ant/0.png"), ("fox/4.png", "bee/1.png"), ("dog/4.png", "ant/2.png")):
        members[twin] = members[of]
    source = write_folder(tmp_path / "zoo", members)
    lists = {"train": "ant bee", "val": "cat dog", "test": "elk fox"}
    options: list[str | Path] = []
    for split, names in lists.items():
        (tmp_path / f"{split}.txt").write_text(names.replace(" ", "\n"))
        options += [f"--{split}-classes", tmp_path / f"{split}.txt"]
    assert run("data", "prepare", source, "--data-dir", tmp_path / "d", *options) == 0
    assert run("data", "verify", "zoo", "--data-dir", tmp_path / "d") == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert (
        "3 images occur more than once, 3 of them in more than one split: 1 in train and val, 2 in train and test."
    ) in shown


def test_show_draws_a_contact_sheet(zoo: Path, tmp_path: Path) -> None:
    sheet = tmp_path / "sheet.png"
    assert run("data", "show", "zoo", "--data-dir", zoo, "--output", sheet, "--classes", "3", "--images", "2") == 0
    with Image.open(sheet) as image:
        assert image.size == (2 * 34 + 2, 3 * 34 + 2)


def test_unpacked_images_are_those_of_the_store(zoo: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command: list[str | Path] = ["data", "unpack", "zoo", "--data-dir", zoo, "--output", tmp_path / "out"]
    assert run(*command, "--classes", "2", "--images", "2", "--skip", "1") == 0
    assert f"4 images of 2 classes are in {tmp_path / 'out'}." in capsys.readouterr().out.replace("\n", "")
    store = Store.open("zoo", "train", zoo)
    for label in (0, len(store.class_names) - 1):
        members = np.nonzero(store.labels.numpy() == label)[0]
        for number in (1, 2):
            with Image.open(tmp_path / "out" / store.class_names[label] / f"{number}.png") as image:
                assert np.array_equal(np.asarray(image), store.images[members[number]])
    assert len(list((tmp_path / "out").rglob("*.png"))) == 4
    assert run(*command, "--classes", "70") == 1
    assert "must be from 1 to 6" in capsys.readouterr().err


def test_broken_pictures_can_be_skipped(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = write_zip(tmp_path / "z.zip", class_folders(ANIMALS, 4) | {"animal 3/bad.png": b"not a picture"})
    arguments: list[str | Path] = ["data", "prepare", "zoo", "--from", source, "--data-dir", tmp_path / "d"]
    assert run(*arguments) == 1
    error = " ".join(capsys.readouterr().err.split())
    assert error.startswith("nearshot: animal 3/bad.png is not an image of a known format")
    assert run(*arguments, "--broken", "skip") == 0
    assert "1 broken skipped" in " ".join(capsys.readouterr().out.split())


def test_errors_are_one_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cases: list[tuple[list[str | Path], str]] = [
        (["data", "verify", "zoo"], "Dataset 'zoo' is not prepared in"),
        (
            ["data", "prepare", "mini-imagenet"],
            "(--from PATH) must say where the files of 'mini-imagenet' are: images/ with train.csv",
        ),
        (
            ["data", "prepare", "zoo"],
            "'zoo' is no known dataset; for your own images, give --from PATH",
        ),
        (["data", "prepare", "glyphs", "--from", tmp_path], "'glyphs' needs no files; it is made here"),
        (["data", "show", "zoo"], "Dataset 'zoo' is not prepared in"),
        (["data", "prepare", "cifar-fs", "--from", tmp_path / "nowhere"], "There is no file or folder"),
        (["data", "prepare", tmp_path / "nowhere"], "There is no file or folder"),
        (["data", "prepare", tmp_path, "--from", tmp_path], "The images are given twice: as"),
        (["data", "prepare", "omniglot", "--seed", "1"], "--seed is for your own images; it does not apply to 'omni"),
        (
            ["data", "prepare", "cifar-fs", "--fractions", "0.5", "0.5", "0"],
            "--fractions is for your own images; it does not apply to 'cifar-fs'",
        ),
        (["data", "prepare", "glyphs", "--val-classes", "a.txt"], "--val-classes is for your own images"),
        (["data", "prepare", "glyphs", "--rotations"], "--rotations is for omniglot; it does not apply to 'glyphs'"),
        (
            ["data", "prepare", "zoo", "--from", tmp_path, "--omniglot-split", "vinyals"],
            "--omniglot-split is for omniglot; it does not apply to 'zoo'",
        ),
        (["data", "prepare", "cifar-fs", "--from", tmp_path], "lacks 100 classes of CIFAR-FS"),
        (["data", "prepare", tmp_path, "--side", "0"], "side must be from 1 to 4096, not 0."),
        (["data", "prepare", "glyphs", "--side", "0"], "side must be from 1 to 4096, not 0."),
        (
            ["data", "prepare", "Embeddings", "--from", tmp_path],
            "A dataset cannot have the name 'Embeddings', which is that of the kept embeddings in the data folder.",
        ),
        (
            ["data", "prepare", tmp_path / "downloads"],
            "has the name of the downloads in the data folder. Give it another name: nearshot data prepare NAME",
        ),
    ]
    for arguments, message in cases:
        assert run(*arguments, "--data-dir", tmp_path / "d") == 1
        assert message in " ".join(capsys.readouterr().err.split())


def test_the_installed_command_and_its_help() -> None:
    command = [str(Path(sys.executable).parent / "nearshot"), "data", "prepare", "--help"]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    assert "nearshot data prepare cifar-fs --from cifar100.zip" in done.stdout
    assert "nearshot data prepare ./my-photos" in done.stdout


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    """A folder of the user's own, ten classes of four pictures."""
    return write_folder(tmp_path / "my-photos", class_folders(ANIMALS, 4))


def split_classes(dataset: str, data_dir: Path) -> dict[str, tuple[str, ...]]:
    folders = sorted((data_dir / dataset / "84").iterdir())
    return {folder.name: Store(folder).class_names for folder in folders}


def test_a_folder_is_a_dataset_by_its_path(
    photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("NEARSHOT_DATA", str(tmp_path / "d"))
    assert run("data", "prepare", "./my-photos") == 0
    assert "my-photos train: 24 images of 6 classes, 84×84" in capsys.readouterr().out
    for again in ("./my-photos", photos, "my-photos/", "my-photos"):  # the last is the name that it has now
        assert run("data", "verify", again) == 0
        assert "my-photos: 40 images are unchanged" in capsys.readouterr().out
    assert run("data", "show", "./my-photos", "--classes", "2") == 0
    assert (tmp_path / "my-photos-train.png").is_file()


def test_an_archive_is_a_dataset_by_its_path(tmp_path: Path) -> None:
    archive = write_zip(tmp_path / "birds.zip", class_folders(ANIMALS, 2))
    assert run("data", "prepare", archive, "--data-dir", tmp_path / "d") == 0
    assert sum(len(names) for names in split_classes("birds", tmp_path / "d").values()) == 10


def test_two_folders_of_one_name_are_not_mistaken_for_each_other(
    photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Their pictures have the same names, too."""
    other = write_folder(tmp_path / "elsewhere" / "my-photos", class_folders(ANIMALS[::-1], 4))
    assert run("data", "prepare", photos, "--data-dir", tmp_path / "d") == 0
    for command in ("prepare", "verify", "show"):
        capsys.readouterr()
        assert run("data", command, other, "--data-dir", tmp_path / "d") == 1
        error = capsys.readouterr().err
        assert f"The dataset 'my-photos' in {tmp_path / 'd'} is of {photos}, not of {other}." in error
        assert f"nearshot data prepare NAME --from {other}" in error
    assert run("data", "prepare", "others", "--from", other, "--data-dir", tmp_path / "d") == 0
    first, second = (Store.open(name, "train", tmp_path / "d") for name in ("my-photos", "others"))
    assert not np.array_equal(first.images, second.images)


def test_a_folder_with_the_name_of_a_known_dataset(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = write_folder(tmp_path / "glyphs", class_folders(ANIMALS, 2))
    assert run("data", "prepare", source, "--data-dir", tmp_path / "d") == 1
    assert "has the name of a known dataset. Give it another name" in capsys.readouterr().err


def test_a_folder_that_is_here_needs_a_path(
    photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(photos.parent)
    assert run("data", "prepare", "my-photos", "--data-dir", tmp_path / "d") == 1
    assert "--from PATH, or ./my-photos for the folder here." in capsys.readouterr().err


def test_classes_are_split_by_lists(photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    known, new = tmp_path / "known.txt", tmp_path / "new.txt"
    known.write_text("animal 7\n\nanimal 2\n  animal 3\nanimal 2\n")
    new.write_text("animal 0\nanimal 9")
    lists: list[str | Path] = ["--train-classes", known, "--test-classes", new]
    assert run("data", "prepare", photos, "--data-dir", tmp_path / "d", *lists) == 0
    assert split_classes("my-photos", tmp_path / "d") == {
        "train": ("animal 2", "animal 3", "animal 7"),
        "test": ("animal 0", "animal 9"),
    }
    assert len(Store.open("my-photos", "train", tmp_path / "d")) == 12  # a class that is listed twice is there once
    empty = tmp_path / "empty.txt"
    empty.write_text("\n")
    cases: list[tuple[list[str | Path], str]] = [
        ([*lists, "--seed", "1"], "--seed has no effect"),
        ([*lists, "--fractions", "0.5", "0.3", "0.2"], "give either classes or fractions"),
        (["--train-classes", tmp_path / "none.txt"], "none.txt cannot be read"),
        (["--train-classes", empty], "empty.txt is empty"),
        (["--train-classes", known, "--val-classes", known], "is in more than one split"),
        (["--train-classes", known], "was prepared before with a split 'test', which it does not have now"),
    ]
    for options, message in cases:
        assert run("data", "prepare", photos, "--data-dir", tmp_path / "d", *options) == 1
        assert message in capsys.readouterr().err


def test_classes_are_split_by_fractions(photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    where: list[str | Path] = ["--data-dir", tmp_path / "d"]
    assert run("data", "prepare", photos, *where, "--fractions", "0.5", "0.2", "0.3") == 0
    first = split_classes("my-photos", tmp_path / "d")
    assert {split: len(names) for split, names in first.items()} == {"train": 5, "val": 2, "test": 3}
    assert run("data", "prepare", photos, *where, "--fractions", "0.5", "0.2", "0.3", "--seed", "1") == 0
    assert split_classes("my-photos", tmp_path / "d") != first
    for wrong in (["0.5", "0.2", "0.4"], ["nan", "0.2", "0.4"]):
        assert run("data", "prepare", photos, *where, "--fractions", *wrong) == 1
        assert "must be positive and add up to 1" in capsys.readouterr().err


def test_omniglot_in_its_variants_side_by_side(tmp_path: Path) -> None:
    names = [name for split in standard_splits("omniglot-vinyals").values() for name in split]
    source = write_zip(tmp_path / "omniglot.zip", class_folders(names, 1, side=4))
    sizes = {}
    for options in ([], ["--rotations"], ["--omniglot-split", "background"]):
        arguments: list[str | Path] = ["--from", source, "--data-dir", tmp_path / "d", "--side", "4", *options]
        assert run("data", "prepare", "omniglot", *arguments) == 0
    for dataset in sorted(path.name for path in (tmp_path / "d").iterdir()):
        folders = sorted((tmp_path / "d" / dataset / "4").iterdir())
        sizes[dataset] = {folder.name: len(Store(folder).class_names) for folder in folders}
    assert sizes == {
        "omniglot": {"train": 1028, "val": 172, "test": 423},
        "omniglot-rotations": {"train": 4 * 1028, "val": 4 * 172, "test": 4 * 423},
        "omniglot-background": {"train": 964, "test": 659},
    }
    by_name = prepare("omniglot-background", source, data_dir=tmp_path / "e", side=4)["train"]
    assert by_name.fingerprint == Store.open("omniglot-background", "train", tmp_path / "d").fingerprint
