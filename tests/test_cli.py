"""The command `nearshot data`, run as a user would."""

import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from tests.helpers.layouts import class_folders, write_folder, write_zip

from nearshot.cli import main
from nearshot.data import SOURCES, Store, prepare
from nearshot.data.datasets.source import standard_splits

ANIMALS = [f"animal {i}" for i in range(10)]
Captured = pytest.CaptureFixture[str]


def run(*arguments: str | Path) -> int:
    return main([str(argument) for argument in arguments])


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    """A folder of the user's own: ten classes of four images."""
    return write_folder(tmp_path / "my-photos", class_folders(ANIMALS, 4))


@pytest.fixture
def zoo(tmp_path: Path) -> Path:
    """A data folder with a prepared dataset of the user's own, which has an image twice."""
    members = class_folders(ANIMALS, 4, side=40)
    members["animal 0/twin.png"] = members["animal 1/0.png"]
    source = write_folder(tmp_path / "pictures", members)
    assert (
        run(
            "data", "prepare", "zoo", "--from", source, "--data-dir", tmp_path / "d", "--side", "32"
        )
        == 0
    )
    return tmp_path / "d"


def split_classes(dataset: str, data_dir: Path) -> dict[str, tuple[str, ...]]:
    folders = sorted((data_dir / dataset / "84").iterdir())
    return {folder.name: Store(folder).class_names for folder in folders}


def test_prepare_and_list(zoo: Path, capsys: Captured, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "500")
    assert (
        run(
            "data",
            "prepare",
            "zoo",
            "--from",
            zoo.parent / "pictures",
            "--data-dir",
            zoo,
            "--side",
            "32",
        )
        == 0
    )
    assert "zoo train: 24 images of 6 classes, 32×32" in capsys.readouterr().out
    assert sum(len(Store.open("zoo", split, zoo)) for split in ("train", "val", "test")) == 41
    (zoo / "embeddings").mkdir()
    (zoo / "zoo" / "32" / "test" / "manifest.json").write_text("{")
    assert run("data", "list", "--data-dir", zoo) == 0
    shown = capsys.readouterr().out
    assert {*SOURCES, "zoo"} < {
        line.split(":")[0] for line in shown.splitlines()
    }  # whole, to be copied
    about = " ".join(shown.partition("\nzoo: ")[2].partition("\nFOLDER")[0].split())
    for part in (
        "train, 24 images of 6 classes",
        "val, 9 images of 2",
        "damaged",
        str(zoo.parent / "pictures"),
    ):
        assert part in about
    assert "embeddings" not in shown


def test_a_damaged_store_is_repaired_by_preparing_it_again(zoo: Path) -> None:
    (zoo / "zoo" / "32" / "train" / "labels.npy").unlink()
    assert run("data", "verify", "zoo", "--data-dir", zoo) == 1
    assert (
        run(
            "data",
            "prepare",
            "zoo",
            "--from",
            zoo.parent / "pictures",
            "--side",
            "32",
            "--data-dir",
            zoo,
        )
        == 0
    )
    assert run("data", "verify", "zoo", "--data-dir", zoo) == 0


def test_verify_counts_the_images_that_splits_share(tmp_path: Path, capsys: Captured) -> None:
    members = class_folders(["ant", "bee", "cat", "dog", "elk", "fox"], 3, side=12)
    for twin, of in (
        ("elk/4.png", "ant/0.png"),
        ("fox/4.png", "bee/1.png"),
        ("dog/4.png", "ant/2.png"),
    ):
        members[twin] = members[of]
    source = write_folder(tmp_path / "zoo", members)
    options: list[str | Path] = []
    for split, names in {"train": "ant bee", "val": "cat dog", "test": "elk fox"}.items():
        (tmp_path / f"{split}.txt").write_text(names.replace(" ", "\n"))
        options += [f"--{split}-classes", tmp_path / f"{split}.txt"]
    assert run("data", "prepare", source, "--data-dir", tmp_path / "d", *options) == 0
    assert run("data", "verify", "zoo", "--data-dir", tmp_path / "d") == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "zoo: 21 images" in shown
    assert "2 in train and test, 1 in train and val" in shown


