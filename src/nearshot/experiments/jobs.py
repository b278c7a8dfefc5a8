"""Jobs: the runs that recipes need, each once, what is left to do of them, and how one is done."""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from functools import cached_property
from pathlib import Path
from typing import Any

from nearshot.errors import InputError, NearshotError
from nearshot.experiments.identity import run_id, validation_id
from nearshot.experiments.measurement import measure, measure_classes
from nearshot.experiments.recipe import Recipe
from nearshot.experiments.results import Measurement, Results, RunResult, result_of
from nearshot.experiments.scales import Scale, scale_named
from nearshot.io import FileLock
from nearshot.runs.network import TrainedRun
from nearshot.text import counted, format_list
from nearshot.training import Hardware, RunFolder, TrainConfig, train
from nearshot.training.assembly import open_splits
from nearshot.training.checkpoint import check_same_training
from nearshot.training.run_folder import run_name

LOCKED = "Another process holds the lock of this run."
STOPPED = "It was stopped and saved a checkpoint; the same command resumes it."
STATES = ("done", "trained, more to measure", "to train", "to train again", "skipped")
DONE, MEASURE, TRAIN, AGAIN, SKIPPED = STATES
LOCK = ".job-lock"  # in a run's folder; the trainer's own lock is not held while the run is measured
JobPlan = dict[str, list["Job"]]  # by what is left to do, one of STATES


@dataclass(frozen=True)
class Job:
    """A run with its seed, what to measure of it beyond validation, and the names of the recipes that need it."""

    config: TrainConfig
    scale: str
    measurements: tuple[Measurement, ...]
    wanted_by: tuple[str, ...]

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
        result = results.get(self.config, self.scale)
        return result is not None and all(result.has(one) for one in self.measurements)


def jobs_of(recipes: Iterable[Recipe], dataset: str | None, scale: Scale, seeds: Iterable[int]) -> list[Job]:
    """Return the jobs of some recipes. Equal runs are one job.

    Jobs are ordered by seed, so that every table gets its first numbers early. The dataset is as in `Recipe.on`.
    """
    jobs: dict[str, Job] = {}
    for seed in seeds:
        for recipe in recipes:
            wanted = (one for chosen in recipe.on(dataset, scale) for one in recipe.wanted(chosen).items())
            for config, measurements in wanted:
                new = Job(replace(scale.change(config), seed=seed), scale.name, (), ())
                old = jobs.get(new.id, new)
                both = tuple(dict.fromkeys((*old.measurements, *measurements)))
                names = tuple(dict.fromkeys((*old.wanted_by, recipe.name)))
                jobs[new.id] = replace(old, measurements=both, wanted_by=names)
    return list(jobs.values())


def chosen_jobs(jobs: Sequence[Job], patterns: Sequence[str]) -> list[Job]:
    """Return the jobs whose name matches a pattern, such as `*,seed=1`, in the order of the patterns; all without any.

    A pattern that matches no job is an error that lists the names.
    """
    chosen = {} if patterns else {job.id: job for job in jobs}
    for pattern in patterns:
        matching = {job.id: job for job in jobs if fnmatchcase(job.name, pattern)}
        if not matching:
            names = ", ".join(sorted({job.name for job in jobs})) or "none, as these recipes need no runs"
            raise InputError(f"only must match a run, but {pattern!r} matches none. The runs are: {names}.")
        chosen |= matching
    return list(chosen.values())


def plan_of(jobs: Iterable[Job], results: Results, runs: str | Path, *, train_again: bool = True) -> JobPlan:
    """Group jobs by what is left to do.

    A run that has a result, of which more is to be measured and whose weights are gone, is trained again and everything
    measured again; unless `train_again`, it is skipped.
    """
    plan: JobPlan = {state: [] for state in STATES}
    for job in jobs:
        result = results.get(job.config, job.scale)
        if job.is_done(results):
            plan[DONE].append(job)
        elif has_weights(RunFolder(Path(runs) / job.id)):
            plan[MEASURE].append(job)
        elif result is None:
            plan[TRAIN].append(job)
        else:
            both = tuple(dict.fromkeys((*job.measurements, *result.measurements)))
            plan[AGAIN if train_again else SKIPPED].append(replace(job, measurements=both))
    return plan


