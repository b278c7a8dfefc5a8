"""Running jobs in a place: which wait, which run, what other processes do meanwhile, and how it all ended."""

from __future__ import annotations

import math
import signal
import statistics
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import NamedTuple

from rich.console import Console
from rich.live import Live
from rich.table import Table

from nearshot.experiments.budget import Ahead, TimeLimit, look_ahead
from nearshot.experiments.costs import duration
from nearshot.experiments.executors.base import Place
from nearshot.experiments.jobs import Job
from nearshot.experiments.locks import ELSEWHERE, is_owned
from nearshot.experiments.results import Results
from nearshot.text import print_line
from nearshot.training.signals import handling

__all__ = ["Failure", "Outcome", "run_jobs"]

SECONDS_BETWEEN_TABLES = 0.5
SECONDS_BETWEEN_LOOKS = 1.0  # at what other processes do
MOST_SECONDS_BETWEEN_TRIES = 60.0  # of a job that a place could not have, where only trying tells whose it is


@dataclass(frozen=True)
class Failure:
    """A job that ended badly: the end of its log, and where the rest is."""

    job: Job
    text: str
    log: Path


@dataclass
class Outcome:
    """What became of some jobs."""

    done: list[Job] = field(default_factory=list)
    failed: list[Failure] = field(default_factory=list)
    stopped: list[Job] = field(default_factory=list)
    left: list[Job] = field(default_factory=list)  # for another time
    elsewhere: list[Job] = field(default_factory=list)  # that another process is still at

    def add(self, job: Job, problem: str | None, log: Path) -> None:
        """Add a job that has ended; `problem` is None for a good end and "" for one that was asked to stop."""
        if problem is None:
            self.done.append(job)
        elif problem == "":
            self.stopped.append(job)
        else:
            self.failed.append(Failure(job, problem, log))


def run_jobs(
    jobs: Sequence[Job],
    results: Results,
    runs: Path,
    place: Place,
    *,
    console: Console,
    clock: Callable[[], float] = time.monotonic,
    limit: TimeLimit | None = None,
    began: float | None = None,
) -> Outcome:
    """Run all jobs that are not done. One that fails does not stop the rest; Ctrl-C and SIGTERM leave all resumable.

    One that another process is at, such as the same command in another window, is left to it: its result is waited for
    when all else is done, and if that process ends without one, the job is run here.

    Args:
        jobs: in the order in which to start them.
        results: where results are put.
        runs: where run folders are made, named by the jobs' identities.
        place: where they run.
        console: where the live table is shown.
        clock: seconds that pass.
        limit: jobs that would not be done in time are not begun; those that were begun are done, whatever the time.
        began: when the time of the limit began, by the clock; by default now.
    """
    began = clock() if began is None else began
    queue = _Queue(jobs, results, runs, place, console, clock, _Time(limit, began, clock))
    with (
        Live(console=console, refresh_per_second=2, transient=not console.is_terminal) as live,
        handling(_leave, signal.SIGTERM),
    ):
        try:
            while queue.goes_on():
                queue.begin()
                time.sleep(0.05)
                queue.look()
                queue.show(live)
        except BaseException:  # whatever ends this, nothing goes on running behind its back
            place.stop()
            queue.outcome.stopped += queue.not_ended()
            raise
        finally:
            place.close()
    queue.outcome.left += queue.waiting
    queue.outcome.elsewhere += queue.elsewhere.jobs
    return queue.outcome


class _Time(NamedTuple):
    """The time that jobs have, since it began."""

    limit: TimeLimit | None
    began: float
    clock: Callable[[], float]

    def allowed(self, jobs: Sequence[Job]) -> Sequence[Job]:
        """Return the jobs that there is time for."""
        return jobs if self.limit is None else self.limit.allowed(jobs, self.clock() - self.began)

    @property
    def left(self) -> float:
        """The seconds that are left."""
        return math.inf if self.limit is None else self.limit.seconds - (self.clock() - self.began)

    @property
    def expected(self) -> Mapping[str, float]:
        """How long jobs are expected to take, by their identities, as far as that was asked."""
        return {} if self.limit is None else self.limit.expected


