"""Running jobs in a place: this process, this machine (`local`), or a Ray cluster (`on_ray`)."""

from __future__ import annotations

import math
import signal
import statistics
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Protocol

from rich.console import Console
from rich.live import Live
from rich.table import Table

from nearshot.errors import InputError, NearshotError
from nearshot.experiments.ahead import Ahead, TimeLimit, look_ahead
from nearshot.experiments.costs import duration
from nearshot.experiments.jobs import InterruptedJobError, Job, do
from nearshot.experiments.owning import ELSEWHERE, is_owned, owning
from nearshot.experiments.results import Results
from nearshot.telling import tell
from nearshot.training import Hardware
from nearshot.training.signals import handling

__all__ = ["Failure", "Outcome", "Place", "ThisProcess", "check_gpus_per_run", "run_jobs"]

SECONDS_TO_SAVE = 60.0
SMALLEST_SHARE = 0.01  # of a GPU; each training has a process of its own there
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
    waiting = [job for job in jobs if not job.is_done(results)]
    outcome = Outcome(done=[job for job in jobs if job.is_done(results)])
    running: dict[str, tuple[Job, float]] = {}
    elsewhere = _Elsewhere(results, runs, console, clock)
    seconds: list[float] = []  # that jobs took
    shown = -math.inf

    def to_begin() -> Sequence[Job]:
        return waiting if limit is None else limit.allowed(waiting, clock() - began)

    def report(what: str) -> None:
        if not console.is_terminal:  # where a table that changes would be seen at the end only
            tell(console, f"{len(outcome.done)}/{len(jobs)}: {what}")

    with (
        Live(console=console, refresh_per_second=2, transient=not console.is_terminal) as live,
        handling(_end, signal.SIGTERM),
    ):
        try:
            for_now = to_begin()
            while for_now or running or elsewhere.jobs:
                while for_now and len(running) < place.n_at_once:
                    job, *for_now = for_now
                    waiting.remove(job)
                    if not elsewhere.has(job):
                        place.start(job, runs / job.id)
                        running[job.id] = (job, clock())
                time.sleep(0.05)
                for job, problem in place.ended():
                    took = clock() - running.pop(job.id)[1]
                    if problem == ELSEWHERE:
                        elsewhere.add(job)
                    else:
                        seconds.append(took)
                        outcome.add(job, problem, place.log_of(job))
                        how = "done" if problem is None else "stopped" if problem == "" else "failed"
                        report(f"{job.name} {how} in {took:.0f} s")
                    for_now = to_begin()
                for job in elsewhere.done():
                    outcome.add(job, None, place.log_of(job))
                    report(f"{job.name} done by another process")
                free = elsewhere.free()
                if free:
                    waiting += free
                    for_now = to_begin()
                if limit is not None and not for_now and not running and clock() - began >= limit.seconds:
                    break
                if clock() - shown >= SECONDS_BETWEEN_TABLES:
                    shown = clock()
                    ahead = _ahead(waiting, running, seconds, place.n_at_once, shown, limit, began)
                    live.update(_table(running, len(waiting), len(elsewhere.jobs), outcome, place, shown, ahead))
        except BaseException:  # whatever ends this, nothing goes on running behind its back
            place.stop()
            outcome.stopped += [job for job, _ in running.values()] + waiting + elsewhere.jobs
            raise
        finally:
            place.close()
    outcome.left += waiting
    outcome.elsewhere += elsewhere.jobs
    return outcome


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
            tell(self.console, f"{job.name} is being trained by another process; waiting for it.")

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


def _end(number: int, frame: FrameType | None) -> None:
    """End this process at SIGTERM, which clusters send, as at Ctrl-C: in order, with the status a shell gives it."""
    raise SystemExit(128 + number)


def _ahead(
    waiting: Sequence[Job],
    running: Mapping[str, tuple[Job, float]],
    seconds: Sequence[float],
    n_at_once: int,
    now: float,
    limit: TimeLimit | None,
    began: float,
) -> Ahead | None:
    """Return what is ahead, by what the limit expects or by how long others took; None where nothing is known yet."""
    if (limit is None and not seconds) or not (waiting or running):
        return None
    usual = statistics.fmean(seconds or [0.0])
    expected = {} if limit is None else limit.expected
    return look_ahead(
        [expected.get(job.id, usual) for job in waiting],
        [max(expected.get(job.id, usual) - (now - started), 0.0) for job, started in running.values()],
        n_at_once,
        math.inf if limit is None else limit.seconds - (now - began),
    )


def _table(
    running: Mapping[str, tuple[Job, float]],
    n_waiting: int,
    n_elsewhere: int,
    outcome: Outcome,
    place: Place,
    now: float,
    ahead: Ahead | None,
) -> Table:
    n_left = n_waiting if ahead is None else ahead.n_to_begin
    title = f"{len(outcome.done)} done, {len(running)} running, {n_left} left"
    title += f", {n_elsewhere} in another process" if n_elsewhere else ""
    title += f", about {duration(ahead.seconds)} to go" if ahead is not None else ""
    title += f", {n_waiting - n_left} for another time" if n_waiting > n_left else ""
    table = Table(title=title + (f", {len(outcome.failed)} failed" if outcome.failed else ""))
    for heading in ("running", "for", "since", "last word"):
        table.add_column(heading, overflow="ellipsis", no_wrap=heading != "running")
    for job, started in running.values():
        table.add_row(job.name, ", ".join(job.wanted_by), f"{now - started:.0f} s", _last_line(place.log_of(job)))
    return table


def _last_line(log: Path) -> str:
    if not log.is_file():
        return ""
    with log.open("rb") as file:
        file.seek(max(0, log.stat().st_size - 1000))
        lines = file.read().decode(errors="replace").splitlines()
    return lines[-1][:80] if lines else ""
