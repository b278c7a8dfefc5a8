"""A process that runs jobs, one after the other: python -m nearshot.experiments.executors.worker.

It reads one line of JSON per job and answers each with one digit: 0 for done, 1 for failed, with a message in the job's
log, STOPPED for stopped and saved, BUSY if another process holds the run's lock. It ends with its input.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

from nearshot.errors import NearshotError
from nearshot.experiments.executors.base import BUSY, STOPPED
from nearshot.experiments.jobs import InterruptedJobError, Job, LockedRunError, called, do, run_lock
from nearshot.experiments.results import Results

__all__ = ["work"]


def work() -> None:
    """Run the jobs of the input, and answer each."""
    answers = os.dup(1)
    for line in sys.stdin:
        task = json.loads(line)
        with Path(task["log"]).open("ab") as file:  # also for libraries that write to the file descriptors
            os.dup2(file.fileno(), 1)
            os.dup2(file.fileno(), 2)
        status = _run(task)
        sys.stdout.flush()
        os.write(answers, str(status).encode())


def _run(task: dict[str, Any]) -> int:
    """Run a job, put its result into the folder, and return the status. Unexpected errors end the process."""
    try:
        run_folder = Path(task["run_folder"])
        with called(tuple(task["command"])), run_lock(run_folder):
            job = Job.from_dict(task["job"])
            result = do(job, run_folder, data_dir=task["data_dir"], n_sharing=task["n_sharing"])
            Results(task["results"]).put(result)
    except LockedRunError:
        return BUSY
    except InterruptedJobError as stopped:
        sys.stderr.write(f"{stopped}\n")
        return STOPPED
    except NearshotError as error:
        sys.stderr.write(f"nearshot: {error}\n")
        return 1
    return 0


if __name__ == "__main__":
    work()
