"""Stores: what is written comes back, a killed preparation resumes, and damage is found."""

import json
import pickle
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from tests.helpers.layouts import (
    class_folders,
    encoded,
    picture,
    write_folder,
    write_sparse_split,
    write_tar,
    write_zip,
)

from nearshot.data import writer
from nearshot.data.datasets import plan_folder
from nearshot.data.datasets.source import Plan, SourceImage
from nearshot.data.images import Fit
from nearshot.data.preparation import prepare_plan
from nearshot.data.readers import open_files
from nearshot.data.store import Store, data_folder, fingerprint_of, hash_of, prepared_splits
from nearshot.data.writer import Broken, write_splits
from nearshot.errors import FileFormatError, InputError
from nearshot.io import write_json

ANIMALS = [f"animal {i}" for i in range(5)]


def make(tmp_path: Path, side: int = 16) -> dict[str, Store]:
    source = tmp_path / "source"
    if not source.exists():
        write_folder(source, class_folders(ANIMALS, 4))
    plan = plan_folder(open_files(source), classes={"train": ANIMALS[:3], "test": ANIMALS[3:]})
    return prepare_plan("zoo", plan, side=side, data_dir=tmp_path / "d")


def write_split(
    folder: Path,
    images: list[SourceImage],
    *,
    dataset: str = "d",
    side: int = 8,
    fit: Fit = "crop",
    broken: Broken = "refuse",
) -> Store:
    """Write a single split."""
    plan = Plan("", {"s": images})
    return write_splits(folder, plan, dataset=dataset, side=side, fit=fit, broken=broken)["s"]


def test_a_store_is_opened_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = make(tmp_path)["train"]
    store = Store.open("zoo", "train", tmp_path / "d")
    assert store.images.shape == (12, 16, 16, 3)
    assert store.labels.tolist() == [0] * 4 + [1] * 4 + [2] * 4
    assert store.class_names == tuple(ANIMALS[:3])
    assert store.fingerprint == made.fingerprint
    assert store.image_names[0] == "animal 0/0.png"
    assert repr(store) == "<Store zoo train: 12 images of 3 classes, 16×16>"
    monkeypatch.setenv("NEARSHOT_DATA", str(tmp_path / "d"))
    assert Store.open("zoo", "train").fingerprint == made.fingerprint
    monkeypatch.delenv("NEARSHOT_DATA")
    assert data_folder() == Path.home() / ".cache" / "nearshot"
    with pytest.raises((ValueError, TypeError)):
        store.images[0] = 0  # read-only


def test_a_pickled_store_opens_the_same_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make(tmp_path)
    monkeypatch.chdir(tmp_path)
    store = Store.open("zoo", "train", "d")  # a relative path
    pickled = pickle.dumps(store)
    assert store.images[0].tobytes() not in pickled
    monkeypatch.chdir("/")
    again = pickle.loads(pickled)
    assert isinstance(again.images, np.memmap)
    np.testing.assert_array_equal(again.images, store.images)
    again.verify()


def test_errors_of_opening_say_what_is_available(tmp_path: Path) -> None:
    train = make(tmp_path)["train"]
    with pytest.raises(InputError, match="'ark' is not prepared in"):
        Store.open("ark", "train", tmp_path / "d")
    with pytest.raises(InputError, match=r"split .*\['test', 'train'\].*'val'"):
        Store.open("zoo", "val", tmp_path / "d")
    make(tmp_path, side=8)
    with pytest.raises(InputError, match=r"\[16, 8\]"):
        Store.open("zoo", "train", tmp_path / "d")
    assert Store.open("zoo", "train", tmp_path / "d", side=8).images.shape[1] == 8
    train.folder.rename(train.folder.with_name(".train.partial"))  # unfinished
    assert list(prepared_splits("zoo", tmp_path / "d", side=16)) == ["test"]


def test_the_fingerprint_covers_content_and_resizing(tmp_path: Path) -> None:
    def images(seed: int = 0, label: str = "a", name: str = "n") -> list[SourceImage]:
        return [
            SourceImage(label, name, lambda: picture(seed, 10, 20)),
            SourceImage("b", "other", lambda: picture(9, 10, 20)),
        ]

    base = write_split(tmp_path / "0" / "8", images()).fingerprint
    renamed = write_split(tmp_path / "1" / "8", images(), dataset="renamed").fingerprint
    assert renamed == base
    fingerprints = {
        base,
        write_split(tmp_path / "seed" / "8", images(seed=1)).fingerprint,
        write_split(tmp_path / "label" / "8", images(label="c")).fingerprint,
        write_split(tmp_path / "name" / "8", images(name="m")).fingerprint,
        write_split(tmp_path / "order" / "8", images()[::-1]).fingerprint,
        write_split(tmp_path / "side" / "8", images(), side=9).fingerprint,
        write_split(tmp_path / "fit" / "8", images(), fit="stretch").fingerprint,
    }
    assert len(fingerprints) == 7


