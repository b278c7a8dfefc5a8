"""Classify jobs as done, to measure, to train or to train again."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from nearshot.experiments.jobs import Job, has_weights
from nearshot.experiments.results import Results
from nearshot.text import counted
from nearshot.training import RunFolder

__all__ = ["JobPlan", "plan_of"]


@dataclass(frozen=True)
class JobPlan:
    """Jobs by what is left to do.

    Attributes:
        runs: the folder of run folders.
        done: nothing is left.
        measured: the weights are available, and more is to be measured.
        trained: to train or to resume.
        again: there is a result, but more is to be measured and the weights are gone. The run is trained again, and
            everything is measured again.
        skipped: the same, if training again is not wanted.
    """

    runs: Path
    done: tuple[Job, ...] = ()
    measured: tuple[Job, ...] = ()
    trained: tuple[Job, ...] = ()
    again: tuple[Job, ...] = ()
    skipped: tuple[Job, ...] = ()

    @property
    def left(self) -> tuple[Job, ...]:
        """All jobs to do; measuring first, since it is quick."""
        return (*self.measured, *self.trained, *self.again)

    def states(self) -> dict[str, str]:
        """Return what is left to do of each job, by its id."""
        jobs = {
            "done": self.done,
            "trained, more to measure": self.measured,
            "to train": self.trained,
            "to train again": self.again,
            "skipped": self.skipped,
        }
        return {job.id: state for state, alike in jobs.items() for job in alike}

    def sentences(self) -> list[str]:
        """Return what is going to happen, one sentence each; none if all is done."""
        if not self.left and not self.skipped:
            return []
        n_all = len(self.done) + len(self.left) + len(self.skipped)
        said = [f"{counted(n_all, 'run')}: {len(self.done)} done, {len(self.trained)} to train."]
        if self.measured:
            said.append(f"{counted(len(self.measured), 'run')} to measure further; the weights are available.")
        if self.again:
            said.append(
                f"{counted(len(self.again), 'run')} to train AGAIN: there are results, but more is to be measured, and "
                f"the weights are not in {self.runs}. Everything is measured again; earlier results are moved to "
                f"folders named earlier. {_listed(self.again)}"
            )
        if self.skipped:
            said.append(
                f"{counted(len(self.skipped), 'run')} skipped: there are results, but to measure more they would have "
                f"to be trained again. {_listed(self.skipped)}"
            )
        return said


def plan_of(jobs: Iterable[Job], results: Results, runs: str | Path, *, train_again: bool = True) -> JobPlan:
    """Classify jobs by what is left to do.

    Args:
        jobs: the jobs.
        results: the available results.
        runs: the folder of run folders.
        train_again: whether to train runs again whose weights are gone, or to skip them.
    """
    done, measured, trained, again = [], [], [], []
    for job in jobs:
        result = results.get(job.config, job.scale)
        if job.is_done(results):
            done.append(job)
        elif has_weights(RunFolder(Path(runs) / job.id)):
            measured.append(job)
        elif result is None:
            trained.append(job)
        else:
            both = tuple(dict.fromkeys((*job.measurements, *result.measurements)))
            again.append(replace(job, measurements=both))
    plan = JobPlan(Path(runs), tuple(done), tuple(measured), tuple(trained), tuple(again))
    return plan if train_again else replace(plan, again=(), skipped=plan.again)


def _listed(jobs: Sequence[Job], n_shown: int = 3) -> str:
    names = ", ".join(job.name for job in jobs[:n_shown])
    more = f" and {len(jobs) - n_shown} more" if len(jobs) > n_shown else ""
    return f"({names}{more})"
