"""Stores: what is written comes back, a killed preparation continues, and damage is found."""

from __future__ import annotations

import json
import os
import pickle
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from layouts import class_folders, encoded, picture, write_folder, write_tar, write_zip

from nearshot.data import writer
from nearshot.data.datasets import plan_folder
from nearshot.data.preparation import open_or_prepare, prepare_plan
from nearshot.data.readers import open_files
from nearshot.data.store import OtherVersionError, Store, data_folder, fingerprint_of, hash_of, prepared_splits
from nearshot.data.writer import Picture, write_splits
from nearshot.errors import FileFormatError, InputError

ANIMALS = [f"animal {i}" for i in range(5)]


def make(tmp_path: Path, side: int = 16, **keywords: object) -> dict[str, Store]:
    source = tmp_path / "source"
    if not source.exists():
        write_folder(source, class_folders(ANIMALS, 4))
    plan = plan_folder(open_files(source), classes={"train": ANIMALS[:3], "test": ANIMALS[3:]})
    return prepare_plan("zoo", plan, side=side, data_dir=tmp_path / "d", **keywords)  # type: ignore[arg-type]


def write_split(folder: Path, pictures: list[Picture], **keywords: Any) -> Store:
    """A split alone."""
    options: dict[str, Any] = {"dataset": "d", "source": "", "side": 8} | keywords
    return write_splits(folder.parent, {folder.name: pictures}, **options)[folder.name]


def test_a_store_is_opened_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = make(tmp_path)["train"]
    store = Store.open("zoo", "train", tmp_path / "d")
    assert store.images.shape == (12, 16, 16, 3)
    assert store.images.dtype == np.uint8
    assert store.labels.tolist() == [0] * 4 + [1] * 4 + [2] * 4
    assert store.class_names == tuple(ANIMALS[:3])
    assert store.fingerprint == made.fingerprint
    assert store.image_names[0] == "animal 0/0.png"
    assert len(store) == 12
    monkeypatch.setenv("NEARSHOT_DATA", str(tmp_path / "d"))
    assert Store.open("zoo", "train").fingerprint == made.fingerprint
    monkeypatch.delenv("NEARSHOT_DATA")
    assert data_folder() == Path.home() / ".cache" / "nearshot"
    with pytest.raises((ValueError, TypeError)):
        store.images[0] = 0  # read-only


def test_a_pickled_store_is_the_same_files_opened_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make(tmp_path)
    monkeypatch.chdir(tmp_path)
    store = Store.open("zoo", "train", "d")  # a path that means something else in another folder
    assert store.image_names
    pickled = pickle.dumps(store)
    assert store.images[0].tobytes() not in pickled
    monkeypatch.chdir("/")
    again = pickle.loads(pickled)
    assert isinstance(again.images, np.memmap)
    np.testing.assert_array_equal(again.images, store.images)
    assert (again.labels.tolist(), again.image_names) == (store.labels.tolist(), store.image_names)
    again.verify(progress=False)


def test_a_store_that_was_prepared_anew_is_not_mistaken_for_the_pickled_one(tmp_path: Path) -> None:
    pickled = pickle.dumps(make(tmp_path)["train"])
    write_folder(tmp_path / "source", {"animal 0/0.png": encoded(picture(99))})
    make(tmp_path)
    with pytest.raises(FileFormatError, match="was prepared anew since this store of it was pickled"):
        pickle.loads(pickled)


def test_opening_says_what_there_is(tmp_path: Path) -> None:
    make(tmp_path)
    with pytest.raises(InputError, match="'ark' is not prepared in"):
        Store.open("ark", "train", tmp_path / "d")
    with pytest.raises(InputError, match=r"no split 'val' at side 16; it has \['test', 'train'\]"):
        Store.open("zoo", "val", tmp_path / "d")
    make(tmp_path, side=8)
    with pytest.raises(InputError, match=r"prepared with sides \[16, 8\]; say which"):
        Store.open("zoo", "train", tmp_path / "d")
    assert Store.open("zoo", "train", tmp_path / "d", side=8).images.shape[1] == 8


