"""Running jobs, here on the GPUs of this machine (or its CPU), or on a Ray cluster."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import torch
from rich.console import Console
from rich.live import Live
from rich.table import Table

from nearshot.errors import NearshotError
from nearshot.experiments.jobs import STOPPED, InterruptedJobError, Job, do
from nearshot.experiments.results import Results
from nearshot.training import Hardware

__all__ = ["Failure", "LocalMachine", "Outcome", "Place", "ThisProcess", "run_jobs"]

SECONDS_TO_SAVE = 60.0


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


class Place(Protocol):
    """Where jobs run: this machine, or a cluster."""

    @property
    def n_at_once(self) -> int:
        """How many jobs to start at once."""

    def start(self, job: Job, run_folder: Path) -> None:
        """Start a job."""

    def ended(self) -> Iterable[tuple[Job, str | None]]:
        """Yield the jobs that have ended since the last call, each with None, or with what went wrong."""

    def stop(self) -> None:
        """Ask all jobs to save and stop, and wait for them."""

    def log_of(self, job: Job) -> Path:
        """Return where a job's log is."""


class LocalMachine:
    """The machine that this runs on: a job on each GPU, or one on the CPU, each in a process of its own."""

    def __init__(self, results: Results, runs: Path, data_dir: str | Path | None = None) -> None:
        self.results, self.runs, self.data_dir = results, runs, data_dir
        self.free: list[str | None] = [*_visible_gpus()] or [None]
        self.n_at_once = len(self.free)
        self.running: dict[str, tuple[Job, subprocess.Popen[bytes], str | None]] = {}

    def start(self, job: Job, run_folder: Path) -> None:
        """Start a process on a free GPU."""
        device = self.free.pop(0)
        run_folder.mkdir(parents=True, exist_ok=True)
        job_file = run_folder / "job.json"
        job_file.write_text(json.dumps(job.as_dict(), indent=2))
        command = [sys.executable, "-m", "nearshot.experiments.worker", str(job_file), str(run_folder)]
        command += [str(self.results.folder), *([str(self.data_dir)] if self.data_dir is not None else [])]
        environment = os.environ | ({} if device is None else {"CUDA_VISIBLE_DEVICES": device})
        with self.log_of(job).open("ab") as log:
            # A session of its own: Ctrl-C reaches the runner, which asks its processes to save.
            process = subprocess.Popen(  # noqa: S603
                command, stdout=log, stderr=subprocess.STDOUT, env=environment, start_new_session=True
            )
        self.running[job.id] = (job, process, device)

    def ended(self) -> Iterable[tuple[Job, str | None]]:
        """Yield the jobs whose process has ended."""
        for key, (job, process, device) in list(self.running.items()):
            code = process.poll()
            if code is not None:
                del self.running[key]
                self.free.append(device)
                yield job, None if code == 0 else self._what_went_wrong(job, code)

    def stop(self) -> None:
        """Send SIGTERM, wait for all to save, and kill those that do not."""
        for _, process, _ in self.running.values():
            process.send_signal(signal.SIGTERM)
        deadline = time.monotonic() + SECONDS_TO_SAVE
        for _, process, _ in self.running.values():
            try:
                process.wait(max(0.1, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def log_of(self, job: Job) -> Path:
        """Return where a job's log is."""
        return self.runs / job.id / "log.txt"

    def _what_went_wrong(self, job: Job, code: int) -> str:
        lines = self.log_of(job).read_text(errors="replace").splitlines()
        sentence = next((line for line in reversed(lines) if line.strip()), "it left no word")
        return f"ended by signal {-code}" if code < 0 else ("" if code == STOPPED else sentence)


class ThisProcess:
    """The process that this runs in: one job after the other, for small ones and for debugging."""

    n_at_once = 1

    def __init__(
        self, results: Results, runs: Path, data_dir: str | Path | None = None, hardware: Hardware | None = None
    ) -> None:
        self.results, self.runs, self.data_dir, self.hardware = results, runs, data_dir, hardware
        self._ended: list[tuple[Job, str | None]] = []

    def start(self, job: Job, run_folder: Path) -> None:
        """Do the job at once."""
        try:
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

    def log_of(self, job: Job) -> Path:
        """Return where a job's log is: its metrics."""
        return self.runs / job.id / "metrics.jsonl"


def run_jobs(
    jobs: Sequence[Job],
    results: Results,
    runs: Path,
    place: Place,
    *,
    console: Console,
    clock: Callable[[], float] = time.monotonic,
) -> Outcome:
    """Run all jobs that are not done. One that fails does not stop the rest; Ctrl-C leaves everything resumable.

    Args:
        jobs: in the order in which to start them.
        results: where results are put.
        runs: where run folders are made, named by the jobs' identities.
        place: where they run.
        console: where the live table is shown.
        clock: seconds that pass.
    """
    waiting = [job for job in jobs if not job.is_done(results)]
    outcome = Outcome(done=[job for job in jobs if job.is_done(results)])
    running: dict[str, tuple[Job, float]] = {}
    with Live(console=console, refresh_per_second=2, transient=not console.is_terminal) as live:
        try:
            while waiting or running:
                while waiting and len(running) < place.n_at_once:
                    job = waiting.pop(0)
                    place.start(job, runs / job.id)
                    running[job.id] = (job, clock())
                time.sleep(0.05)
                for job, problem in place.ended():
                    del running[job.id]
                    if problem is None:
                        outcome.done.append(job)
                    elif problem == "":
                        outcome.stopped.append(job)
                    else:
                        outcome.failed.append(Failure(job, problem, place.log_of(job)))
                live.update(_table(running, waiting, outcome, place, clock()))
        except BaseException:  # whatever ends this, nothing goes on running behind its back
            place.stop()
            outcome.stopped += [job for job, _ in running.values()] + waiting
            raise
    return outcome


def _table(
    running: dict[str, tuple[Job, float]], waiting: Sequence[Job], outcome: Outcome, place: Place, now: float
) -> Table:
    title = f"{len(outcome.done)} done, {len(running)} running, {len(waiting)} left"
    table = Table(title=title + (f", {len(outcome.failed)} failed" if outcome.failed else ""))
    for heading in ("running", "for", "since", "last word"):
        table.add_column(heading, overflow="ellipsis", no_wrap=heading != "running")
    for job, started in running.values():
        table.add_row(job.name, ", ".join(job.wanted_by), f"{now - started:.0f} s", _last_line(place.log_of(job)))
    return table


def _visible_gpus() -> list[str]:
    """Return the GPUs that this process may use, by the names that its children know them by."""
    numbers = [str(number) for number in range(torch.cuda.device_count())]
    given = os.environ.get("CUDA_VISIBLE_DEVICES")
    return numbers if given is None else given.split(",")[: len(numbers)]


def _last_line(log: Path) -> str:
    if not log.is_file():
        return ""
    with log.open("rb") as file:
        file.seek(max(0, log.stat().st_size - 1000))
        lines = file.read().decode(errors="replace").splitlines()
    return lines[-1][:80] if lines else ""
