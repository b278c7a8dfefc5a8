"""Run jobs on an executor: order, time limit, runs that other processes hold, and progress."""

import math
import signal
import statistics
import sys
import time
from collections.abc import Iterable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from pathlib import Path

from rich.console import Console
from rich.live import Live
from rich.table import Table

from nearshot.paper.executors.base import LOCKED, Executor, is_locked
from nearshot.paper.jobs import Job
from nearshot.text import print_line
from nearshot.training.signals import handling

__all__ = ["Failure", "Outcome", "run_jobs"]

SECONDS_BETWEEN_TABLES = 0.5
# A thread waits for each running job.
MOST_AT_ONCE = 1000


@dataclass(frozen=True)
class Failure:
    """A job that failed: the end of its log, and the path of the rest."""

    job: Job
    text: str
    log: Path


@dataclass
class Outcome:
    """The jobs by how they ended.

    Attributes:
        left: those for which the time was too short, here or in another process.
    """

    done: list[Job] = field(default_factory=list)
    failed: list[Failure] = field(default_factory=list)
    left: list[Job] = field(default_factory=list)


def run_jobs(
    jobs: Sequence[Job], executor: Executor, *, console: Console, minutes: float | None = None
) -> Outcome:
    """Run all jobs that are not done, in their order. A job that fails does not stop the rest.

    After `minutes`, on Ctrl-C and on SIGTERM, the running jobs save and stop, so that the same call
    resumes them.

    A run locked by another process, such as the same command in another window, is skipped, then
    awaited. If that process ends without a result, the job runs here.
    """
    deadline = math.inf if minutes is None else time.monotonic() + 60 * minutes
    progress = _Progress(jobs, executor, console)
    executor.prepare(progress.outcome.left)
    with (
        Live(console=console, refresh_per_second=2, transient=not console.is_terminal) as live,
        # Clusters send SIGTERM.
        handling(_exit, signal.SIGTERM),
        ThreadPoolExecutor(MOST_AT_ONCE) as threads,
    ):
        try:
            while progress.outcome.left and time.monotonic() < deadline:
                progress.start_jobs(threads)
                live.update(progress.table())
                if not progress.running:
                    time.sleep(SECONDS_BETWEEN_TABLES)
                ended = wait(progress.running, SECONDS_BETWEEN_TABLES, FIRST_COMPLETED).done
                progress.end_jobs(ended)
        finally:
            # No process stays behind, whatever ended this.
            executor.stop()
    # Some jobs were done while the others stopped.
    progress.end_jobs([future for future in progress.running if future.result() is None])
    return progress.outcome


def _exit(number: int, frame: object) -> None:
    """End the program because of a signal, as Ctrl-C does."""
    sys.exit(128 + number)


@dataclass(frozen=True)
class _RunningJob:
    job: Job
    started: float


class _Progress:
    """Jobs that ended, run, or are left."""

    def __init__(self, jobs: Sequence[Job], executor: Executor, console: Console) -> None:
        self.n_jobs = len(jobs)
        self.executor = executor
        self.console = console
        self.outcome = Outcome()
        for job in jobs:
            if job.is_done(executor.results):
                self.outcome.done.append(job)
            else:
                self.outcome.left.append(job)
        self.running: dict[Future[str | None], _RunningJob] = {}
        self.were_locked: set[str] = set()
        self.durations: list[float] = []

    def start_jobs(self, threads: ThreadPoolExecutor) -> None:
        """Start jobs for which there is room.

        Those that other processes hold, and those whose teacher is not trained yet, wait.
        """
        running_ids = {running.job.id for running in self.running.values()}
        failed_ids = {failure.job.id for failure in self.outcome.failed}
        left_ids = {job.id for job in self.outcome.left}
        for job in list(self.outcome.left):
            if job.id in running_ids or job.after in left_ids:
                continue
            if job.after in failed_ids:
                self._end(job, "The run of its teacher failed.", "without its teacher")
                continue
            if len(self.running) >= self.executor.n_at_once:
                return
            if job.is_done(self.executor.results):
                self._end(job, None, "by another process")
            elif not is_locked(self.executor.runs / job.id):
                future = threads.submit(self.executor.run, job)
                self.running[future] = _RunningJob(job, time.monotonic())
            elif job.id not in self.were_locked:
                print_line(
                    self.console, f"{job.name} is locked by another process; waiting for it."
                )
                self.were_locked.add(job.id)

    def end_jobs(self, futures: Iterable[Future[str | None]]) -> None:
        """Note how some jobs ended."""
        for future in futures:
            running = self.running.pop(future)
            seconds = time.monotonic() - running.started
            problem = future.result()
            # A locked job stays among those that are left.
            if problem != LOCKED:
                self.durations.append(seconds)
                self._end(running.job, problem, f"in {seconds:.0f} s")

    def _end(self, job: Job, problem: str | None, how: str) -> None:
        self.outcome.left.remove(job)
        if problem is None:
            self.outcome.done.append(job)
        else:
            self.outcome.failed.append(Failure(job, problem, self.executor.log_of(job)))
        # A terminal shows the live table instead.
        if not self.console.is_terminal:
            state = "done" if problem is None else "failed"
            n_done = len(self.outcome.done)
            print_line(self.console, f"{n_done}/{self.n_jobs}: {job.name} {state} {how}")

    def table(self) -> Table:
        """Return a table of the running jobs."""
        table = Table(title=self._summary())
        for heading in ("running", "for", "since", "last message"):
            table.add_column(heading, overflow="ellipsis", no_wrap=heading != "running")
        for running in self.running.values():
            seconds = time.monotonic() - running.started
            log = self.executor.log_of(running.job)
            lines = log.read_text(errors="replace").splitlines() if log.is_file() else []
            table.add_row(
                running.job.name,
                ", ".join(running.job.recipes),
                f"{seconds:.0f} s",
                lines[-1][:80] if lines else "",
            )
        return table

    def _summary(self) -> str:
        n_left = len(self.outcome.left)
        parts = [
            f"{len(self.outcome.done)} done",
            f"{len(self.running)} running",
            f"{n_left - len(self.running)} left",
        ]
        if self.outcome.failed:
            parts.append(f"{len(self.outcome.failed)} failed")
        if self.durations:
            seconds = statistics.fmean(self.durations) * n_left / self.executor.n_at_once
            parts.append(f"about {_in_words(seconds)} to go")
        return ", ".join(parts)


def _in_words(seconds: float) -> str:
    """Return a time such as "10 min" or "2.5 h"."""
    if seconds >= 3600:
        return f"{seconds / 3600:.1f} h"
    return f"{max(1, round(seconds / 60))} min"
