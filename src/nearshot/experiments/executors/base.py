"""Executors run jobs: in this process here, on this machine in `local`, on a Ray cluster in `ray`."""

from __future__ import annotations

import os
import socket
import sys
import traceback
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Protocol

from nearshot.errors import NearshotError
from nearshot.experiments.jobs import InterruptedJobError, Job, LockedRunError, do, run_lock
from nearshot.experiments.results import Results, RunResult
from nearshot.text import print_message
from nearshot.training import Hardware

LOG = "log.txt"  # in a run's folder
SECONDS_TO_SAVE = 60.0


class Executor(Protocol):
    """Runs jobs and puts their results into a folder.

    Run folders are named by the jobs' identities. `n_sharing` jobs share a GPU; `accelerator` is as in `Hardware`.
    """

    results: Results
    runs: Path
    data_dir: str | Path | None
    n_sharing: int = 1
    accelerator: str = "auto"

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
        return self.runs / job.id / LOG

    def task_of(self, job: Job) -> dict[str, Any]:
        """Return what `attempt` needs to do a job in another process, as JSON can hold it."""
        return {
            "job": job.as_dict(),
            "run_folder": str((self.runs / job.id).absolute()),
            "results": str(self.results.folder.absolute()),
            "data_dir": None if self.data_dir is None else str(Path(self.data_dir).absolute()),
            "accelerator": self.accelerator,
            "n_sharing": self.n_sharing,
            "command": sys.argv,
        }


class ThisProcess(Executor):
    """Run one job after the other in this process, for small jobs and for debugging."""

    n_at_once = 1

    def __init__(
        self, results: Results, runs: Path, data_dir: str | Path | None = None, hardware: Hardware | None = None
    ) -> None:
        self.results, self.runs, self.data_dir = results, runs, data_dir
        self.accelerator = (hardware or Hardware()).accelerator
        self._ended: list[tuple[Job, str | None]] = []

    def start(self, job: Job) -> None:
        """Run the job to its end."""
        self._ended.append((job, attempt(self.task_of(job), self.results.put, show=False)))

    def ended(self) -> Iterable[tuple[Job, str | None]]:
        """Yield the jobs that ended."""
        ended, self._ended = self._ended, []
        return ended


def attempt(task: dict[str, Any], keep: Callable[[RunResult], None], *, show: bool | None = None) -> str | None:
    """Do the job of a task, holding its lock, and keep the result. Return None, or an error message.

    The message is "" for a job that was stopped and saved, and `LOCKED` if another process holds its lock. The result
    records the command that started the jobs, instead of this process's own.
    """
    job, run_folder, hardware = Job.from_dict(task["job"]), Path(task["run_folder"]), Hardware(task["accelerator"])
    where = {"data_dir": task["data_dir"], "n_sharing": task["n_sharing"]}
    before, sys.argv = sys.argv, list(task["command"])
    try:
        with run_lock(run_folder):
            print_message(f"on {socket.gethostname()}, process {os.getpid()}", show=show)
            keep(do(job, run_folder, hardware=hardware, show=show, **where))
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
