"""Jobs that take seconds, on the tiny dataset; as a program, a process that runs some of them.

python tiny_jobs.py RESULTS RUNS DATA EPOCHS SEED…
"""

import sys
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from tests.helpers.settings import TINY, change
from tests.helpers.tiny import SIDE

from nearshot.paper.executors.base import Executor, JobTask, attempt, do
from nearshot.paper.jobs import Job
from nearshot.paper.results import Measurement, Results, RunResult
from nearshot.paper.runner import run_jobs
from nearshot.paper.sizes import Size

QUIET = Console(quiet=True)
TINY_SIZE = Size("tiny", "for tests", input_size=SIDE)


def tiny_job(seed: int = 0, *, epochs: int = 2) -> Job:
    """Return a job of some epochs, each about a tenth of a second on one thread."""
    config = change(TINY, epochs=epochs, seed=seed, validate_every=20, validation_n_shot=(1,))
    wanted = (Measurement("val", 1, "centroid"), Measurement("test", 1, "centroid"))
    return Job(config, TINY_SIZE, wanted, ("test",))


@dataclass(eq=False)
class ThisProcess(Executor):
    """Runs one job after the other in this process."""

    gpus_per_run: float = 0.0

    def run(self, job: Job) -> str | None:
        return attempt(self.task_of(job), self.results.put)


def done_in(folder: Path, job: Job, data_dir: Path) -> RunResult:
    """Do a job in a run folder on the CPU, and return its result."""
    return do(JobTask(job, folder, data_dir, "cpu", 1, sys.argv))


if __name__ == "__main__":
    results, runs, data, epochs, *seeds = sys.argv[1:]
    jobs = [tiny_job(int(seed), epochs=int(epochs)) for seed in seeds]
    executor = ThisProcess(Results(results, TINY_SIZE), Path(runs), Path(data))
    sys.exit(len(jobs) - len(run_jobs(jobs, executor, console=Console(file=sys.stdout)).done))
