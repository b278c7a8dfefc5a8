"""Time nearshot against its peers in one run: episodes, and the NCA loss.

Evaluation: 10,000 episodes of 5-way 5-shot with 15 queries a class, nearest centroid on centred,
normalised features. easyfsl runs as in its `scripts/benchmark_methods.py`: `FeaturesDataset`,
`TaskSampler`, a `DataLoader`, `evaluate`. The code of the paper's authors is not a package, so its
steps are written anew: a loop over episodes in NumPy (`evaluation.loop`), and a loss from one
matrix of distances and two masks (`published_loss`).

The losses compute the same number, and the script stops if they do not. Competitors take turns, so
that other load affects all alike; the fastest turn counts. All run on one thread: the
loops are made of small operations, which more threads can slow down.

    pip install easyfsl                      # brings torchvision
    python benchmarks/peers.py               # two minutes

Prints a table and writes benchmarks/results/peers.json and .md.
"""

import argparse
import json
import os
import platform
import random
import time
from collections.abc import Callable, Mapping
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import torch
from easyfsl.datasets import FeaturesDataset  # type: ignore[import-not-found]
from easyfsl.methods import PrototypicalNetworks  # type: ignore[import-not-found]
from easyfsl.samplers import TaskSampler  # type: ignore[import-not-found]
from easyfsl.utils import evaluate  # type: ignore[import-not-found]
from torch import Tensor
from torch.utils.data import DataLoader

from evaluation import DIM, N_EPISODES, centroid_answers, data, loop, random_draws
from nca_loss import PEER, batch
from nearshot.evaluation import evaluate_features
from nearshot.losses import nca_loss

SIZES = (512, 2048)
RESULTS = Path(__file__).parent / "results" / "peers.json"
NEARSHOT = "nearshot"
EASYFSL = "easyfsl"
PML = "pytorch-metric-learning"
AUTHORS = "authors"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=str(__doc__), formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--rounds",
        type=int,
        default=5,
        help="turns of each evaluation; a loss takes six times as many",
    )
    rounds = parser.parse_args().rounds
    torch.set_num_threads(1)
    load_before = os.getloadavg()[0]
    accuracies, evaluation_s = time_evaluation(rounds)
    report: dict[str, Any] = {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "versions": {name: version(name) for name in (NEARSHOT, EASYFSL, PML)},
        "processor": processor(),
        "load_before": load_before,
        "rounds": rounds,
        "episodes": {"seconds": evaluation_s, "accuracy_percent": accuracies},
        "nca_loss": {size: {"milliseconds": time_losses(size, 6 * rounds)} for size in SIZES},
    }
    report["load_after"] = os.getloadavg()[0]
    RESULTS.write_text(json.dumps(report, indent=2) + "\n")
    RESULTS.with_suffix(".md").write_text(markdown(report))
    print(markdown(report), f"Written to {RESULTS}.", sep="\n")


def processor() -> str:
    """Return the processor's name, where Linux gives it."""
    path = Path("/proc/cpuinfo")
    names = (
        [line.split(": ")[1] for line in path.read_text().splitlines() if "model name" in line]
        if path.exists()
        else []
    )
    return names[0] if names else platform.machine()


def take_turns(
    work: Mapping[str, Callable[[], Any]], rounds: int
) -> tuple[dict[str, Any], dict[str, float]]:
    """Return what each competitor returned last, and the seconds of its fastest turn."""
    results: dict[str, Any] = {}
    seconds = dict.fromkeys(work, float("inf"))
    for _ in range(rounds):
        for name, run in work.items():
            start = time.perf_counter()
            results[name] = run()
            seconds[name] = min(seconds[name], time.perf_counter() - start)
    return results, seconds


class _TakesDataSource:
    """Accept the argument of older versions of `torch.utils.data.Sampler`, which easyfsl passes."""

    def __init__(self, *_: Any, **__: Any) -> None:
        super().__init__()


class _Tasks(TaskSampler, _TakesDataSource):  # type: ignore[misc]
    """easyfsl's sampler of episodes; without the second base, it fails with PyTorch 2.13."""


