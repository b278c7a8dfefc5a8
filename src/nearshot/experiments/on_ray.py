"""Running jobs on a Ray cluster (extra: ray)."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from nearshot.experiments.jobs import Job
from nearshot.experiments.results import Results

__all__ = ["RayCluster"]


class RayCluster:
    """The Ray cluster that this machine belongs to."""

    n_at_once: int = 1

    def __init__(
        self, results: Results, runs: Path, data_dir: str | Path | None = None, *, gpus_per_run: float = 1.0
    ) -> None:
        raise NotImplementedError

    def start(self, job: Job, run_folder: Path) -> None:
        """Start a job."""
        raise NotImplementedError

    def ended(self) -> Iterable[tuple[Job, str | None]]:
        """Yield the jobs that have ended since the last call."""
        raise NotImplementedError

    def stop(self) -> None:
        """Ask all jobs to save and stop."""
        raise NotImplementedError

    def log_of(self, job: Job) -> Path:
        """Return where a job's log is."""
        raise NotImplementedError