def test_show_draws_a_contact_sheet(zoo: Path, tmp_path: Path) -> None:
    sheet = tmp_path / "sheet.png"
    assert (
        run(
            "data",
            "show",
            "zoo",
            "--data-dir",
            zoo,
            "--output",
            sheet,
            "--n-classes",
            "3",
            "--n-images",
            "2",
        )
        == 0
    )
    with Image.open(sheet) as image:
        assert image.size == (2 * 34 + 2, 3 * 34 + 2)


def test_unpacked_images_are_those_of_the_store(
    zoo: Path, tmp_path: Path, capsys: Captured
) -> None:
    command: list[str | Path] = [
        "data",
        "unpack",
        "zoo",
        "--data-dir",
        zoo,
        "--output",
        tmp_path / "out",
    ]
    assert run(*command, "--n-classes", "2", "--n-images", "2", "--skip", "1") == 0
    assert "4 images of 2 classes" in capsys.readouterr().out
    store = Store.open("zoo", "train", zoo)
    for label in (0, len(store.class_names) - 1):
        members = np.nonzero(store.labels.numpy() == label)[0]
        for number in (1, 2):
            with Image.open(tmp_path / "out" / store.class_names[label] / f"{number}.png") as image:
                assert np.array_equal(np.asarray(image), store.images[members[number]])
    assert len(list((tmp_path / "out").rglob("*.png"))) == 4
    assert run(*command, "--n-classes", "70") == 1
    assert re.search("6.* 70", capsys.readouterr().err)


def test_broken_images_can_be_skipped(tmp_path: Path, capsys: Captured) -> None:
    """In an archive, which is a dataset by its path."""
    source = write_zip(
        tmp_path / "birds.zip", class_folders(ANIMALS, 4) | {"animal 3/bad.png": b"not a picture"}
    )
    arguments: list[str | Path] = ["data", "prepare", source, "--data-dir", tmp_path / "d"]
    assert run(*arguments) == 1
    assert "animal 3/bad.png" in capsys.readouterr().err
    assert run(*arguments, "--broken", "skip") == 0
    assert "1 broken" in " ".join(capsys.readouterr().out.split())
    assert sum(len(names) for names in split_classes("birds", tmp_path / "d").values()) == 10


@pytest.mark.parametrize(
    ("typed", "expected"),
    [
        ("verify zoo", "'zoo'"),
        ("prepare mini-imagenet", "train.csv"),
        ("prepare zoo", "--from"),
        ("prepare glyphs --from FOLDER", "'glyphs'"),
        ("prepare cifar-fs --from FOLDER/nowhere", "nowhere"),
        ("prepare FOLDER --from FOLDER", "paths"),
        ("prepare omniglot --seed 1", "seed"),
        ("prepare glyphs --rotations", "rotations"),
        ("prepare cifar-fs --from FOLDER", "100 classes"),
        ("prepare glyphs --side 0", "side"),
        ("prepare Embeddings --from FOLDER", "'Embeddings'"),
        ("prepare FOLDER/downloads", "downloads"),
        ("prepare FOLDER/glyphs", "known dataset"),
    ],
)
def test_errors_are_one_sentence(
    typed: str, expected: str, tmp_path: Path, capsys: Captured
) -> None:
    (tmp_path / "glyphs").mkdir()
    assert (
        run("data", *typed.replace("FOLDER", str(tmp_path)).split(), "--data-dir", tmp_path / "d")
        == 1
    )
    error = capsys.readouterr().err
    assert error.startswith("nearshot: ")
    assert expected in error


def test_the_installed_command() -> None:
    command = [str(Path(sys.executable).parent / "nearshot"), "--version"]
    assert "nearshot" in subprocess.run(command, check=True, capture_output=True, text=True).stdout


