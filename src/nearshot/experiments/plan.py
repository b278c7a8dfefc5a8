"""What is left to do of some jobs, said before it is begun."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from nearshot.experiments.jobs import Job, has_weights
from nearshot.experiments.results import Results
from nearshot.text import counted
from nearshot.training import RunFolder

__all__ = ["Plan", "plan_of"]


@dataclass(frozen=True)
class Plan:
    """Jobs by what is left to do of them.

    Attributes:
        done: nothing.
        measured: something more is to be measured of weights that are there.
        trained: they are trained for the first time, or gone on with.
        again: there is a result, something more is to be measured, and the weights are gone: they are trained again,
            and all that was measured is measured again of the new weights.
        runs: where run folders are.
        as_they_are: they would have to be trained again, and that is not wanted.
    """

    done: tuple[Job, ...]
    measured: tuple[Job, ...]
    trained: tuple[Job, ...]
    again: tuple[Job, ...]
    runs: Path
    as_they_are: tuple[Job, ...] = ()

    def without_again(self) -> Plan:
        """Return the plan that trains nothing again: such jobs are left as they are, without what more is wanted."""
        return replace(self, again=(), as_they_are=(*self.as_they_are, *self.again))

    @property
    def left(self) -> tuple[Job, ...]:
        """All that is not done; measuring first, since it is quick."""
        return (*self.measured, *self.trained, *self.again)

    def states(self) -> dict[str, str]:
        """Return what is left to do of each job, by its id, in words."""
        jobs = {
            "done": self.done,
            "trained, to measure more of": self.measured,
            "to train": self.trained,
            "to train again": self.again,
            "left as it is": self.as_they_are,
        }
        return {job.id: state for state, alike in jobs.items() for job in alike}

    def sentences(self) -> list[str]:
        """Return what is going to happen, a sentence each; none where all is done."""
        if not self.left and not self.as_they_are:
            return []
        n_all = len(self.done) + len(self.left) + len(self.as_they_are)
        said = [f"{counted(n_all, 'training')}: {len(self.done)} done, {len(self.trained)} to train."]
        if self.measured:
            said.append(f"{counted(len(self.measured), 'training')} to measure more of; the weights are there.")
        if self.again:
            said.append(
                f"{counted(len(self.again), 'training')} to train AGAIN: there are results, but more is wanted, and "
                f"the weights are not in {self.runs}. What was measured is measured again; the results so far are kept "
                f"beside the new ones, in folders named earlier. {_listed(self.again)}"
            )
        if self.as_they_are:
            left = "left as it is" if len(self.as_they_are) == 1 else "left as they are"
            said.append(
                f"{counted(len(self.as_they_are), 'training')} {left}: there are results, but more is wanted, which "
                f"would take training again. {_listed(self.as_they_are)}"
            )
        return said


def plan_of(jobs: Iterable[Job], results: Results, runs: str | Path) -> Plan:
    """Sort jobs by what is left to do of them.

    Args:
        jobs: the jobs.
        results: the results there are.
        runs: where run folders are.
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
    return Plan(tuple(done), tuple(measured), tuple(trained), tuple(again), Path(runs))


def _listed(jobs: Sequence[Job], n_shown: int = 3) -> str:
    names = ", ".join(job.name for job in jobs[:n_shown])
    more = f" and {len(jobs) - n_shown} more" if len(jobs) > n_shown else ""
    return f"({names}{more})"
