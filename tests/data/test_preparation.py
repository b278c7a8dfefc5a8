"""Opening a dataset by name or path, preparing it on the way where that can be done."""

import os
import tarfile
from pathlib import Path

import pytest
from tests.helpers.layouts import class_folders, encoded, picture, write_folder

from nearshot.data import Store, open_or_prepare, prepare_folder
from nearshot.errors import FileFormatError, InputError

ANIMALS = [f"animal {i}" for i in range(10)]


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    return write_folder(tmp_path / "my-photos", class_folders(ANIMALS, 4))


def test_a_folder_is_prepared_once_and_then_opened(
    photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(photos)
    train = open_or_prepare("~/my-photos", "train", tmp_path / "d")
    assert (len(train), train.images.shape[1], train.dataset) == (24, 84, "my-photos")
    assert train.manifest["origin"] == str(photos)
    # It would be an error if it were read.
    (photos / "animal 0" / "late.png").write_bytes(b"no image")
    for dataset in (photos, str(photos), "."):
        with pytest.warns(UserWarning, match="has changed.*nearshot data prepare"):
            again = open_or_prepare(dataset, "train", tmp_path / "d")
        assert again.fingerprint == train.fingerprint
    assert len(open_or_prepare("my-photos", "test", tmp_path / "d")) == 8
    with pytest.raises(InputError, match="side must be from 1 to 4096, not 0"):
        open_or_prepare(photos, "train", tmp_path / "d", side=0)
    for _ in range(2):
        with pytest.raises(FileFormatError, match="late.png is not an image"):
            open_or_prepare(photos, "train", tmp_path / "d", side=16)
    # Repaired, it is resumed.
    (photos / "animal 0" / "late.png").write_bytes(encoded(picture(99)))
    assert len(open_or_prepare(photos, "train", tmp_path / "d", side=16)) in (24, 25)


def test_what_was_prepared_with_options_keeps_them(photos: Path, tmp_path: Path) -> None:
    made = prepare_folder(
        photos, classes={"train": ANIMALS[:3], "test": ANIMALS[3:]}, data_dir=tmp_path / "d", side=8
    )
    opened = open_or_prepare(photos, "train", tmp_path / "d")
    assert opened.fingerprint == made["train"].fingerprint
    assert opened.class_names == tuple(ANIMALS[:3])


@pytest.mark.parametrize(
    ("dataset", "side", "command"),
    [
        ("cifar-fs", None, "nearshot data prepare cifar-fs --data-dir {}"),
        (
            "mini-imagenet",
            84,
            "nearshot data prepare mini-imagenet --from PATH --data-dir {} --side 84",
        ),
        ("zoo", None, "nearshot data prepare zoo --from PATH --data-dir {}"),
    ],
)
def test_otherwise_the_error_is_the_command(
    tmp_path: Path, dataset: str, side: int | None, command: str
) -> None:
    with pytest.raises(InputError) as caught:
        open_or_prepare(dataset, "train", tmp_path, side=side)
    assert str(caught.value).endswith(f"Run: {command.format(tmp_path)}")


def test_folders_without_images_are_named(
    photos: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for folder in ("unicorn", "deep/below", ".git/objects"):
        (photos / folder).mkdir(parents=True)
    prepare_folder(photos, data_dir=tmp_path / "d", side=8)
    assert "3 folders" in caplog.text
    assert "'deep', 'deep/below', 'unicorn'" in caplog.text


@pytest.mark.parametrize(("n_classes", "missing"), [(3, ["val", "test"]), (5, ["val"])])
def test_missing_splits_are_reported(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, n_classes: int, missing: list[str]
) -> None:
    folder = write_folder(tmp_path / "few", class_folders(ANIMALS[:n_classes], 2, side=8))
    prepare_folder(folder, data_dir=tmp_path / "d", side=8)
    assert f"{n_classes} classes" in caplog.text
    for split in ("train", "val", "test"):
        assert (f"no {split!r} split" in caplog.text) == (split in missing)


@pytest.mark.parametrize("packed", [False, True])
def test_names_that_are_no_text_are_written_out(tmp_path: Path, packed: bool) -> None:
    folder = write_folder(tmp_path / "cafes", class_folders([*ANIMALS, "日本"], 2, side=8))
    odd = folder / os.fsdecode(b"caf\xe9")
    odd.mkdir()
    for number, name in enumerate((b"\xe9.png", b"two\nlines\xc2\x85.png")):
        (odd / os.fsdecode(name)).write_bytes((folder / "animal 0" / f"{number}.png").read_bytes())
    source = folder
    if packed:
        source = tmp_path / "cafes.tar"
        with tarfile.open(source, "w") as tar:
            tar.add(folder, "cafes")
    classes = {"train": [*ANIMALS[:5], "caf\\xe9"], "test": ["日本"]}
    prepare_folder(source, classes=classes, data_dir=tmp_path / "d", side=8)
    store = Store.open("cafes", "train", tmp_path / "d")
    store.verify()
    names = [name for name in store.image_names if "caf\\xe9/" in name]
    assert sorted(name.rpartition("/")[2] for name in names) == [
        "\\xe9.png",
        "two\\nlines\\x85.png",
    ]
    assert len(prepare_folder(source, name="at-random", data_dir=tmp_path / "d", side=8)) == 3