def test_a_split_that_was_killed_just_before_its_end_is_not_listed(tmp_path: Path) -> None:
    folder = make(tmp_path)["train"].folder
    folder.rename(folder.with_name(".train.partial"))  # complete, but for its name
    assert list(prepared_splits("zoo", tmp_path / "d")) == ["test"]


def test_the_fingerprint_tells_what_differs(tmp_path: Path) -> None:
    def one(name: str, pictures: list[Picture], **keywords: object) -> str:
        return write_split(tmp_path / name / "s", pictures, **keywords).fingerprint

    def pictures(seed: int = 0, label: str = "a", name: str = "n") -> list[Picture]:
        return [Picture(label, name, lambda: picture(seed, 10, 20)), Picture("b", "other", lambda: picture(9, 10, 20))]

    base = one("0", pictures())
    assert one("1", pictures(), dataset="renamed") == base
    others = [
        one("2", pictures(seed=1)),
        one("3", pictures(label="c")),
        one("4", pictures(name="m")),
        one("5", pictures(), side=9),
        one("6", pictures(), fit="stretch"),
        one("7", pictures()[::-1]),
    ]
    assert len({base, *others}) == 7


def test_fingerprints_are_the_same_for_ever() -> None:
    """If this fails, results no longer fit the splits that they were measured on. Do not change it: mend the code."""
    pixels = np.arange(2 * 2 * 3, dtype=np.uint8).reshape(2, 2, 3)
    manifest = {"format": "nearshot-store", "version": 1, "class_names": ["otter"], "side": 2}
    manifest |= {"fit": "crop", "interpolation": "lanczos", "dataset": "of no account"}
    hashes = np.stack([hash_of(pixels), hash_of(pixels[:, ::-1])])
    assert hashes[0].tobytes().hex() == "8afe4b29c4b81126697602f01ab96cd9"
    found = fingerprint_of(manifest, hashes, np.zeros(2, np.int64), ["a.png", "é.png"])
    assert found == "85efef39a7f6bee8226ceb9468ebcf578549c61ab4d462c8d29e82ef8a5c1952"
    for change in ({"interpolation": "box"}, {"version": 2}, {"format": "other"}):
        other = fingerprint_of(manifest | change, hashes, np.zeros(2, np.int64), ["a.png", "é.png"])
        assert other != found


def test_content_groups_equal_pictures(tmp_path: Path) -> None:
    pictures = [Picture("a", str(i), lambda s=s: picture(s)) for i, s in enumerate([1, 2, 1, 3, 2])]  # type: ignore[misc]
    store = write_split(tmp_path / "s", pictures, side=32)
    assert torch.equal(
        store.content[:, None] == store.content, torch.tensor([1, 2, 1, 3, 2])[:, None] == torch.tensor([1, 2, 1, 3, 2])
    )


def test_preparing_again_changes_nothing(tmp_path: Path) -> None:
    first = make(tmp_path)["train"]
    before = (first.folder / "images.u8").stat().st_mtime_ns
    again = make(tmp_path)["train"]
    assert (again.folder / "images.u8").stat().st_mtime_ns == before
    assert sorted(os.listdir(first.folder)) == ["hashes.bin", "images.u8", "labels.npy", "manifest.json", "names.txt"]


def test_broken_pictures_are_refused_or_skipped_and_listed(tmp_path: Path) -> None:
    members = class_folders(ANIMALS, 4)
    members["animal 1/2.png"] = members["animal 1/2.png"][:50]
    members["animal 2/0.png"] = b"no picture at all"
    plan = plan_folder(open_files(write_zip(tmp_path / "z.zip", members)), classes={"train": ANIMALS})
    with pytest.raises(FileFormatError, match="1/2.png is damaged: .* --broken skip .in Python, broken='skip'"):
        prepare_plan("zoo", plan, side=16, data_dir=tmp_path / "d")
    assert not (tmp_path / "d" / "zoo" / "16" / "train").exists()
    store = prepare_plan("zoo", plan, side=16, data_dir=tmp_path / "d", broken="skip")["train"]
    assert len(store) == 18
    assert "animal 1/2.png" not in store.image_names
    assert len(store.manifest["broken"]) == 2
    assert "animal 2/0.png is not an image of a known format" in store.manifest["broken"][1]
    store.verify()