def test_fingerprints_never_change() -> None:
    """If this fails, results no longer match their splits. Fix the code, not the test."""
    pixels = np.arange(2 * 2 * 3, dtype=np.uint8).reshape(2, 2, 3)
    manifest = {
        "format": "nearshot-store",
        "version": 1,
        "class_names": ["otter"],
        "side": 2,
        "fit": "crop",
        "interpolation": "lanczos",
        "dataset": "of no account",
    }
    hashes = np.stack([hash_of(pixels), hash_of(pixels[:, ::-1])])
    assert hashes[0].tobytes().hex() == "8afe4b29c4b81126697602f01ab96cd9"
    fingerprint = fingerprint_of(manifest, hashes, np.zeros(2, np.int64), ["a.png", "é.png"])
    assert fingerprint == "85efef39a7f6bee8226ceb9468ebcf578549c61ab4d462c8d29e82ef8a5c1952"


def test_content_groups_equal_images(tmp_path: Path) -> None:
    seeds = torch.tensor([1, 2, 1, 3, 2])
    images = []
    for number, seed in enumerate(seeds.tolist()):
        images.append(SourceImage("a", str(number), partial(picture, seed)))
    content = write_split(tmp_path / "8", images, side=32).content
    assert torch.equal(content[:, None] == content, seeds[:, None] == seeds)


@pytest.mark.parametrize(
    ("name", "write"), [("z", write_folder), ("z.zip", write_zip), ("z.tar", write_tar)]
)
def test_a_changed_image_is_packed_when_preparing_again(
    tmp_path: Path, name: str, write: Callable[[Path, Mapping[str, bytes]], Path]
) -> None:
    members = class_folders(ANIMALS, 4)
    content = members["animal 1/2.png"]

    def prepared() -> Store:
        plan = plan_folder(open_files(write(tmp_path / name, members)), classes={"train": ANIMALS})
        return prepare_plan("zoo", plan, side=16, data_dir=tmp_path / "d", broken="skip")["train"]

    members["animal 1/2.png"] = content[:50]
    assert len(prepared()) == 19
    assert "animal 1/2.png is incomplete" in prepared().manifest["broken"][0]
    members["animal 1/2.png"] = content
    repaired = prepared()
    assert len(repaired) == 20
    members["animal 1/2.png"] = members["animal 2/0.png"]
    assert prepared().fingerprint != repaired.fingerprint


def test_verify_finds_what_has_changed(tmp_path: Path) -> None:
    store = make(tmp_path)["train"]
    store.verify()
    file = store.folder / "images.u8"
    data = bytearray(file.read_bytes())
    data[5000] ^= 1
    file.write_bytes(data)
    with pytest.raises(FileFormatError, match=r"Image 6 \(animal 1/2.png\) of .* has changed"):
        Store(store.folder).verify()
    data[5000] ^= 1
    file.write_bytes(data)
    for name in ("labels.npy", "names.txt"):
        content = (store.folder / name).read_bytes()
        changed = content.replace(b"\2", b"\1").replace(b"animal 1/2", b"animal 1/9")
        (store.folder / name).write_bytes(changed)
        with pytest.raises(FileFormatError, match="labels or names of .* have changed"):
            Store(store.folder).verify()
        (store.folder / name).write_bytes(content)


def test_a_damaged_manifest_or_one_of_another_version_is_refused(tmp_path: Path) -> None:
    store = make(tmp_path)["train"]
    manifest = store.folder / "manifest.json"
    content = manifest.read_text()
    for text in (
        "{",
        "[]",
        "{}",
        content.replace("animal 0", "animal 9"),
        content.replace('"side": 16', '"side": 8'),
    ):
        manifest.write_text(text)
        with pytest.raises(FileFormatError, match=r"manifest.json is damaged"):
            Store(store.folder)
    write_json(manifest, store.manifest | {"version": 99})
    with pytest.raises(FileFormatError, match="format 99, this one has 1"):
        Store(store.folder)
    write_json(manifest, {key: store.manifest[key] for key in ("format", "version", "side")})
    with pytest.raises(FileFormatError, match=r"manifest.json is damaged: it lacks .*fingerprint"):
        Store(store.folder)
    with pytest.raises(InputError, match="no prepared dataset in"):
        Store(tmp_path)


