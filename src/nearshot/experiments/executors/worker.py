"""A process that does jobs, one after the other: python -m nearshot.experiments.executors.worker.

It reads a line of JSON for each job, and answers each with a line: 0 for done, 1 for failed with a sentence in the
job's log, 3 for one that was asked to stop and has saved, 4 for one that another process is at. It ends when there are
no more lines.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

from nearshot.errors import NearshotError
from nearshot.experiments.jobs import BUSY, STOPPED, InterruptedJobError, Job, called, do
from nearshot.experiments.locks import BusyJobError, owning
from nearshot.experiments.results import Results

__all__ = ["main"]


def main() -> None:
    """Do the jobs that the lines name, and answer each."""
    with os.fdopen(os.dup(1), "w") as answers:
        for line in sys.stdin:
            task = json.loads(line)
            _write_to(Path(task["log"]))
            status = _status_of(task)
            sys.stdout.flush()
            answers.write(f"{status}\n")
            answers.flush()


def _status_of(task: dict[str, Any]) -> int:
    """Do a job, and put its result where it belongs. What is not ours to explain ends the process, with a traceback."""
    try:
        run_folder = Path(task["run_folder"])
        with called(tuple(task["command"])), owning(run_folder):
            job = Job.from_dict(task["job"])
            result = do(job, run_folder, data_dir=task["data_dir"], n_sharing=task["n_sharing"])
            Results(task["results"]).put(result)
    except BusyJobError:
        return BUSY
    except InterruptedJobError as stopped:
        sys.stderr.write(f"{stopped}\n")
        return STOPPED
    except NearshotError as error:
        sys.stderr.write(f"nearshot: {error}\n")
        return 1
    return 0


def _write_to(log: Path) -> None:
    """Let all output go to a job's log, also that of libraries which know the file descriptors only."""
    with log.open("ab") as file:
        for number in (1, 2):
            os.dup2(file.fileno(), number)


if __name__ == "__main__":
    main()