@pytest.mark.parametrize(("name", "write"), [("z", write_folder), ("z.zip", write_zip), ("z.tar", write_tar)])
def test_a_picture_that_was_changed_or_mended_is_packed_when_preparing_again(
    tmp_path: Path, name: str, write: Callable[[Path, Mapping[str, bytes]], Path]
) -> None:
    members = class_folders(ANIMALS, 4)
    whole = members["animal 1/2.png"]

    def prepared() -> Store:
        plan = plan_folder(open_files(write(tmp_path / name, members)), classes={"train": ANIMALS})
        return prepare_plan("zoo", plan, side=16, data_dir=tmp_path / "d", broken="skip")["train"]

    members["animal 1/2.png"] = whole[:50]
    assert len(prepared()) == 19
    members["animal 1/2.png"] = whole
    mended = prepared()
    assert len(mended) == 20
    members["animal 1/2.png"] = members["animal 2/0.png"]
    assert prepared().fingerprint != mended.fingerprint
    members["animal 1/2.png"] = whole
    assert prepared().fingerprint == mended.fingerprint


def test_what_failed_at_a_broken_picture_goes_on_when_it_is_mended(tmp_path: Path) -> None:
    """Also where nobody says how: a program, or `nearshot train`, opens the folder."""
    members = class_folders([f"animal {i}" for i in range(10)], 4)
    folder = write_folder(tmp_path / "zoo", members)
    (folder / "animal 1" / "2.png").write_bytes(b"broken")
    for _ in range(2):
        with pytest.raises(FileFormatError, match=r"animal 1/2.png"):
            open_or_prepare(folder, "train", tmp_path / "d")
    (folder / "animal 1" / "2.png").write_bytes(members["animal 1/2.png"])
    assert len(open_or_prepare(folder, "train", tmp_path / "d")) == 24
    os.utime(folder / "animal 1" / "2.png")  # nothing but the time is another, and a split is damaged
    (tmp_path / "d" / "zoo" / "84" / "train" / "images.u8").unlink()
    assert len(open_or_prepare(folder, "train", tmp_path / "d")) == 24


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
    np.save(store.folder / "labels.npy", np.zeros(12, np.int64))
    with pytest.raises(FileFormatError, match="labels or names of .* have changed"):
        Store(store.folder).verify()


def test_damaged_stores_are_refused(tmp_path: Path) -> None:
    store = make(tmp_path)["train"]
    images, manifest = store.folder / "images.u8", store.folder / "manifest.json"
    content, text = images.read_bytes(), manifest.read_text()
    images.write_bytes(content[:-1])
    with pytest.raises(FileFormatError, match="missing or cut short. Prepare the dataset 'zoo' again"):
        Store(store.folder)
    images.write_bytes(content)
    hashes = store.folder / "hashes.bin"
    hashes_content = hashes.read_bytes()
    hashes.write_bytes(hashes_content + b"0")
    with pytest.raises(FileFormatError, match="hashes.bin is missing or cut short"):
        Store(store.folder)
    hashes.unlink()
    with pytest.raises(FileFormatError, match="hashes.bin is missing or cut short"):
        Store(store.folder)
    hashes.write_bytes(hashes_content)
    assert len(Store(store.folder)) == 12
    for bad in ("{", "[]", "{}", text.replace("nearshot-store", "other")):
        manifest.write_text(bad)
        with pytest.raises(FileFormatError, match=r"manifest.json is damaged"):
            Store(store.folder)
    for key, wrong in (
        *((key, None) for key in ("version", "dataset", "split", "n_images", "side", "class_names", "broken")),
        ("fingerprint", 3),
        ("n_images", 0),
        ("n_images", "12"),
    ):
        manifest.write_text(json.dumps(json.loads(text) | {key: wrong}))
        with pytest.raises(FileFormatError, match=r"manifest.json is damaged"):
            Store(store.folder)
    for other in (json.loads(text) | {"version": 99}, {"format": "nearshot-store", "version": 99, "made": "otherwise"}):
        manifest.write_text(json.dumps(other))
        with pytest.raises(OtherVersionError, match="another version of nearshot .format 99, this one has 1"):
            Store(store.folder)
    with pytest.raises(InputError, match="no prepared dataset in"):
        Store(tmp_path)


