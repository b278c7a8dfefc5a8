"""Jobs: the trainings that recipes want and that there are no results of yet, each once, whoever wants it."""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from functools import cached_property
from pathlib import Path
from typing import Any

from nearshot.errors import InputError, NearshotError
from nearshot.experiments.by_class import measure_classes
from nearshot.experiments.identity import VALIDATION_SETTINGS, run_id
from nearshot.experiments.locks import is_owned
from nearshot.experiments.measurement import measure
from nearshot.experiments.recipe import Recipe
from nearshot.experiments.results import DAMAGED, Measurement, Results, RunResult, result_of
from nearshot.experiments.scales import ADAPTED_EPISODES, Scale
from nearshot.runs.network import TrainedRun
from nearshot.training import Hardware, RunFolder, TrainConfig, train
from nearshot.training.assembly import open_splits
from nearshot.training.checkpoint import check_same_training
from nearshot.training.run_folder import run_name

__all__ = [
    "BUSY",
    "STOPPED",
    "InterruptedJobError",
    "Job",
    "called",
    "chosen_jobs",
    "do",
    "has_weights",
    "jobs_of",
    "rename_run_folders",
]


STOPPED = 3  # a worker's status where it was asked to stop, and saved
BUSY = 4  # and where another process is at the job


class InterruptedJobError(NearshotError):
    """A job was asked to stop, and has saved what it had."""


@dataclass(frozen=True)
class Job:
    """A training, what is to be measured of it, and who wants it.

    Attributes:
        config: the settings, with a seed.
        scale: the scale's name.
        measurements: what to measure beyond validation.
        wanted_by: names of recipes.
        adapted_episodes: on how many episodes adapted features are measured.
    """

    config: TrainConfig
    scale: str
    measurements: tuple[Measurement, ...]
    wanted_by: tuple[str, ...]
    adapted_episodes: int = ADAPTED_EPISODES

    @cached_property
    def id(self) -> str:
        """What identifies the training."""
        return run_id(self.config)

    @cached_property
    def name(self) -> str:
        """What to call it: its nearest preset and what differs."""
        return run_name(self.config)

    def is_done(self, results: Results) -> bool:
        """Whether its result is there, with all that is to be measured."""
        result = results.get(self.config, self.scale)
        return result is not None and all(result.has(one) for one in self.measurements)

    def as_dict(self) -> dict[str, Any]:
        """Return it as JSON can hold it."""
        measurements = [vars(one) | {"layers": list(one.layers)} for one in self.measurements]
        return {
            "config": self.config.as_dict(),
            "scale": self.scale,
            "measurements": measurements,
            "wanted_by": list(self.wanted_by),
            "adapted_episodes": self.adapted_episodes,
        }

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Job:
        """Return the job of which `as_dict` gave the values."""
        measurements = (Measurement(**one | {"layers": tuple(one["layers"])}) for one in values["measurements"])
        config = TrainConfig.from_dict(values["config"])
        names, n_episodes = tuple(values["wanted_by"]), int(values["adapted_episodes"])
        return cls(config, values["scale"], tuple(measurements), names, n_episodes)


def jobs_of(recipes: Iterable[Recipe], dataset: str | None, scale: Scale, seeds: Iterable[int]) -> list[Job]:
    """Return the jobs of some recipes. Trainings that are the same, by whatever name, are one job.

    Seed by seed, so that every table has its first numbers early. Without a dataset, on each recipe's first; "all" is
    each of its datasets. A scale with a dataset of its own has each training once.
    """
    jobs: dict[str, Job] = {}
    for seed in seeds:
        for recipe in recipes:
            for wanted in (one for chosen in recipe.on(dataset, scale) for one in recipe.wanted(chosen)):
                config = replace(scale.change(wanted.config), seed=seed)
                key = run_id(config)
                if key in jobs:
                    old = jobs[key]
                    measurements = tuple(dict.fromkeys(old.measurements + wanted.measurements))
                    names = tuple(dict.fromkeys((*old.wanted_by, recipe.name)))
                    jobs[key] = replace(old, measurements=measurements, wanted_by=names)
                else:
                    jobs[key] = Job(config, scale.name, wanted.measurements, (recipe.name,), scale.adapted_episodes)
    return list(jobs.values())


