"""A preparation replaces all splits of a dataset or none, and one process at a time prepares."""

import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.helpers.layouts import class_folders, write_folder

from nearshot.cli import main
from nearshot.data import Store, open_or_prepare, prepare_folder
from nearshot.data.preparation import LOCK
from nearshot.data.writer import Broken
from nearshot.errors import FileFormatError, InputError, NearshotError
from nearshot.io import FileLock, read_json

CLASSES = list("abcdef")
A, B, C, D, E, F = CLASSES
NEW = {"train": [A, C], "val": [B, D], "test": [E, F]}
# What is there before NEW is prepared: other splits, the same validation split, one split fewer,
# one more, or nothing.
BEFORE: dict[str, dict[str, list[str]]] = {
    "other": {"train": [D, E], "val": [F, A], "test": [B, C]},
    "same val": {"train": [E, F], "val": [B, D], "test": [A, C]},
    "no val": {"train": [A, D], "test": [E, F]},
    "a fourth": {"train": [A, D], "val": [B], "test": [E, F], "more": [C]},
    "nothing": {},
}
# To open what is there, or to prepare something.
ACTIONS = [None, NEW, BEFORE["other"], BEFORE["same val"]]
FILES = ["hashes.bin", "images.u8", "labels.npy", "manifest.json", "names.txt"]


CHANGES = {"os.rename": 2, "os.remove": 1, "os.rmdir": 1, "os.mkdir": 1, "os.truncate": 1}
WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT


class KilledError(BaseException):
    """The simulated process is dead."""


class Killer:
    """An audit hook that counts the changes below a folder, and prevents all from one on."""

    folder: Path | None = None
    before: int | str = 0
    n_changes = 0
    is_dead = False

    def __call__(self, event: str, arguments: tuple[Any, ...]) -> None:
        if self.folder is None:
            return
        is_change = event in CHANGES or (
            event == "open" and isinstance(arguments[2], int) and arguments[2] & WRITING
        )
        names = arguments[: CHANGES.get(event, 1)] if is_change else ()
        # Some are the numbers of open files.
        texts = [name for name in names if isinstance(name, str | bytes | os.PathLike)]
        paths = [Path(os.fsdecode(text)) for text in texts]
        # shutil.rmtree uses relative paths.
        if any(path.is_relative_to(self.folder) or not path.is_absolute() for path in paths):
            self.n_changes += 1
            self.is_dead |= self.before in (self.n_changes - 1, paths[-1].name)
            if self.is_dead:
                raise KilledError


KILLER = Killer()
sys.addaudithook(KILLER)  # audit hooks cannot be removed


@contextmanager
def killed_before(what: int | str, folder: Path) -> Iterator[list[bool]]:
    """Kill before a change below a folder: the one of that number, or the first of a file's name.

    Yields a list that is not empty in the end if this happened.
    """
    was_killed: list[bool] = []
    KILLER.folder = folder
    KILLER.before = what
    KILLER.n_changes = 0
    KILLER.is_dead = False
    try:
        yield was_killed
    except KilledError:
        was_killed.append(True)
    finally:
        KILLER.folder = None


@pytest.fixture(autouse=True)
def _no_fsync(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "fsync", lambda _: None)


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("source") / "photos"
    return write_folder(folder, class_folders(CLASSES, 2, side=8))


def prepare_as(
    photos: Path, data: Path, classes: dict[str, list[str]], *, broken: Broken = "refuse"
) -> dict[str, str]:
    if not classes:
        data.mkdir(exist_ok=True)
        return {}
    stores = prepare_folder(photos, classes=classes, data_dir=data, side=8, broken=broken)
    return {split: store.fingerprint for split, store in stores.items()}


def opened(open_split: Callable[[str], Store]) -> dict[str, str]:
    """The fingerprints of the splits that open; the others must be missing."""
    fingerprints = {}
    for split in (*NEW, "more"):
        try:
            fingerprints[split] = open_split(split).fingerprint
        except InputError as error:
            assert "not prepared" in str(error) or "split must be one of" in str(error)
    return fingerprints