def test_a_missing_file_is_said_to_be_damage(tmp_path: Path) -> None:
    store = make(tmp_path)["train"]
    for name in ("labels.npy", "names.txt"):
        content = (store.folder / name).read_bytes()
        for damage in (b"", b"\xff\xfe"):
            (store.folder / name).write_bytes(damage)
            with pytest.raises(FileFormatError, match=f"store is damaged: .*{name} .* Prepare the dataset 'zoo' again"):
                Store(store.folder).verify()
        (store.folder / name).unlink()
        with pytest.raises(FileFormatError, match=f"store is damaged: .*{name} is missing or damaged. Prepare"):
            Store(store.folder).verify()
        (store.folder / name).write_bytes(content)
    (store.folder / "names.txt").write_text("\n".join(map(str, range(11))))
    with pytest.raises(FileFormatError, match="names.txt has 11 names for 12 images"):
        Store(store.folder).image_names  # noqa: B018
    wrong = (np.zeros(11, np.int64), np.zeros(12, np.float32), np.full(12, 3), np.full(12, -1), np.zeros((12, 1), int))
    for labels in wrong:
        np.save(store.folder / "labels.npy", labels)
        with pytest.raises(FileFormatError, match="store is damaged: .*labels.npy has"):
            Store(store.folder)


def test_what_a_store_is_can_be_seen(tmp_path: Path) -> None:
    assert repr(make(tmp_path)["train"]) == "<Store zoo train: 12 images of 3 classes, 16×16>"
    alone = write_split(tmp_path / "s", [Picture("a", "n", lambda: picture(0))])
    assert repr(alone) == "<Store d s: 1 image of 1 class, 8×8>"


SLOW_PREPARE = """
import sys, time
from pathlib import Path
from nearshot.data import writer
from nearshot.data.writer import Picture, write_splits
from layouts import picture

writer.PICTURES_PER_STEP = 10
def read(i):
    time.sleep(0.002)
    return picture(i, 8)
pictures = [Picture(f"class {i % 3}", str(i), lambda i=i: read(i)) for i in range(400)]
split = Path(sys.argv[1])
write_splits(split.parent, {split.name: pictures}, dataset="d", source="", side=8)
"""


