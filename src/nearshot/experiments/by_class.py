"""Accuracy by class: which classes a trained network tells apart, over the episodes that its accuracy is of."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from nearshot.evaluation import prepare_features, sample_episodes
from nearshot.evaluation.answering import Job, Treated, answer
from nearshot.evaluation.classifiers import nearest_centroid
from nearshot.training.trained import TrainedRun

__all__ = ["accuracy_by_class", "measure_classes"]


def accuracy_by_class(
    features: Tensor,
    labels: Tensor,
    class_names: Sequence[str],
    *,
    n_way: int = 5,
    n_shot: int = 5,
    n_query: int = 15,
    n_episodes: int = 10_000,
    seed: int = 0,
) -> dict[str, float]:
    """Return the share of each class's queries that nearest centroid answers correctly, in per cent.

    A class that no episode asks about is left out.

    Args:
        features: (image, dim), centred and normalised.
        labels: (image,).
        class_names: the names of the labels 0, 1, ….
        n_way: classes in an episode.
        n_shot: support images of each class.
        n_query: query images of each class.
        n_episodes: how many episodes.
        seed: which episodes; the same as `evaluate_features` has them.

    >>> labels = torch.arange(3).repeat_interleave(30)
    >>> features = torch.eye(3)[labels]
    >>> accuracy_by_class(features, labels, ["cat", "dog", "otter"], n_way=3, n_episodes=10)
    {'cat': 100.0, 'dog': 100.0, 'otter': 100.0}
    """
    labels = labels.cpu()
    episodes = sample_episodes(
        labels,
        n_way=n_way,
        n_shot=n_shot,
        n_query=n_query,
        n_episodes=n_episodes,
        seed=seed,
        class_names=class_names,
    )
    job = Job.begin(n_shot, "centroid", nearest_centroid, episodes, features.device)
    answer([Treated(features, centre=None, normalise=False, jobs=[job])], episodes, content=None, progress=False)
    classes = labels[episodes.query[:, :, 0]]  # (episode, way)
    n_asked, n_correct = torch.zeros(2, len(class_names), dtype=torch.int64)
    n_correct.index_add_(0, classes.flatten(), job.n_correct.cpu().flatten().long())
    n_asked.index_add_(0, classes.flatten(), torch.full_like(classes, n_query).flatten())
    percent = 100 * n_correct.double() / n_asked
    return {name: float(percent[label]) for label, name in enumerate(class_names) if n_asked[label]}


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
        store = run.store(split)
        accuracies = accuracy_by_class(
            prepare_features(network.features(store), centre=network.centre()),
            store.labels,
            store.class_names,
            n_way=n_way,
            n_shot=n_shot,
            n_episodes=n_episodes,
        )
        found[f"{split} {n_shot}-shot centroid"] = {name: round(value, 2) for name, value in accuracies.items()}
    return found