def chosen_jobs(jobs: Sequence[Job], patterns: Sequence[str]) -> list[Job]:
    """Return the jobs whose name matches one of some patterns, such as `*,seed=1`, in the order of the patterns.

    Without patterns, all of them. A pattern that no job matches is refused with the names there are.
    """
    if not patterns:
        return list(jobs)
    if not jobs:
        raise InputError("Nothing of it is trained; leave --only out.")
    chosen: dict[str, Job] = {}
    for pattern in patterns:
        matching = {job.id: job for job in jobs if fnmatchcase(job.name, pattern)}
        if not matching:
            names = ", ".join(sorted({job.name for job in jobs}))
            several = " (several patterns are separated by spaces)" if "," in pattern else ""
            raise InputError(f"None of these trainings is called {pattern!r}{several}. They are: {names}.")
        chosen |= matching
    return list(chosen.values())


def do(
    job: Job,
    run_folder: Path,
    *,
    data_dir: str | Path | None = None,
    hardware: Hardware | None = None,
    show: bool | None = None,
    n_sharing: int = 1,
) -> RunResult:
    """Do a job, or what is left of it: train, measure, and return the result.

    Args:
        job: the job.
        run_folder: where the run's files go, or are.
        data_dir: where prepared datasets live.
        hardware: on what to train.
        show: whether to show progress.
        n_sharing: how many jobs share the GPU. The result says it of the training, and how long measuring took only
            where it was measured on the same device, shared by as many.
    """
    started, is_new = time.perf_counter(), not (run_folder / "config.json").is_file()
    config = _begun_as(run_folder, job.config)
    run = RunFolder(run_folder)
    if has_weights(run):
        stores = open_splits(config, data_dir)
        check_same_training(run.read("result.json"), config, {name: one.fingerprint for name, one in stores.items()})
    else:
        outcome = train(
            config,
            folder=run_folder,
            data_dir=data_dir,
            hardware=hardware,
            resume=not run.is_finished,
            overwrite=run.is_finished,
            show=show,
        )
        if not outcome.finished:
            raise InterruptedJobError(f"{job.name} was asked to stop, and goes on when it is run again.")
    trained_at = time.perf_counter()
    device = "cpu" if hardware is not None and hardware.accelerator == "cpu" else None
    # In float32 on a GPU too: fine-tuning needs it, and what it is compared with should differ in nothing else.
    trained = TrainedRun(run_folder, data_dir=data_dir, device=device, precision="float32")
    n_episodes, n_way = config.validation_episodes, config.validation_way
    evaluations = measure(
        trained, job.measurements, n_episodes=n_episodes, n_way=n_way, adapted_episodes=job.adapted_episodes
    )
    splits = dict.fromkeys(("val", *(one.split for one in job.measurements)))
    by_class = measure_classes(trained, splits, n_episodes=n_episodes, n_way=n_way)
    return result_of(
        trained.run,
        job.scale,
        evaluations,
        by_class=by_class,
        training_seconds=trained_at - started if is_new else None,
        measuring_seconds=time.perf_counter() - trained_at if is_new else None,
        n_sharing=n_sharing,
    )


def has_weights(run: RunFolder) -> bool:
    """Whether a run is finished, and the weights of its best epochs are there."""
    return run.is_finished and all(run.weights_of(int(best["epoch"])).is_file() for best in run.read_best().values())


def _begun_as(run_folder: Path, config: TrainConfig) -> TrainConfig:
    """Return the settings that the folder's run was begun with, if they are the same training in other words."""
    if not (run_folder / "config.json").is_file():
        return config
    begun = RunFolder(run_folder).read_config()
    watching = all(getattr(begun, name) == getattr(config, name) for name in VALIDATION_SETTINGS)
    return begun if watching and run_id(begun) == run_id(config) else config


@contextmanager
def called(command: tuple[str, ...]) -> Iterator[None]:
    """Note in results the command that asked for them; a worker's own says nothing to anybody."""
    before, sys.argv = sys.argv, list(command)
    try:
        yield
    finally:
        sys.argv = before


def rename_run_folders(runs: Path) -> None:
    """Rename the run folders of an earlier version, which computed identities otherwise, to their present names."""
    for file in sorted(runs.glob("*/config.json")):
        try:
            name = run_id(RunFolder(file.parent).read_config())
        except DAMAGED:
            continue
        is_old = re.fullmatch(r"[0-9a-f]{16}", file.parent.name) and file.parent.name != name
        if is_old and not (runs / name).exists() and not is_owned(file.parent):
            file.parent.rename(runs / name)