def test_a_killed_preparation_leaves_nothing_finished_and_continues(tmp_path: Path) -> None:
    """Real processes, killed without warning at several moments; the result is that of an undisturbed one."""
    paths = os.pathsep.join([str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")])
    environment = os.environ | {"PYTHONPATH": paths.rstrip(os.pathsep)}
    command = [sys.executable, "-c", SLOW_PREPARE, str(tmp_path / "split")]
    state = tmp_path / ".split.partial" / "state.json"
    reached = 0
    for target in (60, 150, 290):
        process = subprocess.Popen(command, env=environment)
        while process.poll() is None and (
            not state.exists() or json.loads(state.read_text() or "{}")["n_read"] < target
        ):
            time.sleep(0.01)
        process.send_signal(signal.SIGKILL)
        process.wait()
        assert not (tmp_path / "split").exists()
        now = json.loads(state.read_text())["n_read"]
        assert now >= reached
        reached = now
    with (tmp_path / ".split.partial" / "images.u8").open("ab") as file:
        file.write(b"half a picture")
    subprocess.run(command, env=environment, check=True)
    store = Store(tmp_path / "split")
    assert len(store) == 400
    for i in range(400):
        assert np.array_equal(store.images[i], picture(i, 8))
    store.verify()
    assert not (tmp_path / ".split.partial").exists()


def test_another_source_does_not_continue_what_was_begun(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer, "PICTURES_PER_STEP", 2)

    def fail() -> bytes:
        raise KeyboardInterrupt

    def write(names: str, reads: list[object]) -> Store:
        pictures = [Picture("a", names + str(i), read) for i, read in enumerate(reads)]  # type: ignore[arg-type]
        return write_split(tmp_path / "s", pictures)

    def good() -> bytes:
        return encoded(picture(1, 8))

    with pytest.raises(KeyboardInterrupt):
        write("first", [good, good, good, good, fail])
    store = write("second", [good] * 5)
    assert store.image_names == [f"second{i}" for i in range(5)]


@pytest.mark.parametrize("damage", [None, "images.u8", "hashes.bin", "kept.bin", "state.json"])
def test_what_was_begun_goes_on_from_what_is_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, damage: str | None
) -> None:
    """Stopped at the fifth of six pictures, of which the second is broken; two are noted at a time."""
    monkeypatch.setattr(writer, "PICTURES_PER_STEP", 2)
    read: list[int] = []
    stops = [True]

    def reader(number: int) -> bytes:
        read.append(number)
        if number == 4 and stops[0]:
            raise KeyboardInterrupt
        return b"" if number == 1 else encoded(picture(number, 8))

    def write(broken: str) -> Store:
        read.clear()
        pictures = [Picture("a", str(i), lambda i=i: reader(i)) for i in range(6)]  # type: ignore[misc]
        return write_split(tmp_path / "s", pictures, broken=broken)

    with pytest.raises(KeyboardInterrupt):
        write("skip")
    partial = tmp_path / ".s.partial"
    assert json.loads((partial / "state.json").read_text())["n_read"] == 4
    stops[0] = False
    if damage is not None:
        (partial / damage).write_bytes((partial / damage).read_bytes()[:-1])
    store = write("skip")
    assert sorted(read) == ([4, 5] if damage is None else [0, 1, 2, 3, 4, 5])
    assert store.image_names == ["0", "2", "3", "4", "5"]
    for index, number in enumerate((0, 2, 3, 4, 5)):
        assert np.array_equal(store.images[index], picture(number, 8))
    assert len(store.manifest["broken"]) == 1
    store.verify()
    assert write("skip").fingerprint == store.fingerprint
    assert read == []  # what is finished is not read again


def test_what_was_begun_without_broken_pictures_begins_anew_where_they_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writer, "PICTURES_PER_STEP", 2)
    content = [b"", encoded(picture(1, 8)), b"", encoded(picture(3, 8))]

    def fail() -> bytes:
        raise KeyboardInterrupt

    def pictures(*reads: Callable[[], bytes]) -> list[Picture]:
        return [Picture("a", str(i), read) for i, read in enumerate(reads)]

    with pytest.raises(KeyboardInterrupt):
        write_split(tmp_path / "s", pictures(lambda: content[0], lambda: content[1], fail, fail), broken="skip")
    whole = pictures(*(lambda i=i: content[i] for i in range(4)))
    with pytest.raises(FileFormatError, match="^0 is not an image"):
        write_split(tmp_path / "s", whole)
    content[0] = content[2] = encoded(picture(0, 8))
    assert write_split(tmp_path / "s", whole).image_names == ["0", "1", "2", "3"]


def test_nothing_to_prepare(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="d s has no pictures"):
        write_split(tmp_path / "s", [])
    with pytest.raises(InputError, match="broken must be 'refuse' or 'skip', not 'ignore'"):
        write_split(tmp_path / "s", [Picture("a", "x", lambda: b"")], broken="ignore")
    with pytest.raises(InputError, match="none could be read"):
        bad = [Picture("a", "x", lambda: b"")]
        write_split(tmp_path / "s", bad, broken="skip")
    for side in (0, -3, 4097):
        with pytest.raises(InputError, match=f"side must be from 1 to 4096, not {side}"):
            make(tmp_path, side=side)
    assert not (tmp_path / "d").exists()
