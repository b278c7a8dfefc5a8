"""Jobs: the runs that recipes need, each once, what is left to do of them, and about how long that takes."""

import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from functools import cached_property
from pathlib import Path

from nearshot.errors import InputError
from nearshot.paper.identity import batches_of, run_id
from nearshot.paper.numbers import TRAINING_CLASSES
from nearshot.paper.recipe import Recipe
from nearshot.paper.results import Measurement, Results
from nearshot.paper.scales import Scale
from nearshot.training import RunFolder, TrainConfig
from nearshot.training.run_folder import run_name

STATES = ("done", "trained, more to measure", "to train", "to train again", "skipped")
DONE, MEASURE, TRAIN, AGAIN, SKIPPED = STATES
JobPlan = dict[str, list["Job"]]  # by what is left to do, one of STATES
# Images of the training splits, for datasets that may not be prepared here.
TRAINING_IMAGES = {
    name: n_classes * n_images for name, (n_classes, n_images) in TRAINING_CLASSES.items()
}
TRAINING_IMAGES |= {"tiered-imagenet": 448_695, "glyphs": 32_120}
# Images per second on an H200, everything included, by the side; in between and beyond, a power law
# through both.
H200 = {84: 15_000.0, 32: 47_000.0}
POWER = math.log(H200[32] / H200[84]) / math.log(84 / 32)
CORE_AT_28 = 1_700.0  # images per second of a small network on a CPU core


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


def jobs_of(
    recipes: Iterable[Recipe], dataset: str | None, scale: Scale, seeds: Iterable[int]
) -> list[Job]:
    """Return the jobs of some recipes. Equal runs are one job.

    Jobs are ordered by seed, so that every table gets its first numbers early. The dataset is as in
    `Recipe.on`.
    """
    jobs: dict[str, Job] = {}
    for seed in seeds:
        for recipe in recipes:
            wanted = (
                one for chosen in recipe.on(dataset, scale) for one in recipe.wanted(chosen).items()
            )
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
            names = (
                ", ".join(sorted({job.name for job in jobs}))
                or "none, as these recipes need no runs"
            )
            raise InputError(
                f"only must match a run, but {pattern!r} matches none. The runs are: {names}."
            )
        chosen |= matching
    return list(chosen.values())


def plan_of(
    jobs: Iterable[Job], results: Results, runs: str | Path, *, train_again: bool = True
) -> JobPlan:
    """Group jobs by what is left to do.

    A run that has a result, of which more is to be measured and whose weights are gone, is trained
    again and everything measured again; unless `train_again`, it is skipped.
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


def has_weights(run: RunFolder) -> bool:
    """Return whether a run is finished and the weights of its best epochs are available."""
    return run.is_finished and all(
        run.weights_of(int(best["epoch"])).is_file() for best in run.read_best().values()
    )


def images_of(config: TrainConfig) -> int:
    """Return how many images a run sees; datasets that may not be prepared have their usual size.

    >>> from nearshot.training import PRESETS
    >>> images_of(PRESETS["cifar-fs-prototypical-snell"])  # 240 epochs of 75 episodes of 20 × (5 + 15) images
    7200000
    """
    batch_size = config.shape.batch_size if batches_of(config) == "episodes" else config.batch_size
    steps = config.steps_per_epoch or TRAINING_IMAGES.get(config.dataset, 0) // batch_size
    return config.epochs * steps * batch_size


def estimate(jobs: Sequence[Job], results: Results) -> tuple[float, str]:
    """Return how many seconds jobs of one scale take, one after the other, and on which device most of them do.

    By the median of earlier runs of the same network and size, or by known machines.
    """
    rates: dict[tuple[str, int | None], list[float]] = {}  # images per second
    devices: dict[tuple[str, int | None], str] = {}
    for run in results.of_scale(jobs[0].scale):
        n_images, kind = images_of(run.config), _kind(run.config)
        if run.job_seconds and n_images:
            rates.setdefault(kind, []).append(n_images * run.n_sharing / run.job_seconds)
            devices[kind] = f"{run.device}, judging by earlier runs"
    seconds, where = 0.0, list[str]()
    for config in (job.config for job in jobs):
        kind, side = _kind(config), config.input_size or 84
        if kind in rates:
            rate, device = statistics.median(rates[kind]), devices[kind]
        elif config.backbone.startswith("conv4"):
            rate, device = CORE_AT_28 * (28 / side) ** 2, "a CPU core"
        else:
            rate, device = H200[84] * (84 / side) ** POWER, "an H200"
        seconds += images_of(config) / rate
        where.append(device)
    return seconds, statistics.mode(where)


def _kind(config: TrainConfig) -> tuple[str, int | None]:
    return config.backbone.removesuffix("-dropblock"), config.input_size


def describe_cost(jobs: Sequence[Job], results: Results, n_at_once: int = 1) -> str:
    """Return how many images jobs see and how long that takes, `n_at_once` at a time."""
    n_at_once, (seconds, device) = min(n_at_once, len(jobs)), estimate(jobs, results)
    images = sum(images_of(job.config) for job in jobs)
    many = f"{images / 1e6:,.1f} M" if images >= 1e6 else f"{images / 1e3:,.0f} k"
    parallel = f", {n_at_once} at once" if n_at_once > 1 else ""
    return f"{many} images, about {rough_duration(seconds / n_at_once)} on {device}{parallel}"


def rough_duration(seconds: float) -> str:
    """Return a time in words, such as "10 min" or "2.5 h"."""
    return f"{seconds / 3600:.1f} h" if seconds >= 3600 else f"{max(1, round(seconds / 60))} min"
