"""What trainings cost: how many images they see, and about how long that takes."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from nearshot.experiments.identity import batches_of
from nearshot.experiments.jobs import Job, has_weights
from nearshot.experiments.paper_configs import TRAINING_CLASSES
from nearshot.experiments.results import Results, RunResult
from nearshot.training import RunFolder, TrainConfig

__all__ = ["Cost", "cost_of", "duration", "images_of", "seconds_of"]

# Images of the training splits, for datasets that may not be prepared here.
TRAINING_IMAGES = {name: n_classes * n_images for name, (n_classes, n_images) in TRAINING_CLASSES.items()}
TRAINING_IMAGES |= {"tiered-imagenet": 448_695, "glyphs": 32_120}
# Measured on an H200, everything included: 15,000 images a second at 84×84, 47,000 at 32×32. Between and beyond, a
# power of the side goes through both.
H200 = {84: 15_000.0, 32: 47_000.0}
POWER = math.log(H200[32] / H200[84]) / math.log(84 / 32)
CORE_AT_28 = 1_700.0  # a small network, on a core of a CPU
SECONDS_TO_START = 10.0  # what also the shortest training takes
SECONDS_TO_MEASURE = 60.0  # something more, of weights that are there

ENOUGH = 3  # trainings of a batch size, for it to be judged by them alone

Kind = tuple[str, int | None]  # of network and size


class Cost(NamedTuple):
    """What some trainings cost.

    Attributes:
        images: how many images they see.
        seconds: how long they take.
        where: on what.
        n_at_once: how many of them run side by side.
    """

    images: int
    seconds: float
    where: str
    n_at_once: int = 1

    def __str__(self) -> str:
        if not self.images:
            return "–"
        side_by_side = f", {self.n_at_once} at once" if self.n_at_once > 1 else ""
        return f"about {duration(self.seconds)} on {self.where}{side_by_side}"


def images_of(config: TrainConfig) -> int:
    """Return how many images a training sees; of a dataset that may not be prepared, by its usual size.

    >>> from nearshot.training import PRESETS
    >>> images_of(PRESETS["cifar-fs-prototypical-snell"])  # 240 epochs of 75 episodes of 20 × (5 + 15) images
    7200000
    """
    batch_size = _batch_size(config)
    steps = config.steps_per_epoch or TRAINING_IMAGES.get(config.dataset, 0) // batch_size
    return config.epochs * steps * batch_size


def _batch_size(config: TrainConfig) -> int:
    return config.shape.batch_size if batches_of(config) == "episodes" else config.batch_size


def cost_of(jobs: Iterable[Job], results: Results, n_at_once: int = 1) -> Cost:
    """Return what jobs cost: by the trainings of the same network and size that there are, or by what is known.

    Of these by the ones of the same batch size, where there are enough: small batches are slower.

    Args:
        jobs: trainings, of one scale.
        results: the results there are, for how long others took.
        n_at_once: how many run side by side.
    """
    jobs = list(jobs)
    n_at_once = max(1, min(n_at_once, len(jobs)))
    expected = _expectations(jobs, results)
    images, seconds = sum(images_of(job.config) for job in jobs), sum(one.training + one.measuring for one in expected)
    return Cost(images, seconds / n_at_once, statistics.mode(one.where for one in expected) if jobs else "", n_at_once)


def seconds_of(jobs: Sequence[Job], results: Results, runs: Path, device: str) -> list[float]:
    """Return how long each of some jobs would take alone: what is left of it, judged by others on the same device.

    Where there are none on it, by others elsewhere.

    Args:
        jobs: trainings, of one scale.
        results: the results there are, for how long others took.
        runs: where run folders are, for how far a training is.
        device: the device's name, as results have it.
    """
    expected = _expectations(jobs, results, device)
    left = [_share_left(RunFolder(runs / job.id), job.config) for job in jobs]
    return [
        share * one.training + (one.measuring or (0.0 if share else SECONDS_TO_MEASURE))
        for one, share in zip(expected, left, strict=True)
    ]


def _share_left(run: RunFolder, config: TrainConfig) -> float:
    """Return the share of its epochs that a training still has to do; 0 where only something is to be measured."""
    if has_weights(run):
        return 0.0
    if run.is_finished or not run.metrics.is_file():
        return 1.0  # a finished one without weights is trained again
    return max(1 - run.metrics.read_text().count("\n") / config.epochs, 1 / config.epochs)


class _Expected(NamedTuple):
    """How many seconds a job would take to train and to measure, the latter 0 where it is not known; and on what."""

    training: float
    measuring: float
    where: str


def _expectations(jobs: Sequence[Job], results: Results, device: str | None = None) -> list[_Expected]:
    """Return what to expect of each job."""
    known = _results_of(results, jobs[0].scale, device) if jobs else []
    rates, measuring = _rates(known), _measuring(known)
    found = []
    for job in jobs:
        kind = _kind(job.config)
        known_rate = rates.get((kind, _batch_size(job.config)), rates.get((kind, None)))
        rate, where = known_rate or _expected(job.config)
        training = images_of(job.config) / rate + (0.0 if known_rate else SECONDS_TO_START)
        found.append(_Expected(training, measuring.get((kind, _adapts(job)), 0.0), where))
    return found


def _kind(config: TrainConfig) -> Kind:
    return config.backbone.removesuffix("-dropblock"), config.input_size


def _adapts(wanted: Job | RunResult) -> bool:
    """Whether something that is measured adapts to each episode, which is most of the time that measuring takes."""
    return any(one.adapted for one in wanted.measurements)


def _results_of(results: Results, scale: str, device: str | None) -> list[RunResult]:
    """Return the results of a scale: those on the device, where there are any on it."""
    everywhere = list(results.of_scale(scale))
    return [one for one in everywhere if one.device == device] or everywhere


def _measuring(known: Iterable[RunResult]) -> dict[tuple[Kind, bool], float]:
    """Return the median of the seconds that measuring took alone, by network and size, with adapting and without."""
    found: dict[tuple[Kind, bool], list[float]] = {}
    for result in known:
        if result.measuring_seconds:
            seconds = result.measuring_seconds / result.n_sharing
            found.setdefault((_kind(result.config), _adapts(result)), []).append(seconds)
    return {kind: statistics.median(seconds) for kind, seconds in found.items()}


def _rates(known: Iterable[RunResult]) -> dict[tuple[Kind, int | None], tuple[float, str]]:
    """Return the median of images a second of whole trainings, and the device: by network and size, of any batch size.

    And by network, size and batch size, where there are enough of these. Where trainings shared a GPU, the GPU's images
    a second.
    """
    rates: dict[tuple[Kind, int | None], list[tuple[float, str]]] = {}
    for result in known:
        if result.training_seconds and images_of(result.config):
            rate = images_of(result.config) / result.training_seconds * result.n_sharing
            for batch_size in (None, _batch_size(result.config)):
                rates.setdefault((_kind(result.config), batch_size), []).append((rate, result.device))
    return {
        key: (
            statistics.median(rate for rate, _ in found),
            f"{statistics.mode(device for _, device in found)}, as before",
        )
        for key, found in rates.items()
        if key[1] is None or len(found) >= ENOUGH
    }


def _expected(config: TrainConfig) -> tuple[float, str]:
    """Return the images a second that are known of somebody's machine, and whose."""
    side = config.input_size or 84
    if config.backbone.startswith("conv4"):
        return CORE_AT_28 * (28 / side) ** 2, "a CPU core"
    return H200[84] * (84 / side) ** POWER, "an H200"


def duration(seconds: float) -> str:
    """Return a time in words.

    >>> duration(50), duration(600), duration(9000)
    ('1 min', '10 min', '2.5 h')
    """
    if seconds >= 3600:
        return f"{seconds / 3600:.1f} h"
    return f"{max(1, round(seconds / 60))} min"
