"""The places where jobs run: this process here, this machine in `local`, a Ray cluster in `on_ray`."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Protocol

from nearshot.errors import InputError, NearshotError
from nearshot.experiments.jobs import InterruptedJobError, Job, do
from nearshot.experiments.locks import owning
from nearshot.experiments.results import Results
from nearshot.training import Hardware

__all__ = ["SECONDS_TO_SAVE", "Place", "ThisProcess", "check_gpus_per_run"]

SECONDS_TO_SAVE = 60.0
SMALLEST_SHARE = 0.01  # of a GPU; each training has a process of its own there


class Place(Protocol):
    """Where jobs run: this machine, or a cluster."""

    n_sharing: int
    """How many jobs share a GPU."""

    @property
    def n_at_once(self) -> int:
        """How many jobs to start at once."""

    def start(self, job: Job, run_folder: Path) -> None:
        """Start a job."""

    def ended(self) -> Iterable[tuple[Job, str | None]]:
        """Yield the jobs that have ended since the last call, each with None, or with what went wrong.

        That another process is at it, which is no failure, is `ELSEWHERE`.
        """

    def stop(self) -> None:
        """Ask all jobs to save and stop, and wait for them."""

    def close(self) -> None:
        """Let go of what was kept for further jobs."""

    def log_of(self, job: Job) -> Path:
        """Return where a job's log is."""


class ThisProcess:
    """The process that this runs in: one job after the other, for small ones and for debugging."""

    n_at_once = n_sharing = 1

    def __init__(
        self, results: Results, runs: Path, data_dir: str | Path | None = None, hardware: Hardware | None = None
    ) -> None:
        self.results, self.runs, self.data_dir, self.hardware = results, runs, data_dir, hardware
        self._ended: list[tuple[Job, str | None]] = []

    def start(self, job: Job, run_folder: Path) -> None:
        """Do the job at once."""
        try:
            with owning(run_folder):
                self.results.put(do(job, run_folder, data_dir=self.data_dir, hardware=self.hardware, show=False))
        except InterruptedJobError:
            self._ended.append((job, ""))
        except NearshotError as error:
            self._ended.append((job, str(error)))
        else:
            self._ended.append((job, None))

    def ended(self) -> Iterable[tuple[Job, str | None]]:
        """Yield the jobs that were done."""
        ended, self._ended = self._ended, []
        return ended

    def stop(self) -> None:
        """Nothing runs between calls."""

    def close(self) -> None:
        """Nothing is kept."""

    def log_of(self, job: Job) -> Path:
        """Return where a job's log is: its metrics."""
        return self.runs / job.id / "metrics.jsonl"


def check_gpus_per_run(gpus_per_run: float) -> None:
    """Refuse what no place can give a job."""
    if gpus_per_run != 0 and not SMALLEST_SHARE <= gpus_per_run <= 1:
        raise InputError(
            f"A training takes one GPU, a fraction of one that is not under {SMALLEST_SHARE}, or 0 for none; not "
            f"{gpus_per_run}."
        )
