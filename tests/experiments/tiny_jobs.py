"""Jobs that take seconds, on the tiny dataset; as a program, a process that runs some of them.

python tiny_jobs.py FOLDER EPOCHS SEED…
"""

from __future__ import annotations

import sys
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path

from rich.console import Console
from settings import TINY

from nearshot.experiments.executors.base import Executor, attempt
from nearshot.experiments.jobs import Job
from nearshot.experiments.results import Measurement, Results
from nearshot.experiments.runner import run_jobs
from nearshot.training import Hardware

CPU = Hardware(accelerator="cpu")
QUIET = Console(quiet=True)


def tiny_job(seed: int = 0, *, epochs: int = 2) -> Job:
    """Return a job of some epochs, each about a tenth of a second on one thread."""
    config = replace(TINY, epochs=epochs, seed=seed, validate_every=20, validation_shots=(1,))
    wanted = (Measurement("val", 1, "centroid"), Measurement("test", 1, "centroid"))
    return Job(config, "tiny", wanted, ("test",))


class ThisProcess(Executor):
    """Runs one job after the other in this process."""

    n_at_once = 1

    accelerator = "cpu"

    def __init__(self, results: Results, runs: Path, data_dir: Path | None = None) -> None:
        self.results, self.runs, self.data_dir = results, runs, data_dir

    def submit(self, job: Job) -> Future[str | None]:
        return ended(attempt(self.task_of(job), self.results.put, show=False))


def ended(problem: str | None = None) -> Future[str | None]:
    """Return the future of a job that has ended."""
    future = Future[str | None]()
    future.set_result(problem)
    return future


if __name__ == "__main__":
    folder, epochs, *seeds = sys.argv[1:]
    jobs = [tiny_job(int(seed), epochs=int(epochs)) for seed in seeds]
    executor = ThisProcess(Results(f"{folder}/results"), Path(folder, "runs"), Path(folder, "data"))
    sys.exit(len(jobs) - len(run_jobs(jobs, executor, console=Console(file=sys.stdout)).done))
