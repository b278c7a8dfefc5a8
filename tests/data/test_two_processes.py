"""Two processes that prepare the same dataset at once, one that is killed, and stores that are damaged."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from layouts import class_folders, write_folder

from nearshot.data import Store, open_or_prepare, prepare_folder
from nearshot.data.preparation import LOCK
from nearshot.errors import FileFormatError, NearshotError
from nearshot.io import FileLock

CLASSES = [f"class {i}" for i in range(6)]
# Stops in the middle of the training split for as long as there is a file, its gate; says in the end what it has.
PROGRAM = """
import sys, threading, time
from pathlib import Path
from nearshot.data import open_or_prepare, packing, prepare_folder
how, photos, data, gate = sys.argv[1:]
packing.PICTURES_PER_STEP = 4
lock, n_read, read = threading.Lock(), 0, packing._read
def counting(*arguments):
    global n_read
    with lock:
        n_read += 1
        number = n_read
    while number > 110 and Path(gate).exists():
        time.sleep(0.01)
    return read(*arguments)
packing._read = counting
if how == "prepare":
    store = prepare_folder(photos, data_dir=data, side=8)["train"]
else:
    store = open_or_prepare(photos, "train", data, side=8)
store.verify()
print(store.fingerprint, n_read)
"""


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    return write_folder(tmp_path / "photos", class_folders(CLASSES, 24, side=8))


@pytest.fixture
def gate(tmp_path: Path) -> Path:
    (tmp_path / "gate").touch()
    return tmp_path / "gate"


def start(how: str, photos: Path, data: Path, gate: str | Path = "no gate") -> subprocess.Popen[str]:
    command = [sys.executable, "-c", PROGRAM, how, str(photos), str(data), str(gate)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def start_two(how: str, photos: Path, data: Path, gate: Path) -> tuple[subprocess.Popen[str], subprocess.Popen[str]]:
    """One that is in the middle of its work, and another that has just said that it waits for it."""
    first = start("prepare", photos, data, gate)
    end = time.monotonic() + 60
    state = data / "photos" / "8" / ".train.partial" / "state.json"
    while not state.exists() or json.loads(state.read_text())["n_read"] == 0:
        assert first.poll() is None, first.communicate()
        assert time.monotonic() < end
        time.sleep(0.01)
    second = start(how, photos, data)
    assert second.stderr is not None
    assert second.stderr.readline() == f"nearshot: Another process is preparing 'photos' in {data}; waiting for it.\n"
    return first, second


@pytest.mark.parametrize("how", ["prepare", "open"])
def test_the_second_waits_and_takes_what_the_first_made(photos: Path, gate: Path, tmp_path: Path, how: str) -> None:
    data = tmp_path / "d"
    first, second = start_two(how, photos, data, gate)
    gate.unlink()
    (one, one_said), (other, other_said) = first.communicate(timeout=60), second.communicate(timeout=60)
    fingerprint = prepare_folder(photos, data_dir=tmp_path / "alone", side=8)["train"].fingerprint
    assert (one, other) == (f"{fingerprint} 144\n", f"{fingerprint} 0\n"), one_said + other_said
    assert (one_said, other_said) == ("", "")
    assert os.listdir(data / "photos") == ["8"]


def test_a_killed_first_leaves_its_work_to_the_second(photos: Path, gate: Path, tmp_path: Path) -> None:
    data = tmp_path / "d"
    first, second = start_two("open", photos, data, gate)
    first.send_signal(signal.SIGKILL)
    first.communicate()
    output, said = second.communicate(timeout=60)
    fingerprint = prepare_folder(photos, data_dir=tmp_path / "alone", side=8)["train"].fingerprint
    assert (output.split()[0], said) == (fingerprint, "")
    assert 0 < int(output.split()[1]) < 48  # the rest of the training split
    assert len(Store.open("photos", "train", data)) == 48


def test_many_at_once(photos: Path, tmp_path: Path) -> None:
    """Whoever comes in whatever order: all have the same store, and nothing is left over."""
    processes = [start(how, photos, tmp_path / "d") for how in ("open", "prepare", "open")]
    outputs = [process.communicate(timeout=60) for process in processes]
    assert [process.returncode for process in processes] == [0, 0, 0], outputs
    assert sorted(int(output.split()[1]) for output, _ in outputs) == [0, 0, 144]
    assert sorted(os.listdir(tmp_path / "d" / "photos" / "8")) == ["test", "train", "val"]


def test_a_lock_is_had_by_one_and_can_be_removed(tmp_path: Path) -> None:
    first, second = FileLock(tmp_path / LOCK), FileLock(tmp_path / LOCK)
    assert first.acquire()
    assert not first.acquire()
    assert not second.acquire()
    waiting = threading.Thread(target=lambda: second.acquire(wait=True))
    waiting.start()
    time.sleep(0.05)
    first.release(remove=True)
    waiting.join(timeout=10)
    assert not waiting.is_alive()
    assert (tmp_path / LOCK).exists()  # its own, not the one that was removed while it waited
    assert not FileLock(tmp_path / LOCK).acquire()
    second.release()
    assert first.acquire()
    first.release()


def test_what_cannot_be_locked_is_named(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "nowhere" / "file")
    (tmp_path / "circle").symlink_to(tmp_path / "circle")
    names = ["folder", "link", "circle", "missing/file"]
    said = [
        "Is a directory",
        "No such file or directory",
        "Too many levels of symbolic links",
        "No such file or directory",
    ]
    # What is not there, as in a folder that may not be written to, need not be removed.
    advice = ["Remove it if nothing", "Remove it if nothing", "Remove it if nothing", "Choose another folder"]
    for name, reason, what in zip(names, said, advice, strict=True):
        with pytest.raises(NearshotError, match=f"{tmp_path / name} cannot be locked: {reason}. {what}"):
            FileLock(tmp_path / name).acquire()


def test_a_lock_is_let_go_of_where_it_cannot_be_removed(tmp_path: Path) -> None:
    first = FileLock(tmp_path / LOCK)
    assert first.acquire()
    (tmp_path / LOCK).rename(tmp_path / "elsewhere")
    (tmp_path / LOCK).mkdir()
    first.release(remove=True)
    second = FileLock(tmp_path / "elsewhere")
    assert second.acquire()
    second.release()


def test_what_is_prepared_is_used_where_no_lock_can_be_had(photos: Path, tmp_path: Path) -> None:
    made = prepare_folder(photos, data_dir=tmp_path / "d", side=8)
    (tmp_path / "d" / "photos" / LOCK).mkdir()  # as in a folder that cannot be written to, also for a superuser
    assert prepare_folder(photos, data_dir=tmp_path / "d", side=8)["train"].fingerprint == made["train"].fingerprint


DAMAGES: dict[str, Callable[[Path], object]] = {
    "images cut short": lambda folder: os.truncate(folder / "images.u8", 1000),
    "no images": lambda folder: (folder / "images.u8").unlink(),
    "no labels": lambda folder: (folder / "labels.npy").unlink(),
    "no array": lambda folder: (folder / "labels.npy").write_bytes(b"labels"),
    "half a manifest": lambda folder: (folder / "manifest.json").write_text("{"),
    "a list for a manifest": lambda folder: (folder / "manifest.json").write_text("[]"),
    "a manifest with other types": lambda folder: (folder / "manifest.json").write_text(
        json.dumps(json.loads((folder / "manifest.json").read_text()) | {"n_images": "many"})
    ),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_store_is_packed_anew(
    photos: Path, tmp_path: Path, damage: str, capsys: pytest.CaptureFixture[str]
) -> None:
    data = tmp_path / "d"
    made = prepare_folder(photos, data_dir=data, side=8)["train"]
    ways: list[Callable[[], Store]] = [
        lambda: prepare_folder(photos, data_dir=data, side=8)["train"],
        lambda: open_or_prepare(photos, "train", data),
    ]
    for again in ways:
        DAMAGES[damage](made.folder)
        capsys.readouterr()
        store = again()
        store.verify()
        assert store.fingerprint == made.fingerprint
        said = f"What was prepared of photos train in {made.folder} does not open; it is packed anew."
        assert capsys.readouterr().err == f"nearshot: {said}\n"


def test_a_damaged_store_that_was_prepared_with_options_is_not_guessed_at(photos: Path, tmp_path: Path) -> None:
    classes = {"train": CLASSES[:3], "test": CLASSES[3:]}
    made = prepare_folder(photos, classes=classes, data_dir=tmp_path / "d", side=8)["train"]
    (made.folder / "labels.npy").unlink()
    with pytest.raises(FileFormatError) as caught:
        open_or_prepare(photos, "train", tmp_path / "d")
    damage = f"The store is damaged: {made.folder / 'labels.npy'} is missing or damaged."
    command = f"nearshot data prepare {photos} --data-dir {tmp_path / 'd'} --side 8"
    assert str(caught.value) == f"{damage} Prepare the dataset 'photos' again. Run: {command}"
    with pytest.raises(FileFormatError, match=f"Run: nearshot data prepare photos --from {photos} --data-dir"):
        open_or_prepare("photos", "train", tmp_path / "d")
    again = prepare_folder(photos, classes=classes, data_dir=tmp_path / "d", side=8)["train"]
    assert again.fingerprint == made.fingerprint


def test_a_split_of_ones_own_is_never_replaced_by_the_usual_one(photos: Path, tmp_path: Path) -> None:
    """Where no manifest can be read, nothing tells how it was made: neither by another version nor by chance."""
    classes = {"train": CLASSES[:3], "test": CLASSES[3:]}
    stores = prepare_folder(photos, classes=classes, data_dir=tmp_path / "d", side=8)
    for damage, said in (('"version": 99', "another version"), ('"version": "', "damaged")):
        for store in stores.values():
            manifest = store.folder / "manifest.json"
            text = manifest.read_text()
            manifest.write_text(re.sub(r'"version": (1|99)', damage, text))
            assert manifest.read_text() != text
        with pytest.raises(FileFormatError, match=said):
            open_or_prepare(photos, "train", tmp_path / "d")
        assert sorted(os.listdir(tmp_path / "d" / "photos" / "8")) == ["test", "train"]
    with pytest.raises(FileFormatError, match="another version"):
        manifest.write_text(re.sub(r'"version": "', '"version": 99', manifest.read_text()))
        prepare_folder(photos, classes=classes, data_dir=tmp_path / "d", side=8)


def test_what_was_stopped_between_two_splits_goes_on(photos: Path, tmp_path: Path) -> None:
    made = prepare_folder(photos, data_dir=tmp_path / "d", side=8)
    made["train"].folder.rename(tmp_path / "gone")
    assert open_or_prepare(photos, "train", tmp_path / "d").fingerprint == made["train"].fingerprint
