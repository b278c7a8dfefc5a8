"""A process that runs tiny jobs, for tests in which another wants the same ones.

python one_of_two.py FOLDER EPOCHS SEED…
"""

from __future__ import annotations

import sys
from pathlib import Path

from rich.console import Console
from tiny_jobs import tiny_job

from nearshot.experiments.executors.base import ThisProcess
from nearshot.experiments.results import Results
from nearshot.experiments.runner import run_jobs


def main(folder: Path, epochs: int, seeds: list[int]) -> int:
    """Run the jobs, one at a time, and return how many are not done; all that is said goes to the output."""
    results, runs = Results(folder / "results"), folder / "runs"
    jobs = [tiny_job(seed, epochs=epochs) for seed in seeds]
    executor = ThisProcess(results, runs, folder / "data")
    outcome = run_jobs(jobs, executor, console=Console(file=sys.stdout))
    return len(jobs) - len(outcome.done)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), int(sys.argv[2]), list(map(int, sys.argv[3:]))))