def assert_complete(data: Path, fingerprints: dict[str, str]) -> None:
    """These splits open, and no other file is left."""
    assert opened(lambda split: Store.open("photos", split, data)) == fingerprints
    assert os.listdir(data / "photos") == ["8"]
    assert sorted(os.listdir(data / "photos" / "8")) == sorted(fingerprints)
    for split in fingerprints:
        assert sorted(os.listdir(data / "photos" / "8" / split)) == FILES
        Store(data / "photos" / "8" / split).verify()


def kill_and_resume(photos: Path, tmp_path: Path, before: str, kill: int | str) -> bool:
    """Kill a preparation, check that the old or the new splits open, and resume.

    Return whether it was killed.
    """
    data = tmp_path / "d"
    copy = tmp_path / "copy"
    for folder in (data, copy):
        shutil.rmtree(folder, ignore_errors=True)
    old = prepare_as(photos, data, BEFORE[before])
    with killed_before(kill, data) as was_killed:
        prepare_as(photos, data, NEW)
    left = opened(lambda split: Store.open("photos", split, data))
    shutil.copytree(data, copy)
    completed = opened(lambda split: open_or_prepare("photos", split, copy))
    new = prepare_as(photos, data, NEW)
    assert left in (old, new, {})  # there are no splits between the two renames
    assert completed in (old, new)
    assert_complete(data, new)
    return bool(was_killed)


@pytest.mark.parametrize("kill", ["images.u8", "manifest.json", ".8.old", "8"])
def test_a_killed_preparation_leaves_the_old_splits_or_the_new_ones(
    photos: Path, tmp_path: Path, kill: str
) -> None:
    assert kill_and_resume(photos, tmp_path, "other", kill)


@pytest.mark.parametrize("before", BEFORE)
def test_a_preparation_that_is_killed_at_every_change(
    photos: Path, tmp_path: Path, before: str
) -> None:
    n_changes = 0
    while kill_and_resume(photos, tmp_path, before, n_changes):
        n_changes += 1
    assert n_changes > 40  # three splits of a dozen files


@settings(
    max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    kills=st.lists(st.tuples(st.sampled_from(ACTIONS), st.integers(0, 120)), min_size=1, max_size=4)
)
def test_killed_again_and_again(photos: Path, tmp_path: Path, kills: list[tuple[Any, int]]) -> None:
    """Opened or prepared, in any order and killed at any change, it is always a whole dataset."""
    shutil.rmtree(tmp_path)
    data = tmp_path / "d"
    copy = tmp_path / "copy"
    complete = [prepare_as(photos, data, classes) for classes in ACTIONS if classes is not None]
    for classes, n_changes in kills:
        with killed_before(n_changes, data):
            if classes is None:
                open_or_prepare("photos", "train", data)
            else:
                prepare_as(photos, data, classes)
        shutil.copytree(data, copy)
        assert opened(lambda split: open_or_prepare("photos", split, copy)) in complete
        shutil.rmtree(copy)
    assert_complete(data, prepare_as(photos, data, NEW))


def test_a_failure_leaves_everything_unchanged(photos: Path, tmp_path: Path) -> None:
    """A training image that cannot be read; then it is skipped, and then repaired."""
    mine = Path(shutil.copytree(photos, tmp_path / "mine" / "photos"))
    old = prepare_as(mine, tmp_path / "d", BEFORE["other"])
    content = (mine / A / "1.png").read_bytes()
    (mine / A / "1.png").write_bytes(b"no image")
    with pytest.raises(FileFormatError, match=r"a/1.png .*broken='skip'"):
        prepare_as(mine, tmp_path / "d", NEW)
    with killed_before(".8.old", tmp_path / "d") as was_killed:
        prepare_as(mine, tmp_path / "d", NEW, broken="skip")
    assert was_killed
    assert opened(lambda split: Store.open("photos", split, tmp_path / "d")) == old
    (mine / A / "1.png").write_bytes(content)
    assert prepare_as(mine, tmp_path / "d", NEW) == prepare_as(photos, tmp_path / "alone", NEW)


