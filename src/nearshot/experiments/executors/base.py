"""Executors run jobs: on this machine in `local`, on a Ray cluster in `ray`."""

from __future__ import annotations

import os
import socket
import sys
import traceback
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from pathlib import Path

from nearshot.errors import NearshotError
from nearshot.experiments.jobs import LOCKED, Job, JobTask, do, run_lock
from nearshot.experiments.results import Results, RunResult
from nearshot.text import print_message

LOG = "log.txt"  # in a run's folder
SECONDS_TO_SAVE = 60.0


class Executor(ABC):
    """Runs jobs, each in the folder of its identity, and puts their results into a folder.

    `n_sharing` jobs share a GPU; `accelerator` is as in `Hardware`.
    """

    n_at_once: int = 1
    n_sharing: int = 1
    accelerator: str = "auto"

    def __init__(self, results: Results, runs: str | Path, data_dir: str | Path | None = None) -> None:
        self.results, self.runs, self.data_dir = results, Path(runs), data_dir

    def prepare(self, jobs: Iterable[Job]) -> None:  # noqa: B027
        """Get ready for jobs before any is started; by default there is nothing to do."""

    @abstractmethod
    def run(self, job: Job) -> str | None:
        """Do a job and return what `attempt` does; called from several threads at once."""

    def stop(self) -> None:  # noqa: B027
        """Ask all jobs to save and stop, wait for them, and end all processes; by default there are none."""

    def log_of(self, job: Job) -> Path:
        """Return the path of a job's log."""
        return self.runs / job.id / LOG

    def task_of(self, job: Job) -> JobTask:
        """Return what another process needs to do a job, with absolute paths."""
        data_dir = None if self.data_dir is None else Path(self.data_dir).absolute()
        run_folder = (self.runs / job.id).absolute()
        return JobTask(job, run_folder, data_dir, self.accelerator, self.n_sharing, tuple(sys.argv))


def attempt(task: JobTask, keep: Callable[[RunResult], None], *, show: bool | None = None) -> str | None:
    """Do the job of a task, holding its lock, and keep the result. Return None, or an error message.

    The message is `STOPPED` for a job that was stopped and saved, and `LOCKED` if another process holds its lock. The
    result records the command that started the jobs, instead of this process's own.
    """
    before, sys.argv = sys.argv, list(task.command)
    try:
        with run_lock(task.run_folder):
            print_message(f"on {socket.gethostname()}, process {os.getpid()}", show=show)
            keep(do(task, show=show))
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