def test_a_folder_is_a_dataset_by_its_path(
    photos: Path, tmp_path: Path, capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("NEARSHOT_DATA", str(tmp_path / "d"))
    assert run("data", "prepare", "my-photos") == 1  # a name: a folder needs a path
    assert "./my-photos" in capsys.readouterr().err
    assert run("data", "prepare", "./my-photos") == 0
    assert "my-photos train: 24 images of 6 classes, 84×84" in capsys.readouterr().out
    for again in (photos, "my-photos/", "my-photos"):  # the last is the name that it has now
        assert run("data", "verify", again) == 0
        assert "my-photos: 40 images" in capsys.readouterr().out


def test_two_folders_of_one_name_are_not_mistaken_for_each_other(
    photos: Path, tmp_path: Path, capsys: Captured
) -> None:
    """Their images have the same names, too."""
    other = write_folder(tmp_path / "elsewhere" / "my-photos", class_folders(ANIMALS[::-1], 4))
    assert run("data", "prepare", photos, "--data-dir", tmp_path / "d") == 0
    for command in ("prepare", "verify"):
        capsys.readouterr()
        assert run("data", command, other, "--data-dir", tmp_path / "d") == 1
        error = capsys.readouterr().err
        assert str(photos) in error
        assert f"nearshot data prepare NAME --from {other}" in error
    assert run("data", "prepare", "others", "--from", other, "--data-dir", tmp_path / "d") == 0
    first, second = (Store.open(name, "train", tmp_path / "d") for name in ("my-photos", "others"))
    assert not np.array_equal(first.images, second.images)


def test_classes_are_split_by_lists(photos: Path, tmp_path: Path, capsys: Captured) -> None:
    known = tmp_path / "known.txt"
    new = tmp_path / "new.txt"
    known.write_text("animal 7\n\nanimal 2\n  animal 3\nanimal 2\n")
    new.write_text("animal 0\nanimal 9")
    lists: list[str | Path] = ["--train-classes", known, "--test-classes", new]
    assert run("data", "prepare", photos, "--data-dir", tmp_path / "d", *lists) == 0
    assert split_classes("my-photos", tmp_path / "d") == {
        "train": ("animal 2", "animal 3", "animal 7"),
        "test": ("animal 0", "animal 9"),
    }
    assert (
        len(Store.open("my-photos", "train", tmp_path / "d")) == 12
    )  # a class that is listed twice is there once
    for wrong, expected in {
        f"--train-classes {known} --fractions 0.5 0.3 0.2": "fractions",
        "--fractions 0.5 0.2 0.4": "fractions",
        "--fractions nan 0.2 0.4": "fractions",
        f"--train-classes {tmp_path / 'none.txt'}": "none.txt",
        f"--train-classes {known} --val-classes {known}": "more than one split",
        "--train-classes /dev/null": "/dev/null is empty",
    }.items():
        assert run("data", "prepare", photos, "--data-dir", tmp_path / "d", *wrong.split()) == 1
        assert expected in capsys.readouterr().err


def test_classes_are_split_by_fractions_and_a_seed(photos: Path, tmp_path: Path) -> None:
    found = []
    for seed in ("0", "1"):
        options = ["--fractions", "0.5", "0.2", "0.3", "--seed", seed]
        assert run("data", "prepare", photos, "--data-dir", tmp_path / "d", *options) == 0
        found.append(split_classes("my-photos", tmp_path / "d"))
        assert {split: len(names) for split, names in found[-1].items()} == {
            "train": 5,
            "val": 2,
            "test": 3,
        }
    assert found[0] != found[1]


@pytest.mark.slow
def test_omniglot_in_its_variants_side_by_side(tmp_path: Path) -> None:
    names = [name for split in standard_splits("omniglot-vinyals").values() for name in split]
    source = write_zip(tmp_path / "omniglot.zip", class_folders(names, 1, side=4))
    for options in ([], ["--rotations"], ["--omniglot-split", "background"]):
        arguments: list[str | Path] = [
            "--from",
            source,
            "--data-dir",
            tmp_path / "d",
            "--side",
            "4",
            *options,
        ]
        assert run("data", "prepare", "omniglot", *arguments) == 0
    names = [path.name for path in (tmp_path / "d").iterdir()]
    n_classes = {name: len(Store.open(name, "train", tmp_path / "d").class_names) for name in names}
    assert n_classes == {
        "omniglot": 1028,
        "omniglot-rotations": 4 * 1028,
        "omniglot-background": 964,
    }
    by_name = prepare("omniglot-background", source, data_dir=tmp_path / "e", side=4)["train"]
    assert (
        by_name.fingerprint
        == Store.open("omniglot-background", "train", tmp_path / "d").fingerprint
    )
