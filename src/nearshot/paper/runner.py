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
from nearshot.paper.jobs import Job, rough_duration
from nearshot.text import print_line
from nearshot.training.signals import handling

__all__ = ["Failure", "Outcome", "run_jobs"]

SECONDS_BETWEEN_TABLES = 0.5
MOST_AT_ONCE = 1000  # jobs, each awaited by a thread


@dataclass(frozen=True)
class Failure:
    """A job that failed: the end of its log, and the path of the rest."""

    job: Job
    text: str
    log: Path


@dataclass
class Outcome:
    """The jobs by how they ended; `left` are those for which the time was too short, here or in another process."""

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
        handling(
            lambda number, frame: sys.exit(128 + number), signal.SIGTERM
        ),  # clusters send it; as on Ctrl-C
        ThreadPoolExecutor(MOST_AT_ONCE) as threads,
    ):
        try:
            while progress.outcome.left and time.monotonic() < deadline:
                progress.start_jobs(threads)
                live.update(progress.table())
                if not progress.running:
                    time.sleep(SECONDS_BETWEEN_TABLES)
                progress.end_jobs(
                    wait(progress.running, SECONDS_BETWEEN_TABLES, FIRST_COMPLETED).done
                )
        finally:  # no process stays behind, whatever ended this
            executor.stop()
    progress.end_jobs(
        future for future in progress.running if future.result() is None
    )  # which ended meanwhile
    return progress.outcome


class _Progress:
    """Jobs that ended, run, or are left."""

    def __init__(self, jobs: Sequence[Job], executor: Executor, console: Console) -> None:
        self.n_jobs, self.executor, self.console = len(jobs), executor, console
        self.outcome = Outcome()
        for job in jobs:
            (self.outcome.done if job.is_done(executor.results) else self.outcome.left).append(job)
        self.running: dict[Future[str | None], tuple[Job, float]] = {}  # since when
        self.were_locked: set[str] = set()
        self.seconds: list[float] = []  # that jobs took

    def start_jobs(self, threads: ThreadPoolExecutor) -> None:
        """Start jobs for which there is room; leave those to other processes that they hold."""
        running = [job for job, _ in self.running.values()]
        for job in [job for job in self.outcome.left if job not in running]:
            if len(self.running) >= self.executor.n_at_once:
                return
            if job.is_done(self.executor.results):
                self._end(job, None, "by another process")
            elif not is_locked(self.executor.runs / job.id):
                self.running[threads.submit(self.executor.run, job)] = (job, time.monotonic())
            elif job.id not in self.were_locked:
                print_line(
                    self.console, f"{job.name} is locked by another process; waiting for it."
                )
                self.were_locked.add(job.id)

    def end_jobs(self, futures: Iterable[Future[str | None]]) -> None:
        """Note how some jobs ended."""
        for future in list(futures):
            job, started = self.running.pop(future)
            problem, seconds = future.result(), time.monotonic() - started
            if problem != LOCKED:  # else it stays among those that are left
                self.seconds.append(seconds)
                self._end(job, problem, f"in {seconds:.0f} s")

    def _end(self, job: Job, problem: str | None, how: str) -> None:
        self.outcome.left.remove(job)
        if problem is None:
            self.outcome.done.append(job)
        else:
            self.outcome.failed.append(Failure(job, problem, self.executor.log_of(job)))
        if not self.console.is_terminal:  # where the live table is not shown
            state = "done" if problem is None else "failed"
            print_line(
                self.console, f"{len(self.outcome.done)}/{self.n_jobs}: {job.name} {state} {how}"
            )

    def table(self) -> Table:
        """Return a table of the running jobs."""
        n_left = len(self.outcome.left)
        parts = [
            f"{len(self.outcome.done)} done, {len(self.running)} running, {n_left - len(self.running)} left"
        ]
        parts += [f"{len(self.outcome.failed)} failed"] if self.outcome.failed else []
        seconds = statistics.fmean(self.seconds or [0.0]) * n_left / self.executor.n_at_once
        parts += [f"about {rough_duration(seconds)} to go"] if seconds else []
        table = Table(title=", ".join(parts))
        for heading in ("running", "for", "since", "last message"):
            table.add_column(heading, overflow="ellipsis", no_wrap=heading != "running")
        for job, started in self.running.values():
            log = self.executor.log_of(job)
            lines = log.read_text(errors="replace").splitlines() if log.is_file() else []
            message = lines[-1][:80] if lines else ""
            table.add_row(
                job.name, ", ".join(job.wanted_by), f"{time.monotonic() - started:.0f} s", message
            )
        return table
