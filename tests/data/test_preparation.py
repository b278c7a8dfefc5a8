"""Opening a dataset by name or path, preparing it on the way where that can be done."""

from __future__ import annotations

import os
import tarfile
from pathlib import Path

import pytest
from layouts import class_folders, picture, write_folder

from nearshot.data import Store, open_or_prepare, prepare, prepare_folder, prepare_plan
from nearshot.data.datasets.source import Plan
from nearshot.errors import FileFormatError, InputError

ANIMALS = [f"animal {i}" for i in range(10)]


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    return write_folder(tmp_path / "my-photos", class_folders(ANIMALS, 4))


def test_a_folder_is_prepared_once_and_then_opened(photos: Path, tmp_path: Path) -> None:
    train = open_or_prepare(photos, "train", tmp_path / "d")
    assert (len(train), train.images.shape[1], train.dataset) == (24, 84, "my-photos")
    assert train.manifest["origin"] == str(photos)
    (photos / "animal 0" / "late.png").write_bytes(b"no picture")  # would be an error if it were read
    for dataset in (photos, str(photos), "my-photos"):
        assert open_or_prepare(dataset, "train", tmp_path / "d").fingerprint == train.fingerprint
    assert len(open_or_prepare(photos, "test", tmp_path / "d")) == 8
    with pytest.raises(FileFormatError, match="late.png is not an image"):
        open_or_prepare(photos, "train", tmp_path / "d", side=16)


def test_what_was_prepared_with_options_keeps_them(photos: Path, tmp_path: Path) -> None:
    made = prepare_folder(photos, classes={"train": ANIMALS[:3], "test": ANIMALS[3:]}, data_dir=tmp_path / "d", side=8)
    opened = open_or_prepare(photos, "train", tmp_path / "d")
    assert opened.fingerprint == made["train"].fingerprint
    assert opened.class_names == tuple(ANIMALS[:3])
    with pytest.raises(InputError, match=r"'my-photos' has no split 'val' at side 8; it has \['test', 'train'\]"):
        open_or_prepare(photos, "val", tmp_path / "d")


