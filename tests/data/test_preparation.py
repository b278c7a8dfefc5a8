"""Opening a dataset by name or path, preparing it on the way where that can be done."""

from __future__ import annotations

from pathlib import Path

import pytest
from layouts import class_folders, picture, write_folder, write_zip

from nearshot.data import open_or_prepare, prepare_folder
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


def test_an_archive_goes_by_its_name_without_suffix(tmp_path: Path) -> None:
    archive = write_zip(tmp_path / "birds.zip", class_folders(ANIMALS, 2))
    assert open_or_prepare(archive, "val", tmp_path / "d", side=8).dataset == "birds"


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
