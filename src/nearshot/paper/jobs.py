"""Jobs: the runs that recipes need, each once, and what is left to do of them."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from functools import cached_property
from pathlib import Path

from nearshot.errors import InputError, look_up
from nearshot.paper.identity import run_id
from nearshot.paper.recipe import Recipe, Row
from nearshot.paper.results import Measurement, Results
from nearshot.paper.sizes import Size
from nearshot.training import RunFolder, TrainConfig
from nearshot.training.run_folder import run_name


@dataclass(frozen=True)
class Job:
    """A run with its seed, what to measure beyond validation, and the recipes that need it.

    Attributes:
        after: the id of the job that trains its teacher, if it has one.
    """

    config: TrainConfig
    size: Size
    measurements: tuple[Measurement, ...]
    recipes: tuple[str, ...]
    after: str | None = None

    @cached_property
    def id(self) -> str:
        """The identity of the run."""
        return run_id(self.config)

    @cached_property
    def name(self) -> str:
        """The nearest preset and the settings that differ from it."""
        return run_name(self.config)

    def is_done(self, results: Results) -> bool:
        """Return whether its result is available, with all measurements."""
        result = results.get(self.config)
        if result is None:
            return False
        return all(result.has(measurement) for measurement in self.measurements)


@dataclass(frozen=True)
class JobPlan:
    """Jobs by what is left to do.

    Attributes:
        done: their results are available, with all measurements.
        to_measure: trained, and the weights are available.
        to_train: without a result.
        to_train_again: with a result of which more is to be measured, but without weights;
            everything is measured again.
        skipped: the same, where nothing is to be trained again.
    """

    done: list[Job] = field(default_factory=list)
    to_measure: list[Job] = field(default_factory=list)
    to_train: list[Job] = field(default_factory=list)
    to_train_again: list[Job] = field(default_factory=list)
    skipped: list[Job] = field(default_factory=list)

    @property
    def by_state(self) -> dict[str, list[Job]]:
        """The jobs by what messages call their state."""
        return {
            "done": self.done,
            "to measure": self.to_measure,
            "to train": self.to_train,
            "to train again": self.to_train_again,
            "skipped": self.skipped,
        }

    @property
    def left(self) -> list[Job]:
        """The jobs to run, in order: measuring first, since it is quick."""
        return [*self.to_measure, *self.to_train, *self.to_train_again]


def jobs_of(
    recipes: Iterable[Recipe], dataset: str | None, size: Size, seeds: Iterable[int]
) -> list[Job]:
    """Return the jobs of some recipes. Equal runs are one job.

    Jobs are ordered by seed, so that every table gets its first numbers early. The dataset is as in
    `Recipe.datasets_for`. A row's `teacher` is the `run_id` of the settings of another row of the
    recipe: the student learns from that row's run with the same seed.
    """
    recipes = list(recipes)
    jobs: dict[str, Job] = {}
    for seed in seeds:
        for recipe in recipes:
            for recipe_dataset in recipe.datasets_for(dataset, size):
                rows = recipe.rows(recipe_dataset)
                teachers = {run_id(row.config): row.config for row in rows}
                for row in rows:
                    job = _job_of(row, recipe.name, size, seed, teachers)
                    if job.id in jobs:
                        job = _merged(jobs[job.id], job)
                    jobs[job.id] = job
    return list(jobs.values())


def _job_of(
    row: Row, recipe: str, size: Size, seed: int, teachers: Mapping[str, TrainConfig]
) -> Job:
    """Return the job of a row at a size, with a seed."""
    config = replace(size.change(row.config), seed=seed)
    after = None
    if config.teacher is not None:
        teacher = look_up(teachers, config.teacher, f"run of {recipe}")
        after = run_id(replace(size.change(teacher), seed=seed))
    return Job(config, size, row.to_measure, (recipe,), after)


def _merged(first: Job, second: Job) -> Job:
    """Return the job of the same run with the measurements of both."""
    measurements = dict.fromkeys((*first.measurements, *second.measurements))
    recipes = dict.fromkeys((*first.recipes, *second.recipes))
    return replace(first, measurements=tuple(measurements), recipes=tuple(recipes))


def choose_jobs(jobs: Sequence[Job], patterns: Sequence[str]) -> list[Job]:
    """Return the jobs whose name matches a pattern, in the order of the patterns.

    Without patterns, return all. A pattern such as `*,seed=1` that matches no job is an error that
    lists the names.
    """
    if not patterns:
        return list(jobs)
    chosen: dict[str, Job] = {}
    for pattern in patterns:
        matching = [job for job in jobs if fnmatchcase(job.name, pattern)]
        if not matching:
            names = ", ".join(sorted({job.name for job in jobs})) or "none"
            raise InputError(
                f"only must match a run, but {pattern!r} matches none. The runs are: {names}."
            )
        for job in matching:
            chosen[job.id] = job
    return list(chosen.values())


def plan_jobs(
    jobs: Iterable[Job], results: Results, runs: str | Path, *, train_again: bool = True
) -> JobPlan:
    """Classify jobs as done, to measure, to train, or to train again.

    A run that has a result, of which more is to be measured and whose weights are gone, is trained
    again and everything measured again; unless `train_again`, it is skipped.
    """
    plan = JobPlan()
    for job in jobs:
        result = results.get(job.config)
        if job.is_done(results):
            plan.done.append(job)
        elif has_weights(RunFolder(Path(runs) / job.id)):
            plan.to_measure.append(job)
        elif result is None:
            plan.to_train.append(job)
        else:
            measurements = dict.fromkeys((*job.measurements, *result.measurements))
            with_all = replace(job, measurements=tuple(measurements))
            if train_again:
                plan.to_train_again.append(with_all)
            else:
                plan.skipped.append(with_all)
    return plan


def has_weights(run: RunFolder) -> bool:
    """Return whether a run is finished and the weights of its best epochs are available."""
    if not run.is_finished:
        return False
    epochs = {int(best["epoch"]) for best in run.read_best().values()}
    return all(run.weights_of(epoch).is_file() for epoch in epochs)