def test_a_path_with_a_tilde_and_one_from_here(photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(photos)
    first = open_or_prepare("~/my-photos", "train", tmp_path / "d", side=8)
    assert open_or_prepare(".", "train", tmp_path / "d", side=8).fingerprint == first.fingerprint
    assert first.dataset == "my-photos"


@pytest.mark.parametrize(
    ("dataset", "side", "command"),
    [
        ("cifar-fs", None, "nearshot data prepare cifar-fs --data-dir {}"),
        ("mini-imagenet", 84, "nearshot data prepare mini-imagenet --from PATH --data-dir {} --side 84"),
        ("zoo", None, "nearshot data prepare zoo --from PATH --data-dir {}"),
    ],
)
def test_otherwise_the_error_is_the_command(tmp_path: Path, dataset: str, side: int | None, command: str) -> None:
    with pytest.raises(InputError) as caught:
        open_or_prepare(dataset, "train", tmp_path, side=side)
    expected = f"Dataset {dataset!r} is not prepared in {tmp_path}. Run: " + command.format(tmp_path)
    assert str(caught.value) == expected


def test_a_picture_is_never_of_the_other_folder_of_that_name(photos: Path, tmp_path: Path) -> None:
    other = write_folder(tmp_path / "b" / "my-photos", class_folders(ANIMALS[::-1], 4))
    ours = open_or_prepare(photos, "train", tmp_path / "d", side=32)
    first = ANIMALS.index(ours.class_names[0]) * 4
    assert (ours.images[0] == picture(first)).all()
    with pytest.raises(InputError, match="is of .*, not of .* Give it another name"):
        open_or_prepare(other, "train", tmp_path / "d")


def test_an_impossible_side_is_refused_before_anything_is_read(photos: Path, tmp_path: Path) -> None:
    for call in (
        lambda: prepare_folder(photos, data_dir=tmp_path / "d", side=0),
        lambda: prepare("cifar-fs", data_dir=tmp_path / "d", side=0),
        lambda: open_or_prepare(photos, "train", tmp_path / "d", side=0),
    ):
        with pytest.raises(InputError, match="side must be from 1 to 4096, not 0"):
            call()


@pytest.mark.parametrize("name", ["embeddings", "downloads", "Downloads"])
def test_a_dataset_does_not_live_among_other_things(photos: Path, tmp_path: Path, name: str) -> None:
    with pytest.raises(InputError, match=f"cannot have the name '{name}', which is that of the"):
        prepare_folder(photos, name=name, data_dir=tmp_path / "d")
    with pytest.raises(InputError, match=f"cannot have the name '{name}', which is that of the"):
        prepare_plan(name, Plan("", {}), side=8)
    with pytest.raises(InputError, match="has the name of the .* Give it another name: nearshot data prepare NAME"):
        open_or_prepare(photos.rename(tmp_path / name), "train", tmp_path / "d")


def said_of(members: dict[str, bytes], place: Path, capsys: pytest.CaptureFixture[str]) -> str:
    capsys.readouterr()
    prepare_folder(write_folder(place, members), data_dir=place.parent / "d", side=8)
    said = capsys.readouterr().err
    prepare_folder(place, name="silent", data_dir=place.parent / "d", side=8, progress=False)
    assert capsys.readouterr().err == ""
    return said


def test_folders_without_pictures_are_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    members = class_folders(ANIMALS, 2, side=8)
    assert said_of(members, tmp_path / "whole", capsys) == ""
    place = tmp_path / "some"
    for folder in ("unicorn", "deep/below", ".git/objects"):
        (place / folder).mkdir(parents=True)
    assert said_of(members, place, capsys) == (
        f"nearshot: Skipped 3 folders without images in {place}: 'deep', 'deep/below', 'unicorn'.\n"
    )
    archive = tmp_path / "one.tar"
    with tarfile.open(archive, "w") as tar:
        tar.add(tmp_path / "whole", "one")
        tar.add(place / "unicorn", "one/unicorn")
        tar.add(place / "unicorn", "__MACOSX")
    prepare_folder(archive, data_dir=tmp_path / "d", side=8)
    said = capsys.readouterr().err
    assert said == f"nearshot: Skipped 1 folder without images in {archive}: 'one/unicorn'.\n"


@pytest.mark.parametrize(("n_classes", "missing"), [(3, ["val", "test"]), (5, ["val"])])
def test_missing_splits_are_reported(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], n_classes: int, missing: list[str]
) -> None:
    said = said_of(class_folders(ANIMALS[:n_classes], 2, side=8), tmp_path / "few", capsys)
    assert f"{n_classes} classes" in said
    assert [split for split in ("train", "val", "test") if f"no {split!r} split" in said] == missing
    both = {"train": 0.5, "val": 0.0, "test": 0.5}
    prepare_folder(tmp_path / "few", name="asked", fractions=both, data_dir=tmp_path / "e", side=8)
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("packed", [False, True])
def test_names_that_are_no_text_are_written_out(tmp_path: Path, packed: bool) -> None:
    place = write_folder(tmp_path / "cafes", class_folders([*ANIMALS, "日本"], 2, side=8))
    odd = place / os.fsdecode(b"caf\xe9")
    odd.mkdir()
    for number, name in enumerate((b"\xe9.png", b"two\nlines\xc2\x85.png")):
        (odd / os.fsdecode(name)).write_bytes((place / "animal 0" / f"{number}.png").read_bytes())
    source = place
    if packed:
        source = tmp_path / "cafes.tar"
        with tarfile.open(source, "w") as tar:
            tar.add(place, "cafes")
    classes = {"train": [*ANIMALS[:5], "caf\\xe9"], "test": ["日本"]}
    prepare_folder(source, classes=classes, data_dir=tmp_path / "d", side=8)
    store = Store.open("cafes", "train", tmp_path / "d")
    store.verify()
    names = [name for name in store.image_names if "caf\\xe9/" in name]
    assert sorted(name.rpartition("/")[2] for name in names) == ["\\xe9.png", "two\\nlines\\x85.png"]
    assert len(prepare_folder(source, name="by-lot", data_dir=tmp_path / "d", side=8)) == 3
    if not packed:
        write_folder(place, {"caf\\xe9/other.png": (place / "animal 0" / "0.png").read_bytes()})
        with pytest.raises(FileFormatError, match="has two names that both read .* Rename one of them"):
            prepare_folder(place, data_dir=tmp_path / "d", side=8)