def describe_plan(plan: JobPlan, runs: str | Path) -> list[str]:
    """Return what is going to happen, one sentence each; none if all is done."""
    n_all = sum(map(len, plan.values()))
    if n_all == len(plan[DONE]):
        return []
    said = [f"{counted(n_all, 'run')}: {len(plan[DONE])} done, {len(plan[TRAIN])} to train."]
    about = {
        MEASURE: "to measure further; the weights are available",
        AGAIN: f"to train AGAIN: there are results, but more is to be measured, and the weights are not in {runs}. "
        "Everything is measured again; earlier results are moved to folders named earlier",
        SKIPPED: "skipped: there are results, but to measure more they would have to be trained again",
    }
    for state, what in about.items():
        if plan[state]:
            names = format_list([job.name for job in plan[state]], str)
            said.append(f"{counted(len(plan[state]), 'run')} {what} ({names}).")
    return said


@dataclass(frozen=True)
class JobTask:
    """What a process needs to do a job.

    Attributes:
        accelerator: as in `Hardware`; `n_sharing` jobs share a GPU.
        command: the command that asked for the job, which its result records.
    """

    job: Job
    run_folder: Path
    data_dir: Path | None = None
    accelerator: str = "auto"
    n_sharing: int = 1
    command: tuple[str, ...] = ()


def do(task: JobTask, *, show: bool | None = None) -> RunResult:
    """Train and measure a run, or what is left of it, and return the result."""
    started, run, job, data_dir = time.perf_counter(), RunFolder(task.run_folder), task.job, task.data_dir
    config, is_new = job.config, not (run.path / "config.json").is_file()
    if not is_new:  # equivalent settings may be written otherwise
        begun = run.read_config()
        is_same = run_id(begun) == run_id(config) and validation_id(begun) == validation_id(config)
        config = begun if is_same else config
    if has_weights(run):
        stores = open_splits(config, data_dir)
        check_same_training(run.read("result.json"), config, {name: one.fingerprint for name, one in stores.items()})
    else:
        how: dict[str, Any] = {"hardware": Hardware(task.accelerator), "show": show}
        how |= {"resume": not run.is_finished, "overwrite": run.is_finished}
        if not train(config, folder=run.path, data_dir=data_dir, **how).finished:
            raise NearshotError(STOPPED)
    trained_at = time.perf_counter()
    device = "cpu" if task.accelerator == "cpu" else None
    # In float32 on a GPU too: fine-tuning needs it, and comparisons need one precision.
    trained = TrainedRun(run.path, data_dir=data_dir, device=device, precision="float32")
    asked = {"n_episodes": config.validation_episodes, "n_way": config.validation_way}
    adapted_episodes = scale_named(job.scale).adapted_episodes
    evaluations = measure(trained, job.measurements, **asked, adapted_episodes=adapted_episodes)
    splits = dict.fromkeys(("val", *(one.split for one in job.measurements)))
    by_class = measure_classes(trained, splits, **asked)
    times: dict[str, Any] = {"training_seconds": None, "measuring_seconds": None}
    if is_new:
        times = {"training_seconds": trained_at - started, "measuring_seconds": time.perf_counter() - trained_at}
    return result_of(run, job.scale, evaluations, times | {"by_class": by_class, "n_sharing": task.n_sharing})


def has_weights(run: RunFolder) -> bool:
    """Return whether a run is finished and the weights of its best epochs are available."""
    return run.is_finished and all(run.weights_of(int(best["epoch"])).is_file() for best in run.read_best().values())


def rename_run_folders(runs: Path) -> None:
    """Rename the run folders of an earlier version, which computed identities otherwise, to their present names."""
    for file in sorted(runs.glob("*/config.json")):
        try:
            name = run_id(RunFolder(file.parent).read_config())
        except NearshotError:
            continue
        is_old = re.fullmatch(r"[0-9a-f]{16}", file.parent.name) and file.parent.name != name
        if is_old and not (runs / name).exists() and not is_locked(file.parent):
            file.parent.rename(runs / name)


@contextmanager
def run_lock(run_folder: Path) -> Iterator[None]:
    """Hold the lock of a run until its result is written, or until this process ends."""
    try:
        run_folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"The run folder {run_folder} cannot be created: {error.strerror}.") from error
    lock = FileLock(run_folder / LOCK)
    if not lock.acquire():
        raise NearshotError(LOCKED)
    try:
        yield
    finally:
        lock.release()


def is_locked(run_folder: Path) -> bool:
    """Return whether a process holds the lock of a run; False if that is unknown: starting the run gives the reason."""
    lock, is_free = FileLock(run_folder / LOCK), True
    if (run_folder / LOCK).is_file():
        with suppress(NearshotError):
            is_free = lock.acquire()
            lock.release()
    return not is_free
