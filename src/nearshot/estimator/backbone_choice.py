"""Which backbone to use for one's own photos: the expected accuracy and the speed of each."""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn

from nearshot.errors import InputError
from nearshot.estimator.classifier import FewShotClassifier
from nearshot.estimator.embedder import Embedder
from nearshot.estimator.leave_one_out import AccuracyEstimate

N_TIMED = 32  # photos whose embedding is timed
SMALL_DIFFERENCE = 0.01  # of two expected accuracies, for which the faster backbone is used


@dataclass(frozen=True)
class BackboneChoice:
    """A backbone with what it would do for somebody's photos.

    Attributes:
        name: of the backbone.
        estimate: the expected accuracy of a classifier of the labelled photos.
        photos_per_second: how many new photos it embeds, with their reading.
    """

    name: str
    estimate: AccuracyEstimate
    photos_per_second: float


def measure_backbone(
    backbone: str | Path | nn.Module,
    images: Sequence[str | Path],
    labels: Sequence[str],
    *,
    groups: Sequence[str | None] | None = None,
    by_hand: Sequence[bool] | None = None,
    device: str | torch.device = "auto",
    cache_dir: str | Path | None = None,
) -> BackboneChoice:
    """Return what a backbone would do for labelled photos, at least two of two classes.

    The arguments are those of `FewShotClassifier` and its `fit`.
    """
    classifier = FewShotClassifier(backbone, device=device, cache_dir=cache_dir)
    classifier.fit(list(images), list(labels), groups=groups, by_hand=by_hand)
    embedder = classifier.embedder_
    if embedder is None:
        raise InputError(f"backbone must embed images (got {backbone!r}).")
    return BackboneChoice(
        name=embedder.spec.name,
        estimate=classifier.estimate_accuracy(),
        photos_per_second=photos_per_second(embedder, images),
    )


def photos_per_second(embedder: Embedder, images: Sequence[str | Path]) -> float:
    """Return how many photos an embedder reads and embeds in a second, without its cache."""
    uncached = Embedder(
        embedder.backbone,
        device=embedder.device,
        batch_size=embedder.batch_size,
        copy=False,
        n_views=embedder.n_views,
        all_sets=embedder.all_sets,
    )
    timed = images[:N_TIMED]
    uncached(timed[:1])  # the first image takes longer
    start = time.perf_counter()
    uncached(timed)
    return len(timed) / (time.perf_counter() - start)


def best_choice(choices: Sequence[BackboneChoice]) -> BackboneChoice:
    """Return the backbone to use: the most accurate, or a faster one that is hardly less so."""
    best = max(choice.estimate.mean for choice in choices)
    accurate = [choice for choice in choices if choice.estimate.mean >= best - SMALL_DIFFERENCE]
    return max(accurate, key=lambda choice: choice.photos_per_second)
