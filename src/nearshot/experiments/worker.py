"""A process that does one job: python -m nearshot.experiments.worker JOB.json RUN_FOLDER RESULTS [DATA_DIR].

Its output is the job's log. It ends with 0, with 1 and a sentence, or with 3 where it was asked to stop and saved.
"""

from __future__ import annotations

import sys
from pathlib import Path

from nearshot.errors import NearshotError
from nearshot.experiments.jobs import STOPPED, InterruptedJobError, do, read_job
from nearshot.experiments.results import Results

__all__ = ["main"]


def main(arguments: list[str]) -> int:
    """Do the job, and put its result where it belongs."""
    job = read_job(Path(arguments[0]))
    data_dir = arguments[3] if len(arguments) > 3 else None
    try:
        Results(arguments[2]).put(do(job, Path(arguments[1]), data_dir=data_dir))
    except InterruptedJobError as stopped:
        sys.stderr.write(f"{stopped}\n")
        return STOPPED
    except NearshotError as error:
        sys.stderr.write(f"nearshot: {error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
