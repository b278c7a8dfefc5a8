"""Executors run jobs: in this process here, on this machine in `local`, on a Ray cluster in `ray`."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Protocol

from nearshot.errors import InputError, NearshotError
from nearshot.experiments.jobs import InterruptedJobError, Job, do, run_lock
from nearshot.experiments.results import Results
from nearshot.training import Hardware

__all__ = ["BUSY", "SECONDS_TO_SAVE", "STOPPED", "Executor", "ThisProcess", "check_gpus_per_run"]

SECONDS_TO_SAVE = 60.0
SMALLEST_SHARE = 0.01  # of a GPU
STOPPED, BUSY = 3, 4  # answers of a worker: stopped and saved; another process holds the lock


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
        """Yield the jobs that ended since the last call, each with None or an error message.

        The message is "" for a job that was stopped and saved, and `LOCKED` if another process holds its lock.
        """

    def stop(self) -> None:
        """Ask all jobs to save and stop, and wait for them; by default none runs between calls."""
        return

    def close(self) -> None:
        """Release processes that were kept for further jobs; by default there are none."""
        return

    def log_of(self, job: Job) -> Path:
        """Return the path of a job's log."""


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
        folder, problem = self.runs / job.id, None
        try:
            with run_lock(folder):
                self.results.put(do(job, folder, data_dir=self.data_dir, hardware=self.hardware, show=False))
        except InterruptedJobError:
            problem = ""
        except NearshotError as error:
            problem = str(error)
        self._ended.append((job, problem))

    def ended(self) -> Iterable[tuple[Job, str | None]]:
        """Yield the jobs that ended."""
        ended, self._ended = self._ended, []
        return ended

    def log_of(self, job: Job) -> Path:
        """Return the path of a job's log: its metrics."""
        return self.runs / job.id / "metrics.jsonl"


def check_gpus_per_run(gpus_per_run: float) -> None:
    """Raise an error for a share of a GPU that no job can have."""
    if gpus_per_run != 0 and not SMALLEST_SHARE <= gpus_per_run <= 1:
        raise InputError(f"gpus_per_run must be 0, or between {SMALLEST_SHARE} and 1 (got {gpus_per_run}).")
