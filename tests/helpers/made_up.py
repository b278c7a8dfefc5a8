"""Results without training: of whole recipes, or with accuracies that are known."""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import torch

from nearshot.evaluation import CLASSIFIERS, Accuracy, Protocol
from nearshot.paper import RECIPES, Results
from nearshot.paper.jobs import Job, jobs_of
from nearshot.paper.result_file import (
    FORMAT,
    VERSION,
    MeasuredAccuracy,
    Measurement,
    RunResult,
)
from nearshot.paper.sizes import PAPER, Size
from nearshot.training import TrainConfig

N_EPISODES = 400
DATASET = "cifar-fs"
SEEDS = (0, 1, 2)


def make_up(
    folder: Path,
    recipes: Iterable[str],
    size: Size,
    *,
    dataset: str | None = None,
    seeds: int = 1,
) -> Results:
    """Put a result in the folder for every run of some recipes."""
    results = Results(folder, size, range(seeds))
    jobs = jobs_of([RECIPES[name] for name in recipes], dataset, size, range(seeds))
    for number, job in enumerate(jobs):
        results.put(RunResult(_content(job, number)))
    return results


def put(
    results: Results,
    config: TrainConfig,
    mean: float,
    *,
    seeds: Sequence[int] = (0,),
    spread: float = 0.0,
    means: dict[Measurement, float] | None = None,
    n_episodes: int = N_EPISODES,
    episode_seed: int = 0,
) -> None:
    """Write a result whose every accuracy is about `mean`, `spread` more with each seed.

    `means` are those of some measurements.
    """
    by_measurement = {}
    for split, n_shot, classifier in product(("val", "test"), (1, 5), CLASSIFIERS):
        by_measurement[Measurement(split, n_shot, classifier)] = mean
    by_measurement |= means or {}
    for seed in seeds:
        accuracies = []
        for measurement, about in by_measurement.items():
            generator = torch.Generator().manual_seed(measurement.n_shot)
            noise = torch.randn(N_EPISODES, generator=generator, dtype=torch.float64)[:n_episodes]
            values = ((about + noise) * 0.75).round() / 0.75 + seed * spread
            protocol = _protocol(measurement, n_episodes, episode_seed)
            accuracies.append(_entry(measurement, Accuracy(values, protocol), epoch=1))
        job = Job(replace(config, seed=seed), PAPER, (), ())
        results.put(RunResult(_content(job, 0) | {"history": [], "accuracies": accuracies}))


def _content(job: Job, number: int) -> dict[str, Any]:
    validated = [Measurement("val", *both) for both in product((1, 5), ("centroid", "soft"))]
    generator = torch.Generator().manual_seed(number)
    accuracies = []
    for measurement in dict.fromkeys((*validated, *job.measurements)):
        accuracy = _accuracy(measurement, number, generator)
        accuracies.append(_entry(measurement, accuracy, epoch=120))
    return {
        "format": FORMAT,
        "version": VERSION,
        "size": job.size.name,
        "config": job.config.as_dict(),
        "fingerprints": {"train": "f00d" * 16, "val": "cafe" * 16},
        "environment": {"torch": "2.13.0", "device": "NVIDIA H200"},
        "n_sharing": 1,
        "seconds": 271.5 + 10 * number,
        "images_per_second": 14_321.0 - number,
        "accuracies": accuracies,
        "history": [_epoch(epoch, number) for epoch in range(10, 121, 10)],
    }


def _entry(measurement: Measurement, accuracy: Accuracy, epoch: int) -> dict[str, Any]:
    measured = MeasuredAccuracy(
        measurement, epoch, is_validation=False, accuracy=accuracy.as_dict()
    )
    return measured.as_dict()


def _accuracy(measurement: Measurement, number: int, generator: torch.Generator) -> Accuracy:
    # Of 75 answers in an episode.
    mean = 44 + 10 * (measurement.n_shot == 5) + number % 7 / 2
    n_correct = mean + 6 * torch.randn(N_EPISODES, generator=generator)
    protocol = _protocol(measurement, N_EPISODES, 0)
    return Accuracy.of_counts(n_correct.round().clamp(0, 75).long(), protocol)


def _protocol(measurement: Measurement, n_episodes: int, episode_seed: int) -> Protocol:
    return Protocol(
        n_way=5,
        n_shot=measurement.n_shot,
        n_query=15,
        n_episodes=n_episodes,
        seed=episode_seed,
        episodes=f"{n_episodes} of {measurement.split}, seed {episode_seed}",
        classifier=measurement.classifier,
        centred=True,
        normalised=True,
        split=measurement.split,
    )


def _epoch(epoch: int, number: int) -> dict[str, Any]:
    validation = {}
    for n_shot in (1, 5):
        accuracy = 60 + 3 * n_shot - 900 / (epoch + 20) + number % 7
        validation[f"{n_shot}-shot centroid"] = accuracy
        validation[f"{n_shot}-shot soft"] = accuracy - 2
    return {
        "epoch": epoch,
        "loss": 6 / (1 + epoch / 20),
        "learning_rate": 0.1,
        "validation": validation,
    }
