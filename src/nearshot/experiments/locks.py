"""Per-run lock: one process works on a run at a time, though several commands may need it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from nearshot.errors import InputError, NearshotError
from nearshot.io import FileLock

__all__ = ["LOCKED", "LockedRunError", "is_locked", "run_lock"]

LOCKED = "Another process holds the lock of this run."
LOCK = ".job-lock"  # in a run's folder; the trainer's own lock is not held while the run is measured


class LockedRunError(NearshotError):
    """Another process holds the lock of a run."""


@contextmanager
def run_lock(run_folder: Path) -> Iterator[None]:
    """Hold the lock of a run until its result is written, or until this process ends."""
    try:
        run_folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"The run folder {run_folder} cannot be created: {error.strerror}.") from error
    lock = FileLock(run_folder / LOCK)
    if not lock.acquire():
        raise LockedRunError(LOCKED)
    try:
        yield
    finally:
        lock.release()


def is_locked(run_folder: Path) -> bool:
    """Return whether a process holds the lock of a run."""
    if not (run_folder / LOCK).is_file():
        return False
    lock = FileLock(run_folder / LOCK)
    try:
        is_free = lock.acquire()
    except NearshotError:
        return False  # unknown; starting the run reports the reason
    lock.release()
    return not is_free
