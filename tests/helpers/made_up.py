"""Results without training, for what is made of results: of whole recipes, or with accuracies that are known."""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from nearshot.evaluation import CLASSIFIERS, Accuracy, Protocol
from nearshot.paper import RECIPES, Results
from nearshot.paper.jobs import Job, jobs_of
from nearshot.paper.results import FORMAT, VERSION, Measurement, RunResult
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
    changes: dict[str, Any] | None = None,
) -> Results:
    """Put a result in the folder for every training of some recipes; `changes` replace parts of each."""
    results = Results(folder, size, range(seeds))
    jobs = jobs_of([RECIPES[name] for name in recipes], dataset, size, range(seeds))
    for number, job in enumerate(jobs):
        results.put(RunResult(_content(job, number) | (changes or {})))
    return results


def _content(job: Job, number: int) -> dict[str, Any]:
    validated = [Measurement("val", shot, name) for shot in (1, 5) for name in ("centroid", "soft")]
    measured = dict.fromkeys((*validated, *job.measurements))
    generator = torch.Generator().manual_seed(number)
    return {
        "format": FORMAT,
        "version": VERSION,
        "id": job.id,
        "scale": job.size.name,
        "config": job.config.as_dict(),
        "fingerprints": {"train": "f00d" * 16, "val": "cafe" * 16},
        "environment": {
            "torch": "2.13.0",
            "device": "NVIDIA H200",
            "command": ["nearshot", "reproduce", "--all"],
            "code": {"commit": "0123456789abcdef" * 2, "changed": False},
        },
        "seconds": 271.5 + 10 * number,
        "images_per_second": 14_321.0 - number,
        "accuracies": {one.name: _accuracy(one, number, generator) for one in measured},
        "by_class": {
            "val 5-shot centroid": {
                f"class {label}": 40.0 + (7 * label + number) % 60 for label in range(16)
            }
        },
        "history": [_epoch(epoch, number) for epoch in range(10, 121, 10)],
    }


def _accuracy(one: Measurement, number: int, generator: torch.Generator) -> dict[str, Any]:
    protocol = Protocol(
        5, one.n_shot, 15, N_EPISODES, 0, "beef" * 16, one.classifier, True, True, split=one.split
    )
    mean = 44 + 10 * (one.n_shot == 5) + number % 7 / 2  # of 75
    n_correct = (
        (mean + 6 * torch.randn(N_EPISODES, generator=generator)).round().clamp(0, 75).long()
    )
    return Accuracy.of_counts(n_correct, protocol).as_dict() | {"epoch": 120}


def _epoch(epoch: int, number: int) -> dict[str, Any]:
    validation = {
        f"{shot}-shot {name}": 60
        + 3 * shot
        - 900 / (epoch + 20)
        + number % 7
        - 2 * (name == "soft")
        for shot in (1, 5)
        for name in ("centroid", "soft")
    }
    return {
        "epoch": epoch,
        "loss": 6 / (1 + epoch / 20),
        "learning_rate": 0.1,
        "validation": validation,
    }


def put(
    results: Results,
    config: TrainConfig,
    mean: float,
    *,
    seeds: Sequence[int] = (0,),
    spread: float = 0.0,
    means: dict[Measurement, float] | None = None,
    n_episodes: int = 400,
    episode_seed: int = 0,
) -> None:
    """Write a result whose every accuracy is about `mean`, a little more with each seed; some about `means`."""
    names = (
        f"{split} {shot}-shot {name}"
        for split in ("val", "test")
        for shot in (1, 5)
        for name in CLASSIFIERS
    )
    everything = dict.fromkeys(map(Measurement.named, names), mean)
    for seed in seeds:
        accuracies = {}
        for one, about in (everything | (means or {})).items():
            random = torch.Generator().manual_seed(one.n_shot)
            values = about + torch.randn(400, generator=random, dtype=torch.float64)[:n_episodes]
            episodes = f"{n_episodes} of {one.split}, seed {episode_seed}"
            asked = (
                5,
                one.n_shot,
                15,
                n_episodes,
                episode_seed,
                episodes,
                one.classifier,
                True,
                True,
            )
            accuracy = Accuracy(
                (values * 0.75).round() / 0.75 + seed * spread, Protocol(*asked, split=one.split)
            )
            accuracies[one.name] = accuracy.as_dict() | {"epoch": 1}
        job = Job(replace(config, seed=seed), PAPER, (), ())
        results.put(RunResult(_content(job, 0) | {"history": [], "accuracies": accuracies}))
