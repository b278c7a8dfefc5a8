"""Run jobs on an executor: order, time limit, runs that other processes hold, and progress."""

from __future__ import annotations

import math
import signal
import statistics
import sys
import time
from collections.abc import Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from pathlib import Path

from rich.console import Console
from rich.live import Live
from rich.table import Table

from nearshot.experiments.costs import rough_duration, seconds_left
from nearshot.experiments.executors.base import Executor
from nearshot.experiments.jobs import LOCKED, Job, is_locked
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
    jobs: Sequence[Job], executor: Executor, *, console: Console, minutes: float | None = None, device: str = ""
) -> Outcome:
    """Run all jobs that are not done. A job that fails does not stop the rest; Ctrl-C and SIGTERM leave all resumable.

    A run locked by another process, such as the same command in another window, is skipped, then awaited. If that
    process ends without a result, the job runs here.

    Jobs are started in their order. Those that would probably not end within `minutes` on the device are not started.
    """
    queue = _Queue(jobs, executor, console, minutes, device)
    executor.prepare(queue.in_time())
    with (
        Live(console=console, refresh_per_second=2, transient=not console.is_terminal) as live,
        handling(lambda number, frame: sys.exit(128 + number), signal.SIGTERM),  # clusters send it; as on Ctrl-C
    ):
        try:
            while queue.running or queue.in_time():
                queue.start_jobs()
                live.update(queue.table())
                queue.wait()
        finally:  # no process stays behind, whatever ended this
            executor.stop()
            queue.threads.shutdown()  # keeps results that came meanwhile
    queue.outcome.left += queue.waiting
    return queue.outcome


class _Queue:
    """Jobs that wait, run or ended."""

    def __init__(
        self, jobs: Sequence[Job], executor: Executor, console: Console, minutes: float | None, device: str
    ) -> None:
        self.n_jobs, self.executor, self.console, self.device = len(jobs), executor, console, device
        self.deadline = math.inf if minutes is None else time.monotonic() + 60 * minutes
        # Each is asked once: another process may finish one meanwhile.
        is_done = {job.id: job.is_done(executor.results) for job in jobs}
        self.outcome = Outcome(done=[job for job in jobs if is_done[job.id]])
        self.waiting = [job for job in jobs if not is_done[job.id]]
        self.running: dict[Future[str | None], tuple[Job, float]] = {}  # since when
        self.threads = ThreadPoolExecutor(MOST_AT_ONCE)
        self.were_locked: set[str] = set()
        self.seconds: list[float] = []  # that jobs took
        self._estimate()

    def _estimate(self) -> None:
        """Estimate how long each job takes, if there is a limit; with each run that ends, more is known."""
        self.expected: dict[str, float] = {}
        if self.deadline < math.inf:
            seconds = seconds_left(self.waiting, self.executor, self.device)
            self.expected = {job.id: one for job, one in zip(self.waiting, seconds, strict=True)}

    def in_time(self) -> list[Job]:
        """Return the waiting jobs that would probably end in time if they were started now."""
        left = self.deadline - time.monotonic()
        return [job for job in self.waiting if self.expected.get(job.id, 0.0) <= left]

    def start_jobs(self) -> None:
        """Start jobs for which there is room and time; leave those to other processes that they hold."""
        for job in self.in_time():
            if len(self.running) >= self.executor.n_at_once:
                return
            if job.is_done(self.executor.results):
                self.waiting.remove(job)
                self._end(job, None, "by another process")
            elif is_locked(self.executor.runs / job.id):
                self._leave(job)
            else:
                self.waiting.remove(job)
                self.running[self.threads.submit(self.executor.run, job)] = (job, time.monotonic())

    def wait(self) -> None:
        """Wait for a while, and move the jobs that ended."""
        if not self.running:
            time.sleep(SECONDS_BETWEEN_TABLES)
        for future in wait(self.running, SECONDS_BETWEEN_TABLES, FIRST_COMPLETED).done:
            job, started = self.running.pop(future)
            problem, seconds = future.result(), time.monotonic() - started
            if problem == LOCKED:
                self.waiting.append(job)
                self._leave(job)
            else:
                self.seconds.append(seconds)
                self._end(job, problem, f"in {seconds:.0f} s")
            self._estimate()

    def _leave(self, job: Job) -> None:
        """Leave a job to another process, and say so once."""
        if job.id not in self.were_locked:
            print_line(self.console, f"{job.name} is locked by another process; waiting for it.")
        self.were_locked.add(job.id)

    def _end(self, job: Job, problem: str | None, how: str) -> None:
        if problem is None:
            self.outcome.done.append(job)
        else:
            self.outcome.failed.append(Failure(job, problem, self.executor.log_of(job)))
        if not self.console.is_terminal:  # where the live table is not shown
            state = "done" if problem is None else "failed"
            print_line(self.console, f"{len(self.outcome.done)}/{self.n_jobs}: {job.name} {state} {how}")

    def table(self) -> Table:
        """Return a table of the running jobs."""
        n_left = len(self.in_time())
        seconds = statistics.fmean(self.seconds or [0.0]) * (len(self.running) + n_left) / self.executor.n_at_once
        numbers = {"done": len(self.outcome.done), "running": len(self.running), "left": n_left}
        others = {"for another time": len(self.waiting) - n_left, "failed": len(self.outcome.failed)}
        parts = [f"{number} {what}" for what, number in (numbers | others).items() if number or what in numbers]
        parts += [f"about {rough_duration(seconds)} to go"] if seconds else []
        table = Table(title=", ".join(parts))
        for heading in ("running", "for", "since", "last message"):
            table.add_column(heading, overflow="ellipsis", no_wrap=heading != "running")
        for job, started in self.running.values():
            message = _last_line(self.executor.log_of(job))
            table.add_row(job.name, ", ".join(job.wanted_by), f"{time.monotonic() - started:.0f} s", message)
        return table


def _last_line(log: Path) -> str:
    lines = log.read_text(errors="replace").splitlines() if log.is_file() else []
    return lines[-1][:80] if lines else ""
