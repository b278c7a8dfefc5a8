"""Accuracy by class: which classes a trained network tells apart, over the episodes that its accuracy is of."""

from __future__ import annotations

from collections.abc import Iterable

from nearshot.evaluation import evaluate_classes
from nearshot.runs.network import TrainedRun

__all__ = ["measure_classes"]


def measure_classes(
    run: TrainedRun, splits: Iterable[str], *, n_episodes: int = 10_000, n_way: int = 5
) -> dict[str, dict[str, float]]:
    """Return a finished run's accuracy by class of some splits, {"val 5-shot centroid": {class: per cent}}.

    The most shots that were validated, nearest centroid, and the epoch that was best for them.
    """
    n_shot = max(run.config.validation_shots)
    network = run.network(run.best_weights(n_shot, "centroid"))
    found = {}
    for split in splits:
        features = network.feature_set(run.store(split), split)
        accuracies = evaluate_classes(features, n_way=n_way, n_shot=n_shot, n_episodes=n_episodes)
        found[f"{split} {n_shot}-shot centroid"] = {name: round(one.mean, 2) for name, one in accuracies.items()}
    return found