class _Queue:
    """Jobs on their way: those that wait, that run, that other processes are at, and what became of the others."""

    def __init__(
        self,
        jobs: Sequence[Job],
        results: Results,
        runs: Path,
        place: Place,
        console: Console,
        clock: Callable[[], float],
        time_left: _Time,
    ) -> None:
        self.n_jobs, self.runs, self.place, self.console, self.clock = len(jobs), runs, place, console, clock
        self.time = time_left
        # Each is asked once: what another process does meanwhile would be in both lists, or in none.
        is_done = {job.id: job.is_done(results) for job in jobs}
        self.outcome = Outcome(done=[job for job in jobs if is_done[job.id]])
        self.waiting = [job for job in jobs if not is_done[job.id]]
        self.running: dict[str, tuple[Job, float]] = {}
        self.elsewhere = _Elsewhere(results, runs, console, clock)
        self._for_now = self.time.allowed(self.waiting)
        self._seconds: list[float] = []  # that jobs took
        self._shown = -math.inf

    def goes_on(self) -> bool:
        """Whether there is anything to begin or to wait for; other processes are not waited for beyond the time."""
        return bool(self._for_now or self.running or (self.elsewhere.jobs and self.time.left > 0))

    def not_ended(self) -> list[Job]:
        """Return the jobs that nothing has become of yet."""
        return [job for job, _ in self.running.values()] + self.waiting + self.elsewhere.jobs

    def begin(self) -> None:
        """Begin jobs for which there is room and time."""
        while self._for_now and len(self.running) < self.place.n_at_once:
            job, *self._for_now = self._for_now
            self.waiting.remove(job)
            if not self.elsewhere.has(job):
                self.place.start(job, self.runs / job.id)
                self.running[job.id] = (job, self.clock())

    def look(self) -> None:
        """See what has ended, here and elsewhere, and what there is time for now."""
        n_waiting, n_running = len(self.waiting), len(self.running)
        for job, problem in self.place.ended():
            took = self.clock() - self.running.pop(job.id)[1]
            if problem == ELSEWHERE:
                self.elsewhere.add(job)
            else:
                self._seconds.append(took)
                how = "done" if problem is None else "stopped" if problem == "" else "failed"
                self._end(job, problem, f"{how} in {took:.0f} s")
        for job in self.elsewhere.done():
            self._end(job, None, "done by another process")
        self.waiting += self.elsewhere.free()
        if (len(self.waiting), len(self.running)) != (n_waiting, n_running):
            self._for_now = self.time.allowed(self.waiting)

    def _end(self, job: Job, problem: str | None, how: str) -> None:
        self.outcome.add(job, problem, self.place.log_of(job))
        if not self.console.is_terminal:  # where a table that changes would be seen at the end only
            print_line(self.console, f"{len(self.outcome.done)}/{self.n_jobs}: {job.name} {how}")

    def show(self, live: Live) -> None:
        """Show how things stand, now and then."""
        now = self.clock()
        if now - self._shown < SECONDS_BETWEEN_TABLES:
            return
        self._shown = now
        ahead, n_waiting = self._ahead(now), len(self.waiting)
        n_left = n_waiting if ahead is None else ahead.n_to_begin
        parts = [f"{len(self.outcome.done)} done", f"{len(self.running)} running", f"{n_left} left"]
        parts += [f"{len(self.elsewhere.jobs)} in another process"] if self.elsewhere.jobs else []
        parts += [f"about {duration(ahead.seconds)} to go"] if ahead is not None else []
        parts += [f"{n_waiting - n_left} for another time"] if n_waiting > n_left else []
        parts += [f"{len(self.outcome.failed)} failed"] if self.outcome.failed else []
        table = Table(title=", ".join(parts))
        for heading in ("running", "for", "since", "last word"):
            table.add_column(heading, overflow="ellipsis", no_wrap=heading != "running")
        for job, started in self.running.values():
            last_word = _last_line(self.place.log_of(job))
            table.add_row(job.name, ", ".join(job.wanted_by), f"{now - started:.0f} s", last_word)
        live.update(table)

    def _ahead(self, now: float) -> Ahead | None:
        """Return what is ahead, by what is expected or by how long others took; None where nothing is known yet."""
        if (self.time.limit is None and not self._seconds) or not (self.waiting or self.running):
            return None
        usual, expected = statistics.fmean(self._seconds or [0.0]), self.time.expected
        return look_ahead(
            [expected.get(job.id, usual) for job in self.waiting],
            [max(expected.get(job.id, usual) - (now - started), 0.0) for job, started in self.running.values()],
            self.place.n_at_once,
            self.time.left,
        )


class _Elsewhere:
    """The jobs that other processes are at, which are looked at now and then."""

    def __init__(self, results: Results, runs: Path, console: Console, clock: Callable[[], float]) -> None:
        self.results, self.runs, self.console, self.clock = results, runs, console, clock
        self.jobs: list[Job] = []
        self._tries: Counter[str] = Counter()
        self._next_look: dict[str, float] = {}

    def has(self, job: Job) -> bool:
        """Whether another process has done a job meanwhile, or is at it; then it is kept here."""
        if not job.is_done(self.results) and not is_owned(self.runs / job.id):
            return False
        self.add(job)
        return True

    def add(self, job: Job) -> None:
        """Leave a job to another process, and say so once; each time it was tried in vain, for longer."""
        self.jobs.append(job)
        pause = min(SECONDS_BETWEEN_LOOKS * 2 ** self._tries[job.id], MOST_SECONDS_BETWEEN_TRIES)
        self._next_look[job.id] = self.clock() + pause
        self._tries[job.id] += 1
        if self._tries[job.id] == 1 and not job.is_done(self.results):
            print_line(self.console, f"{job.name} is being trained by another process; waiting for it.")

    def done(self) -> list[Job]:
        """Return the jobs whose results have come, and forget them."""
        return self._without([job for job in self.jobs if job.is_done(self.results)])

    def free(self) -> list[Job]:
        """Return the jobs that nobody is at any more, though they are not done, and forget them."""
        now = self.clock()
        free = []
        for job in self.jobs:
            if now >= self._next_look[job.id]:
                self._next_look[job.id] = now + SECONDS_BETWEEN_LOOKS
                if not is_owned(self.runs / job.id) and not job.is_done(self.results):
                    free.append(job)
        return self._without(free)

    def _without(self, jobs: list[Job]) -> list[Job]:
        self.jobs = [job for job in self.jobs if job not in jobs]
        return jobs


def _leave(number: int, frame: FrameType | None) -> None:
    """End this process at SIGTERM, which clusters send, as at Ctrl-C: in order, with the status a shell gives it."""
    raise SystemExit(128 + number)


def _last_line(log: Path) -> str:
    if not log.is_file():
        return ""
    with log.open("rb") as file:
        file.seek(max(0, log.stat().st_size - 1000))
        lines = file.read().decode(errors="replace").splitlines()
    return lines[-1][:80] if lines else ""
