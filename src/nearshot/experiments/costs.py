"""Estimate how long runs take: by earlier runs of the same network and size, or by known machines."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from nearshot.experiments.identity import batches_of
from nearshot.experiments.jobs import Job, has_weights
from nearshot.experiments.paper_configs import TRAINING_CLASSES
from nearshot.experiments.results import Results, RunResult
from nearshot.training import RunFolder, TrainConfig

__all__ = ["Estimate", "TimeLimit", "describe_cost", "estimates", "images_of", "rough_duration", "seconds_left"]

# Images of the training splits, for datasets that may not be prepared here.
TRAINING_IMAGES = {name: n_classes * n_images for name, (n_classes, n_images) in TRAINING_CLASSES.items()}
TRAINING_IMAGES |= {"tiered-imagenet": 448_695, "glyphs": 32_120}
# Images per second on an H200, everything included, by the side; in between and beyond, a power law through both.
H200 = {84: 15_000.0, 32: 47_000.0}
POWER = math.log(H200[32] / H200[84]) / math.log(84 / 32)
CORE_AT_28 = 1_700.0  # images per second of a small network on a CPU core
SECONDS_TO_START = 10.0
SECONDS_TO_MEASURE = 60.0  # if no earlier run tells


class Estimate(NamedTuple):
    """How long a job takes on a device of its own.

    Attributes:
        training: seconds to train.
        measuring: seconds to measure; 0 if unknown.
        where: the device that the estimate is for.
    """

    training: float
    measuring: float
    where: str

    @property
    def seconds(self) -> float:
        """Both together."""
        return self.training + self.measuring


def images_of(config: TrainConfig) -> int:
    """Return how many images a run sees; datasets that may not be prepared have their usual size.

    >>> from nearshot.training import PRESETS
    >>> images_of(PRESETS["cifar-fs-prototypical-snell"])  # 240 epochs of 75 episodes of 20 × (5 + 15) images
    7200000
    """
    batch_size = _batch_size(config)
    steps = config.steps_per_epoch or TRAINING_IMAGES.get(config.dataset, 0) // batch_size
    return config.epochs * steps * batch_size


def estimates(jobs: Sequence[Job], results: Results, device: str | None = None) -> list[Estimate]:
    """Estimate the time of each of some jobs of one scale, by the median of earlier runs.

    Runs of the same batch size count if there are any, since small batches are slower.

    Args:
        jobs: the jobs.
        results: the available results.
        device: if any results are from this device, only they count.
    """
    known = list(results.of_scale(jobs[0].scale)) if jobs else []
    known = [one for one in known if one.device == device] or known
    rates: dict[tuple[object, ...], list[tuple[float, str]]] = {}
    measuring: dict[tuple[object, ...], list[float]] = {}
    for run in known:
        kind = _kind(run.config)
        if run.training_seconds and images_of(run.config):
            rate = images_of(run.config) / run.training_seconds * run.n_sharing
            for key in (kind, (*kind, _batch_size(run.config))):
                rates.setdefault(key, []).append((rate, f"{run.device}, as before"))
        if run.measuring_seconds:
            measuring.setdefault((*kind, _adapts(run)), []).append(run.measuring_seconds / run.n_sharing)
    found = []
    for job in jobs:
        kind = _kind(job.config)
        alike = rates.get((*kind, _batch_size(job.config))) or rates.get(kind)
        took = statistics.median(measuring.get((*kind, _adapts(job)), [0.0]))
        if alike:
            seconds = images_of(job.config) / statistics.median(rate for rate, _ in alike)
            found.append(Estimate(seconds, took, statistics.mode(where for _, where in alike)))
        else:
            rate, where = _known_rate(job.config)
            found.append(Estimate(images_of(job.config) / rate + SECONDS_TO_START, took, where))
    return found


def describe_cost(jobs: Sequence[Job], results: Results, n_at_once: int = 1) -> str:
    """Return how many images jobs see and how long that takes, `n_at_once` at a time; "" for no jobs."""
    if not jobs:
        return ""
    n_at_once = min(n_at_once, len(jobs))
    expected = estimates(jobs, results)
    images = sum(images_of(job.config) for job in jobs)
    many = f"{images / 1e6:,.1f} M" if images >= 1e6 else f"{images / 1e3:,.0f} k"
    where = statistics.mode(one.where for one in expected)
    parallel = f", {n_at_once} at once" if n_at_once > 1 else ""
    return (
        f"{many} images, about {rough_duration(sum(one.seconds for one in expected) / n_at_once)} on {where}{parallel}"
    )


def seconds_left(jobs: Sequence[Job], results: Results, runs: Path, device: str) -> list[float]:
    """Estimate how long the rest of each of some jobs takes on a device of its own."""
    expected = estimates(jobs, results, device)
    left = [_share_left(RunFolder(runs / job.id), job.config) for job in jobs]
    return [
        share * one.training + (one.measuring or (0.0 if share else SECONDS_TO_MEASURE))
        for one, share in zip(expected, left, strict=True)
    ]


@dataclass
class TimeLimit:
    """A limit for jobs together: jobs that would not end in time are not started.

    Attributes:
        seconds: for all of them, from now on.
        estimate: returns how long each of some jobs takes.
        clock: the present time in seconds.
        expected: the latest estimates, by the jobs' identities.
    """

    seconds: float
    estimate: Callable[[Sequence[Job]], Sequence[float]]
    clock: Callable[[], float] = time.monotonic
    expected: dict[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.began = self.clock()

    @property
    def left(self) -> float:
        """The seconds that are left."""
        return self.seconds - (self.clock() - self.began)

    def allowed(self, jobs: Sequence[Job]) -> list[Job]:
        """Return the jobs that would probably end in time if they were started now."""
        self.expected |= {job.id: seconds for job, seconds in zip(jobs, self.estimate(jobs), strict=True)}
        return [job for job in jobs if self.expected[job.id] <= self.left]


def rough_duration(seconds: float) -> str:
    """Return a time in words.

    >>> rough_duration(50), rough_duration(600), rough_duration(9000)
    ('1 min', '10 min', '2.5 h')
    """
    if seconds >= 3600:
        return f"{seconds / 3600:.1f} h"
    return f"{max(1, round(seconds / 60))} min"


def _batch_size(config: TrainConfig) -> int:
    return config.shape.batch_size if batches_of(config) == "episodes" else config.batch_size


def _kind(config: TrainConfig) -> tuple[str, int | None]:
    return config.backbone.removesuffix("-dropblock"), config.input_size


def _adapts(measured: Job | RunResult) -> bool:
    """Return whether a measurement adapts to each episode, which takes most of the time."""
    return any(one.adapted for one in measured.measurements)


def _share_left(run: RunFolder, config: TrainConfig) -> float:
    """Return the share of its epochs that a run still has to train; 0 if it only has to be measured."""
    if has_weights(run):
        return 0.0
    if run.is_finished or not run.metrics.is_file():
        return 1.0  # a finished one without weights is trained again
    return max(1 - run.metrics.read_text().count("\n") / config.epochs, 1 / config.epochs)


def _known_rate(config: TrainConfig) -> tuple[float, str]:
    """Return the images per second of a machine that was measured, and which."""
    side = config.input_size or 84
    if config.backbone.startswith("conv4"):
        return CORE_AT_28 * (28 / side) ** 2, "a CPU core"
    return H200[84] * (84 / side) ** POWER, "an H200"
