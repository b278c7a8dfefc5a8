"""Results that are made up so that what is to be said of them is known."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch

from nearshot.evaluation import CLASSIFIERS, Accuracy, Protocol
from nearshot.experiments.claims import CLAIMS, Verdict
from nearshot.experiments.identity import run_id
from nearshot.experiments.recipe import Found
from nearshot.experiments.results import Measurement, Results, RunResult
from nearshot.experiments.scales import PAPER
from nearshot.training import TrainConfig

DATASET = "cifar-fs"
SEEDS = (0, 1, 2)


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
    names = (f"{split} {shot}-shot {name}" for split in ("val", "test") for shot in (1, 5) for name in CLASSIFIERS)
    everything = dict.fromkeys(map(Measurement.named, names), mean)
    accuracies = {}
    for one, about in (everything | (means or {})).items():
        chance = torch.Generator().manual_seed(one.n_shot)
        values = about + torch.randn(400, generator=chance, dtype=torch.float64)[:n_episodes]
        episodes = f"{n_episodes} of {one.split}, seed {episode_seed}"
        asked = (5, one.n_shot, 15, n_episodes, episode_seed, episodes, one.classifier, True, True)
        protocol = Protocol(*asked, split=one.split)
        accuracy = Accuracy((values * 0.75).round() / 0.75, protocol)
        accuracies[one.name] = accuracy.as_dict() | {"epoch": 1}
    for seed in seeds:
        seeded = replace(config, seed=seed)
        shifted = {}
        for name, written in accuracies.items() if spread else ():
            first = Accuracy.from_dict(written)
            shifted[name] = Accuracy(first.per_episode + seed * spread, first.protocol).as_dict() | {"epoch": 1}
        content = {"format": "nearshot-result", "version": 1, "id": run_id(seeded), "scale": PAPER.name}
        content |= {"config": seeded.as_dict(), "history": [], "seconds": 1.0, "accuracies": shifted or accuracies}
        content |= {"fingerprints": {}, "environment": {}, "images_per_second": 1.0}
        results.put(RunResult(content))


def verdict(results: Results, name: str, seeds: tuple[int, ...] = (0,)) -> Verdict:
    """Return what is said of a statement."""
    (claim,) = (one for one in CLAIMS if one.name == name)
    return claim.check(Found(results, PAPER, seeds), DATASET)
