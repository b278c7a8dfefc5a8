"""Estimate how long runs take: by earlier runs of the same network and size, or by known machines."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

from nearshot.experiments.identity import batches_of
from nearshot.experiments.jobs import Job
from nearshot.experiments.paper import TRAINING_CLASSES
from nearshot.experiments.results import Results
from nearshot.training import TrainConfig

# Images of the training splits, for datasets that may not be prepared here.
TRAINING_IMAGES = {name: n_classes * n_images for name, (n_classes, n_images) in TRAINING_CLASSES.items()}
TRAINING_IMAGES |= {"tiered-imagenet": 448_695, "glyphs": 32_120}
# Images per second on an H200, everything included, by the side; in between and beyond, a power law through both.
H200 = {84: 15_000.0, 32: 47_000.0}
POWER = math.log(H200[32] / H200[84]) / math.log(84 / 32)
CORE_AT_28 = 1_700.0  # images per second of a small network on a CPU core


def images_of(config: TrainConfig) -> int:
    """Return how many images a run sees; datasets that may not be prepared have their usual size.

    >>> from nearshot.training import PRESETS
    >>> images_of(PRESETS["cifar-fs-prototypical-snell"])  # 240 epochs of 75 episodes of 20 × (5 + 15) images
    7200000
    """
    batch_size = config.shape.batch_size if batches_of(config) == "episodes" else config.batch_size
    steps = config.steps_per_epoch or TRAINING_IMAGES.get(config.dataset, 0) // batch_size
    return config.epochs * steps * batch_size


def estimates(jobs: Sequence[Job], results: Results) -> list[tuple[float, str]]:
    """Return how many seconds each of some jobs of one scale takes on a device of its own, and on which.

    By the median of earlier runs.
    """
    known = list(results.of_scale(jobs[0].scale)) if jobs else []
    known = [run for run in known if run.job_seconds and images_of(run.config)]
    rates: dict[tuple[str, int | None], list[float]] = {}
    for run in known:
        rates.setdefault(_kind(run.config), []).append(images_of(run.config) * run.n_sharing / run.job_seconds)
    devices = {_kind(run.config): f"{run.device}, as before" for run in known}
    found = []
    for config in (job.config for job in jobs):
        kind, side = _kind(config), config.input_size or 84
        if kind in rates:
            rate, where = statistics.median(rates[kind]), devices[kind]
        elif config.backbone.startswith("conv4"):
            rate, where = CORE_AT_28 * (28 / side) ** 2, "a CPU core"
        else:
            rate, where = H200[84] * (84 / side) ** POWER, "an H200"
        found.append((images_of(config) / rate, where))
    return found


def _kind(config: TrainConfig) -> tuple[str, int | None]:
    return config.backbone.removesuffix("-dropblock"), config.input_size


def describe_cost(jobs: Sequence[Job], results: Results, n_at_once: int = 1) -> str:
    """Return how many images jobs see and how long that takes, `n_at_once` at a time; "" for no jobs."""
    if not jobs:
        return ""
    n_at_once = min(n_at_once, len(jobs))
    expected = estimates(jobs, results)
    images = sum(images_of(job.config) for job in jobs)
    many = f"{images / 1e6:,.1f} M" if images >= 1e6 else f"{images / 1e3:,.0f} k"
    duration = rough_duration(sum(seconds for seconds, _ in expected) / n_at_once)
    parallel = f", {n_at_once} at once" if n_at_once > 1 else ""
    return f"{many} images, about {duration} on {statistics.mode(where for _, where in expected)}{parallel}"


def rough_duration(seconds: float) -> str:
    """Return a time in words.

    >>> rough_duration(50), rough_duration(600), rough_duration(9000)
    ('1 min', '10 min', '2.5 h')
    """
    return f"{seconds / 3600:.1f} h" if seconds >= 3600 else f"{max(1, round(seconds / 60))} min"
