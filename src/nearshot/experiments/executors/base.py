"""Executors run jobs: in this process here, on this machine in `local`, on a Ray cluster in `ray`."""

from __future__ import annotations

import os
import socket
import sys
import traceback
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Protocol

from nearshot.errors import InputError, NearshotError
from nearshot.experiments.jobs import InterruptedJobError, Job, LockedRunError, do, run_lock
from nearshot.experiments.results import Results, RunResult
from nearshot.text import print_message
from nearshot.training import Hardware

SECONDS_TO_SAVE = 60.0
SMALLEST_SHARE = 0.01  # of a GPU


class Executor(Protocol):
    """Runs jobs and puts their results into a folder.

    Attributes:
        results: the folder of results.
        runs: the folder of run folders, which are named by the jobs' identities.
        n_sharing: how many jobs share a GPU.
    """

    results: Results
    runs: Path
    n_sharing: int

    @property
    def n_at_once(self) -> int:
        """How many jobs run at once."""

    def start(self, job: Job) -> None:
        """Start a job."""

    def ended(self) -> Iterable[tuple[Job, str | None]]:
        """Yield the jobs that ended since the last call, each with the outcome of `attempt`."""

    def stop(self) -> None:
        """Ask all jobs to save and stop, and wait for them; by default none runs between calls."""
        return

    def close(self) -> None:
        """Release processes that were kept for further jobs; by default there are none."""
        return

    def log_of(self, job: Job) -> Path:
        """Return the path of a job's log."""
        return self.runs / job.id / "log.txt"


class ThisProcess(Executor):
    """Run one job after the other in this process, for small jobs and for debugging."""

    n_at_once = n_sharing = 1

    def __init__(
        self, results: Results, runs: Path, data_dir: str | Path | None = None, hardware: Hardware | None = None
    ) -> None:
        self.results, self.runs, self.data_dir, self.hardware = results, runs, data_dir, hardware
        self._ended: list[tuple[Job, str | None]] = []

    def start(self, job: Job) -> None:
        """Run the job to its end."""
        where = {"data_dir": self.data_dir, "hardware": self.hardware}
        self._ended.append((job, attempt(job, self.runs / job.id, self.results.put, **where, show=False)))  # type: ignore[arg-type]

    def ended(self) -> Iterable[tuple[Job, str | None]]:
        """Yield the jobs that ended."""
        ended, self._ended = self._ended, []
        return ended


def attempt(
    job: Job,
    run_folder: Path,
    keep: Callable[[RunResult], None],
    *,
    data_dir: str | Path | None = None,
    hardware: Hardware | None = None,
    n_sharing: int = 1,
    command: Sequence[str] | None = None,
    show: bool | None = None,
) -> str | None:
    """Do a job as in `do`, holding its lock, and keep the result. Return None, or an error message.

    The message is "" for a job that was stopped and saved, and `LOCKED` if another process holds its lock. The result
    records the command that started the jobs, instead of this process's own.
    """
    before, sys.argv = sys.argv, list(command or sys.argv)
    try:
        with run_lock(run_folder):
            print_message(f"on {socket.gethostname()}, process {os.getpid()}", show=show)
            keep(do(job, run_folder, data_dir=data_dir, hardware=hardware, show=show, n_sharing=n_sharing))
    except NearshotError as error:
        if not isinstance(error, LockedRunError):  # the log of a locked run is another process's
            print_message(error, show=show)
        return "" if isinstance(error, InterruptedJobError) else str(error)
    except Exception as error:  # any error belongs in the log, and the other jobs continue
        traceback.print_exc()
        return f"{type(error).__name__}: {error}"
    finally:
        sys.argv = before
    return None


def check_gpus_per_run(gpus_per_run: float) -> None:
    """Raise an error for a share of a GPU that no job can have."""
    if gpus_per_run != 0 and not SMALLEST_SHARE <= gpus_per_run <= 1:
        raise InputError(f"gpus_per_run must be 0, or between {SMALLEST_SHARE} and 1 (got {gpus_per_run}).")
