"""Whose a training is: one process's at a time, though several commands may want it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from nearshot.errors import InputError, NearshotError
from nearshot.io import FileLock

__all__ = ["ELSEWHERE", "BusyJobError", "is_owned", "owning"]

ELSEWHERE = "Another process is at this training."
LOCK = ".job-lock"  # in a run's folder; the run's own is held while it trains, and not while it is measured


class BusyJobError(NearshotError):
    """Another process is at a job."""


@contextmanager
def owning(run_folder: Path) -> Iterator[None]:
    """Keep others from a job until its result is written, or until this process ends, however it ends."""
    try:
        run_folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"The run's folder {run_folder} cannot be made: {error.strerror}.") from error
    lock = FileLock(run_folder / LOCK)
    if not lock.acquire():
        raise BusyJobError(ELSEWHERE)
    try:
        yield
    finally:
        lock.release()


def is_owned(run_folder: Path) -> bool:
    """Whether a process is at a job."""
    if not (run_folder / LOCK).is_file():
        return False
    lock = FileLock(run_folder / LOCK)
    try:
        is_free = lock.acquire()
    except NearshotError:
        return False  # nobody can tell; whoever wants the job is told what is wrong
    lock.release()
    return not is_free