def time_evaluation(rounds: int) -> tuple[dict[str, float], dict[str, float]]:
    """Return the accuracies in per cent and the seconds for all episodes."""
    features, labels, centre = data()
    draw = random_draws(features, labels)

    def authors() -> float:
        answers, _ = loop(draw, N_EPISODES, centre.numpy(), centroid_answers)
        return 100 * float((answers == np.repeat(np.arange(5), 15)).mean())

    dataset = FeaturesDataset(labels.tolist(), features, [str(k) for k in range(20)])
    sampler = _Tasks(dataset, n_way=5, n_shot=5, n_query=15, n_tasks=N_EPISODES)
    loader = DataLoader(dataset, batch_sampler=sampler, collate_fn=sampler.episodic_collate_fn)
    model = PrototypicalNetworks(feature_centering=centre, feature_normalization=2)
    random.seed(0)
    return take_turns(
        {
            NEARSHOT: lambda: (
                evaluate_features(features, labels, centre=centre, progress=False).mean
            ),
            EASYFSL: lambda: 100 * evaluate(model, loader, device="cpu", use_tqdm=False),
            AUTHORS: authors,
        },
        rounds,
    )


def published_loss(embeddings: Tensor, labels: Tensor) -> Tensor:
    """Return the NCA loss in the steps of the published code: distances, masks, lower bounds."""
    similarities = (
        torch.cdist(embeddings, embeddings).square().clamp_min(1e-10).neg().exp()
    )  # (image, image)
    same_class = labels[:, None] == labels
    positive = (similarities * (same_class.float() - torch.eye(len(labels)))).sum(0)
    negative = (similarities * (~same_class).float()).sum(0).clamp_min(1e-10)
    share = positive / (positive + negative)
    return -share[share >= 1e-10].log().sum() / len(labels)


def time_losses(size: int, rounds: int) -> dict[str, float]:
    """Time a forward and backward pass in milliseconds; raise if losses or gradients differ."""
    embeddings, labels = batch(size)

    def step(loss: Callable[[Tensor, Tensor], Tensor]) -> tuple[Tensor, Tensor]:
        embeddings.grad = None
        value = loss(embeddings, labels)
        value.backward()
        gradient = embeddings.grad
        return value.detach(), torch.empty(0) if gradient is None else gradient

    losses: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
        NEARSHOT: nca_loss,
        PML: PEER,
        AUTHORS: published_loss,
    }
    results, seconds = take_turns(
        {name: partial(step, loss) for name, loss in losses.items()}, rounds
    )
    for value, gradient in results.values():
        torch.testing.assert_close(value, results[NEARSHOT][0], rtol=1e-4, atol=0)
        torch.testing.assert_close(gradient, results[NEARSHOT][1], rtol=1e-2, atol=1e-6)
    return {name: 1e3 * s for name, s in seconds.items()}


def cells(times: Mapping[str, float], unit: str) -> str:
    """Return the cells of a row: nearshot's time, and each peer's with its ratio."""
    nearshot_time = times[NEARSHOT]
    peers = [
        f"{times[n]:.3g} {unit} ({times[n] / nearshot_time:.1f}×)" if n in times else "–"
        for n in (EASYFSL, PML, AUTHORS)
    ]
    return " | ".join([f"{nearshot_time:.3g} {unit}", *peers])


def markdown(report: dict[str, Any]) -> str:
    """Return the table for the documentation."""
    versions = report["versions"]
    lines = [
        f"| | nearshot | easyfsl {versions[EASYFSL]} | pytorch-metric-learning {versions[PML]} | "
        "the authors' steps |",
        "|---|---:|---:|---:|---:|",
        f"| {N_EPISODES:,} episodes, 5-way 5-shot | {cells(report['episodes']['seconds'], 's')} |",
    ]
    lines += [
        f"| NCA loss, batch of {int(size):,} | {cells(row['milliseconds'], 'ms')} |"
        for size, row in report["nca_loss"].items()
    ]
    lines += [
        "",
        f"Nearest centroid on 12,000 × {DIM} features; the loss forward and backward. "
        f"{report['processor']}, one "
        f"thread, torch {report['torch']}; the fastest of {report['rounds']} turns (loss: "
        f"{6 * report['rounds']}); "
        f"load average {report['load_before']:.1f} before, {report['load_after']:.1f} after.",
    ]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