def test_splits_of_two_preparations_are_refused_with_the_command(
    photos: Path, tmp_path: Path
) -> None:
    """As if somebody had copied one of them from elsewhere."""
    data = tmp_path / "d"
    folder = data / "photos" / "8"
    prepare_as(photos, data, BEFORE["other"])
    prepare_as(photos, tmp_path / "new", NEW)
    shutil.rmtree(folder / "val")
    shutil.copytree(tmp_path / "new" / "photos" / "8" / "val", folder / "val")
    for dataset, source in ((photos, str(photos)), ("photos", f"photos --from {photos}")):
        with pytest.raises(FileFormatError, match=f"{folder} are of two preparations") as caught:
            open_or_prepare(dataset, "train", data)
        command = f"nearshot data prepare {source} --data-dir {data} --side 8"
        assert str(caught.value).endswith(f"Run: {command}")
    assert main(["data", "verify", "photos", "--data-dir", str(data)]) == 1
    assert_complete(data, prepare_as(photos, data, NEW))


# Stops in the middle of the training split while a file, its gate, exists; prints the fingerprint
# and the images read.
PROGRAM = """
import sys, threading, time
from pathlib import Path
from nearshot.data import open_or_prepare, prepare_folder, writer
how, photos, data, gate = sys.argv[1:]
writer.IMAGES_PER_STEP = 4
lock = threading.Lock()
n_read = 0
read = writer._read
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


def start(
    how: str, photos: Path, data: Path, gate: str | Path = "no gate"
) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", PROGRAM, how, str(photos), str(data), str(gate)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


@pytest.mark.slow
@pytest.mark.parametrize(("how", "killed"), [("prepare", False), ("open", False), ("open", True)])
def test_the_second_waits_and_takes_what_the_first_made(
    tmp_path: Path, how: str, killed: bool
) -> None:
    """The first is in the middle of its work, and the second says that it waits."""
    photos = write_folder(tmp_path / "photos", class_folders(CLASSES, 24, side=8))
    data = tmp_path / "d"
    gate = tmp_path / "gate"
    gate.touch()
    deadline = time.monotonic() + 60
    first = start("prepare", photos, data, gate)
    state = data / "photos" / ".8.partial" / "train" / "state.json"
    while not state.exists() or read_json(state)["n_read"] == 0:
        assert first.poll() is None, first.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.01)
    second = start(how, photos, data)
    assert second.stderr is not None
    message = second.stderr.readline()
    assert "waiting" in message
    assert str(data / "photos") in message
    if killed:
        first.kill()
    else:
        gate.unlink()
    first_output, first_errors = first.communicate(timeout=60)
    second_output, second_errors = second.communicate(timeout=60)
    fingerprint = prepare_folder(photos, data_dir=tmp_path / "alone", side=8)["train"].fingerprint
    assert first_output == ("" if killed else f"{fingerprint} 144\n"), first_errors
    second_fingerprint, n_read = second_output.split()
    assert second_fingerprint == fingerprint, second_errors
    if killed:
        assert 100 < int(n_read) < 144  # the rest
    else:
        assert int(n_read) == 0
    assert first_errors == ""
    assert second_errors == ""
    assert os.listdir(data / "photos") == ["8"]


def test_a_lock_has_one_holder_and_can_be_removed(tmp_path: Path) -> None:
    first = FileLock(tmp_path / LOCK)
    second = FileLock(tmp_path / LOCK)
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


def test_a_lock_is_released_whatever_happens_while_its_file_is_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C at that moment must not leave the lock to this thread for good."""
    lock = FileLock(tmp_path / LOCK)
    assert lock.acquire()
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(Path, "unlink", _interrupt)
        lock.release(remove=True)
    assert FileLock(tmp_path / LOCK).acquire()


def _interrupt(path: Path, missing_ok: bool = False) -> None:
    raise KeyboardInterrupt


def test_a_thread_that_would_wait_for_itself_is_told(tmp_path: Path) -> None:
    holder = FileLock(tmp_path / LOCK)
    assert holder.acquire()
    with pytest.raises(NearshotError, match=str(tmp_path / LOCK)):
        FileLock(tmp_path / LOCK).acquire(wait=True)
    holder.release()


def test_a_prepared_dataset_is_used_if_no_lock_can_be_taken(photos: Path, tmp_path: Path) -> None:
    made = prepare_folder(photos, data_dir=tmp_path / "d", side=8)
    lock = tmp_path / "d" / "photos" / LOCK
    lock.mkdir()  # as in a read-only folder, also for a superuser
    with pytest.raises(NearshotError, match=f"{lock} cannot be locked"):
        FileLock(lock).acquire()
    again = prepare_folder(photos, data_dir=tmp_path / "d", side=8)
    assert again["train"].fingerprint == made["train"].fingerprint
