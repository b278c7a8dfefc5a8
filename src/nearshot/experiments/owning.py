"""Whose a training is: one process's at a time, though several commands may want it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from nearshot.errors import InputError, NearshotError

try:
    import fcntl
except ImportError:  # on Windows, where nobody looks
    fcntl = None  # type: ignore[assignment]

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
    with (run_folder / LOCK).open("w") as file:
        if not _locks(file, shared=False):
            raise BusyJobError(ELSEWHERE)
        yield


def is_owned(run_folder: Path) -> bool:
    """Whether a process is at a job."""
    if not (run_folder / LOCK).is_file():
        return False
    with (run_folder / LOCK).open() as file:
        return not _locks(file, shared=True)


def _locks(file: IO[str], *, shared: bool) -> bool:
    """Whether a file can be locked, until it is closed; where there are no locks, it always can."""
    if fcntl is None:
        return True  # type: ignore[unreachable]
    try:
        fcntl.flock(file, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:  # of a file system without locks
        return True
    return True
