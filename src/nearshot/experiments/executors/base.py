"""Executors run jobs: on this machine in `local`, on a Ray cluster in `ray`."""

from __future__ import annotations

import os
import socket
import sys
import traceback
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from nearshot.errors import NearshotError
from nearshot.experiments.jobs import LOCKED, Job, do, run_lock
from nearshot.experiments.results import Results, RunResult
from nearshot.text import print_message
from nearshot.training import Hardware

LOG = "log.txt"  # in a run's folder
SECONDS_TO_SAVE = 60.0


@dataclass(frozen=True)
class JobTask:
    """What another process needs to do a job: absolute paths, the hardware, and the command that asked for it."""

    job: Job
    run_folder: Path
    results: Path
    data_dir: Path | None
    accelerator: str
    n_sharing: int
    command: tuple[str, ...]


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

    def prepare(self, jobs: Iterable[Job]) -> None:
        """Get ready for jobs before any is started; by default there is nothing to do."""
        return

    def submit(self, job: Job) -> Future[str | None]:
        """Start a job; the future's result is that of `attempt`."""

    def stop(self) -> None:
        """Ask all jobs to save and stop, wait for them, and end all processes; by default there are none."""
        return

    def log_of(self, job: Job) -> Path:
        """Return the path of a job's log."""
        return self.runs / job.id / LOG

    def task_of(self, job: Job) -> JobTask:
        """Return what `attempt` needs to do a job in another process."""
        data_dir = None if self.data_dir is None else Path(self.data_dir).absolute()
        folders = (self.runs / job.id).absolute(), self.results.folder.absolute(), data_dir
        return JobTask(job, *folders, self.accelerator, self.n_sharing, tuple(sys.argv))


def attempt(task: JobTask, keep: Callable[[RunResult], None], *, show: bool | None = None) -> str | None:
    """Do the job of a task, holding its lock, and keep the result. Return None, or an error message.

    The message is `STOPPED` for a job that was stopped and saved, and `LOCKED` if another process holds its lock. The
    result records the command that started the jobs, instead of this process's own.
    """
    before, sys.argv = sys.argv, list(task.command)
    where: dict[str, Any] = {"data_dir": task.data_dir, "n_sharing": task.n_sharing}
    try:
        with run_lock(task.run_folder):
            print_message(f"on {socket.gethostname()}, process {os.getpid()}", show=show)
            keep(do(task.job, task.run_folder, hardware=Hardware(task.accelerator), show=show, **where))
    except NearshotError as error:
        if str(error) != LOCKED:  # the log of a locked run is another process's
            print_message(error, show=show)
        return str(error)
    except Exception as error:  # any error belongs in the log, and the other jobs continue
        traceback.print_exc()
        return f"{type(error).__name__}: {error}"
    finally:
        sys.argv = before
    return None
