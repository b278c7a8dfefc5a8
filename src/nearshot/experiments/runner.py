"""Run jobs on an executor: order, time limit, runs that other processes hold, and progress."""

from __future__ import annotations

import signal
import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from rich.console import Console
from rich.live import Live
from rich.table import Table

from nearshot.experiments.costs import TimeLimit, rough_duration
from nearshot.experiments.executors.base import Executor
from nearshot.experiments.jobs import LOCKED, Job, is_locked
from nearshot.text import print_line
from nearshot.training.signals import handling

__all__ = ["Failure", "Outcome", "run_jobs"]

SECONDS_BETWEEN_TABLES = 0.5
SECONDS_BETWEEN_CHECKS = 5.0  # of runs that other processes hold


@dataclass(frozen=True)
class Failure:
    """A job that failed: the end of its log, and the path of the rest."""

    job: Job
    text: str
    log: Path


@dataclass
class Outcome:
    """The jobs by how they ended; those in `elsewhere` are still held by another process."""

    done: list[Job] = field(default_factory=list)
    failed: list[Failure] = field(default_factory=list)
    stopped: list[Job] = field(default_factory=list)
    left: list[Job] = field(default_factory=list)
    elsewhere: list[Job] = field(default_factory=list)


def run_jobs(jobs: Sequence[Job], executor: Executor, *, console: Console, limit: TimeLimit | None = None) -> Outcome:
    """Run all jobs that are not done. A job that fails does not stop the rest; Ctrl-C and SIGTERM leave all resumable.

    A run locked by another process, such as the same command in another window, is skipped, then awaited. If that
    process ends without a result, the job runs here.

    Jobs are started in their order. Those that would not end within the limit are not started.
    """
    queue = _Queue(jobs, executor, console, limit)
    with (
        Live(console=console, refresh_per_second=2, transient=not console.is_terminal) as live,
        handling(lambda number, frame: sys.exit(128 + number), signal.SIGTERM),  # clusters send it; as on Ctrl-C
    ):
        try:
            while queue.has_work:
                queue.start_jobs()
                time.sleep(0.05)
                queue.collect()
                queue.show(live)
        except BaseException:  # no process stays behind, whatever ended this
            executor.stop()
            raise
        finally:
            executor.close()
    queue.outcome.left += queue.waiting
    queue.outcome.elsewhere += [job for job, _ in queue.held.values()]
    return queue.outcome


class _Queue:
    """Jobs that wait, run, are held by other processes, or ended."""

    def __init__(self, jobs: Sequence[Job], executor: Executor, console: Console, limit: TimeLimit | None) -> None:
        self.n_jobs, self.executor, self.console, self.limit = len(jobs), executor, console, limit
        # Each is asked once: another process may finish one meanwhile.
        is_done = {job.id: job.is_done(executor.results) for job in jobs}
        self.outcome = Outcome(done=[job for job in jobs if is_done[job.id]])
        self.waiting = [job for job in jobs if not is_done[job.id]]
        self.allowed = self._in_time()
        self.running: dict[str, tuple[Job, float]] = {}  # since when
        self.held: dict[str, tuple[Job, float]] = {}  # by other processes; when to check again
        self.were_held: set[str] = set()
        self.seconds: list[float] = []  # that jobs took
        self.next_table = time.monotonic()

    def _in_time(self) -> list[Job]:
        return list(self.waiting) if self.limit is None else self.limit.allowed(self.waiting)

    @property
    def has_work(self) -> bool:
        """Whether there is a job to start or to wait for; other processes are not awaited beyond the limit."""
        is_time = self.limit is None or self.limit.left > 0
        return bool(self.allowed or self.running or (self.held and is_time))

    def start_jobs(self) -> None:
        """Start jobs for which there is room and time."""
        while self.allowed and len(self.running) < self.executor.n_at_once:
            job = self.allowed.pop(0)
            self.waiting.remove(job)
            if job.is_done(self.executor.results) or is_locked(self.executor.runs / job.id):
                self._hold(job)
            else:
                self.running[job.id] = (job, time.monotonic())
                self.executor.start(job)

    def collect(self) -> None:
        """Move jobs that ended, here and in other processes, and those that other processes gave up."""
        before = len(self.waiting), len(self.running)
        for job, problem in self.executor.ended():
            seconds = time.monotonic() - self.running.pop(job.id)[1]
            if problem == LOCKED:
                self._hold(job)
            else:
                self.seconds.append(seconds)
                self._end(job, problem, f"in {seconds:.0f} s")
        for job, next_check in list(self.held.values()):
            if job.is_done(self.executor.results):
                del self.held[job.id]
                self._end(job, None, "by another process")
            elif time.monotonic() >= next_check:
                del self.held[job.id]
                if is_locked(self.executor.runs / job.id):
                    self._hold(job)
                else:
                    self.waiting.append(job)
        if (len(self.waiting), len(self.running)) != before:
            self.allowed = self._in_time()

    def _hold(self, job: Job) -> None:
        """Leave a job to another process, and say so once."""
        self.held[job.id] = (job, time.monotonic() + SECONDS_BETWEEN_CHECKS)
        if job.id not in self.were_held and not job.is_done(self.executor.results):
            print_line(self.console, f"{job.name} is locked by another process; waiting for it.")
        self.were_held.add(job.id)

    def _end(self, job: Job, problem: str | None, how: str) -> None:
        if problem is None:
            self.outcome.done.append(job)
        elif problem == "":
            self.outcome.stopped.append(job)
        else:
            self.outcome.failed.append(Failure(job, problem, self.executor.log_of(job)))
        if not self.console.is_terminal:  # where the live table is not shown
            state = "done" if problem is None else "stopped" if problem == "" else "failed"
            print_line(self.console, f"{len(self.outcome.done)}/{self.n_jobs}: {job.name} {state} {how}")

    def show(self, live: Live) -> None:
        """Show a table of the running jobs, at most twice a second."""
        now = time.monotonic()
        if now < self.next_table:
            return
        self.next_table = now + SECONDS_BETWEEN_TABLES
        n_left, n_later = len(self.allowed), len(self.waiting) - len(self.allowed)
        seconds = statistics.fmean(self.seconds or [0.0]) * (len(self.running) + n_left) / self.executor.n_at_once
        parts = [f"{len(self.outcome.done)} done", f"{len(self.running)} running", f"{n_left} left"]
        parts += [f"{len(self.held)} in another process"] if self.held else []
        parts += [f"about {rough_duration(seconds)} to go"] if seconds else []
        parts += [f"{n_later} for another time"] if n_later else []
        parts += [f"{len(self.outcome.failed)} failed"] if self.outcome.failed else []
        table = Table(title=", ".join(parts))
        for heading in ("running", "for", "since", "last message"):
            table.add_column(heading, overflow="ellipsis", no_wrap=heading != "running")
        for job, started in self.running.values():
            message = _last_line(self.executor.log_of(job))
            table.add_row(job.name, ", ".join(job.wanted_by), f"{now - started:.0f} s", message)
        live.update(table)


def _last_line(log: Path) -> str:
    if not log.is_file():
        return ""
    with log.open("rb") as file:
        file.seek(max(0, log.stat().st_size - 1000))
        lines = file.read().decode(errors="replace").splitlines()
    return lines[-1][:80] if lines else ""