@pytest.mark.parametrize("name", ["images.u8", "hashes.bin", "labels.npy"])
def test_a_damaged_file_is_named(tmp_path: Path, name: str) -> None:
    store = make(tmp_path)["train"]
    file = store.folder / name
    content = file.read_bytes()
    for damage in (b"", b"\xff\xfe", content[:-20], None):
        file.unlink() if damage is None else file.write_bytes(damage)
        with pytest.raises(
            FileFormatError, match=f"store is damaged: .*{name} .* Prepare the dataset 'zoo' again"
        ):
            Store(store.folder)
    wrong = (
        np.zeros(11, np.int64),
        np.zeros(12, np.float32),
        np.full(12, 3),
        np.full(12, -1),
        np.zeros((12, 1), int),
    )
    for labels in wrong if name == "labels.npy" else ():
        np.save(file, labels)
        with pytest.raises(FileFormatError, match="store is damaged: .*labels.npy "):
            Store(store.folder)


class Interrupted:
    """Six images, read two at a time; the second is broken, and the fifth interrupts at first."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(writer, "IMAGES_PER_STEP", 2)
        self.folder = folder
        self.numbers_read: list[int] = []
        self.interrupts = True
        self.is_broken = True
        with pytest.raises(KeyboardInterrupt):
            self.write()
        self.interrupts = False

    def _read(self, number: int) -> bytes:
        self.numbers_read.append(number)
        if number == 4 and self.interrupts:
            raise KeyboardInterrupt
        return b"" if number == 1 and self.is_broken else encoded(picture(number, 8))

    def write(self, prefix: str = "", broken: Broken = "skip") -> Store:
        self.numbers_read.clear()
        images = [SourceImage("a", f"{prefix}{i}", partial(self._read, i)) for i in range(6)]
        return write_split(self.folder, images, broken=broken)


@pytest.mark.parametrize("damage", [None, "images.u8", "hashes.bin", "state.json"])
def test_an_interrupted_split_resumes_unless_it_is_damaged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, damage: str | None
) -> None:
    interrupted = Interrupted(tmp_path / "8", monkeypatch)
    partial = tmp_path / ".8.partial" / "s"
    assert json.loads((partial / "state.json").read_text())["n_read"] == 4
    if damage is not None:
        (partial / damage).write_bytes((partial / damage).read_bytes()[:-2])
    else:
        with (partial / "images.u8").open("ab") as file:
            file.write(b"half an image")
    store = interrupted.write()
    assert sorted(interrupted.numbers_read) == ([4, 5] if damage is None else [0, 1, 2, 3, 4, 5])
    assert store.image_names == ["0", "2", "3", "4", "5"]
    expected = np.stack([picture(number, 8) for number in (0, 2, 3, 4, 5)])
    assert np.array_equal(store.images, expected)
    assert len(store.manifest["broken"]) == 1
    store.verify()
    assert interrupted.write().fingerprint == store.fingerprint
    assert interrupted.numbers_read == []  # a finished split is not read again


def test_an_interrupted_split_starts_again_for_other_images_or_if_broken_ones_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    interrupted = Interrupted(tmp_path / "8", monkeypatch)
    with pytest.raises(FileFormatError, match="^1 is not an image"):
        interrupted.write(broken="refuse")
    interrupted.is_broken = False
    assert interrupted.write(broken="refuse").image_names == ["0", "1", "2", "3", "4", "5"]
    other = Interrupted(tmp_path / "9", monkeypatch)
    assert other.write(prefix="other").image_names[0] == "other0"


def test_nothing_to_prepare(tmp_path: Path) -> None:
    images = [SourceImage("a", "x", lambda: b"")]
    with pytest.raises(InputError, match="None of the 0 images of d s"):
        write_split(tmp_path / "8", [])
    with pytest.raises(InputError, match="None of the 1 image of d s"):
        write_split(tmp_path / "8", images, broken="skip")
    with pytest.raises(InputError, match="broken .*'ignore'"):
        write_split(tmp_path / "8", images, broken="ignore")  # type: ignore[arg-type]
    with pytest.raises(InputError, match="side must be from 1 to 4096, not 4097"):
        make(tmp_path, side=4097)
    assert not (tmp_path / "d").exists()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("n_images", "3"),
        ("n_images", -1),
        ("side", 1.5),
        ("side", 1 << 70),
        ("class_names", "ab"),
        ("class_names", [1]),
        ("dataset", None),
        ("split", []),
        ("fingerprint", 1),
    ],
)
def test_a_manifest_with_a_wrong_value_is_an_error(
    name: str, value: object, tmp_path: Path
) -> None:
    folder = write_sparse_split(tmp_path / "train", 3, 4, [])
    file = folder / "manifest.json"
    content = json.loads(file.read_text())
    Store(folder)
    for wrong in ({**content, name: value}, {key: content[key] for key in content if key != name}):
        file.write_text(json.dumps(wrong))
        with pytest.raises(FileFormatError, match=rf"manifest\.json.*{name}"):
            Store(folder)
