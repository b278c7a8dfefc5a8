"""Two processes that prepare the same dataset at once, one that is killed, and locks."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from layouts import class_folders, write_folder

from nearshot.data import prepare_folder
from nearshot.data.preparation import LOCK
from nearshot.errors import NearshotError
from nearshot.io import FileLock

CLASSES = [f"class {i}" for i in range(6)]
# Stops in the middle of the training split while a file, its gate, exists; prints the fingerprint and the images read.
PROGRAM = """
import sys, threading, time
from pathlib import Path
from nearshot.data import open_or_prepare, prepare_folder, writer
how, photos, data, gate = sys.argv[1:]
writer.IMAGES_PER_STEP = 4
lock, n_read, read = threading.Lock(), 0, writer._read
def counting(*arguments):
    global n_read
    with lock:
        n_read += 1
        number = n_read
    while number > 14 and Path(gate).exists():
        time.sleep(0.01)
    return read(*arguments)
writer._read = counting
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
    """One that is in the middle of its work, and another that waits for it and has said so."""
    first = start("prepare", photos, data, gate)
    end = time.monotonic() + 60
    state = data / "photos" / ".8.partial" / "train" / "state.json"
    while not state.exists() or json.loads(state.read_text())["n_read"] == 0:
        assert first.poll() is None, first.communicate()
        assert time.monotonic() < end
        time.sleep(0.01)
    second = start(how, photos, data)
    assert second.stderr is not None
    said = second.stderr.readline()
    assert "waiting" in said
    assert "'photos'" in said
    return first, second


@pytest.mark.slow
@pytest.mark.parametrize(("how", "killed"), [("prepare", False), ("open", False), ("open", True)])
def test_the_second_waits_and_takes_what_the_first_made(
    photos: Path, gate: Path, tmp_path: Path, how: str, killed: bool
) -> None:
    data = tmp_path / "d"
    first, second = start_two(how, photos, data, gate)
    if killed:
        first.kill()
    else:
        gate.unlink()
    (one, one_said), (other, other_said) = first.communicate(timeout=60), second.communicate(timeout=60)
    fingerprint = prepare_folder(photos, data_dir=tmp_path / "alone", side=8)["train"].fingerprint
    assert one == ("" if killed else f"{fingerprint} 144\n"), one_said
    assert other.split()[0] == fingerprint, other_said
    n_read = int(other.split()[1])
    assert 100 < n_read < 144 if killed else n_read == 0  # the rest, or nothing
    assert (one_said, other_said) == ("", "")
    assert os.listdir(data / "photos") == ["8"]


def test_a_lock_has_one_holder_and_can_be_removed(tmp_path: Path) -> None:
    first, second = FileLock(tmp_path / LOCK), FileLock(tmp_path / LOCK)
    assert (first.acquire(), first.acquire(), second.acquire()) == (True, False, False)
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


def test_a_prepared_dataset_is_used_if_no_lock_can_be_taken(photos: Path, tmp_path: Path) -> None:
    made = prepare_folder(photos, data_dir=tmp_path / "d", side=8)
    lock = tmp_path / "d" / "photos" / LOCK
    lock.mkdir()  # as in a read-only folder, also for a superuser
    with pytest.raises(NearshotError, match=f"{lock} cannot be locked"):
        FileLock(lock).acquire()
    assert prepare_folder(photos, data_dir=tmp_path / "d", side=8)["train"].fingerprint == made["train"].fingerprint
