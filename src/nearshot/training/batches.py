"""The batches of a configuration, and the pairs that they give a loss."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from torch import Tensor

from nearshot.data import EpisodeBatches, IndependentBatches, ShuffledBatches
from nearshot.data.samplers import Batches
from nearshot.losses import count_pairs
from nearshot.training.config import TrainConfig
from nearshot.training.methods import Method, batch_kind

__all__ = ["Composition", "compositions", "make_batches"]


class Composition(NamedTuple):
    """The anchors of a batch that have no other image of their class, and the pairs that a loss uses."""

    anchors_without_positive: int
    positive_pairs: float
    negative_pairs: float


def make_batches(config: TrainConfig, labels: Tensor, class_names: Sequence[str], *, n_ranks: int = 1) -> Batches:
    """Return the sampler of a configuration's batches, in an order that all ranks share."""
    kind = batch_kind(config)
    if kind == "episodes":
        return EpisodeBatches(
            labels,
            config.shape,
            n_batches=config.steps_per_epoch,
            least_images=config.least_images,
            class_names=class_names,
            seed=config.seed,
            n_ranks=n_ranks,
        )
    n_images, n_batches, seed = len(labels), config.steps_per_epoch, config.seed
    if kind == "independent":
        return IndependentBatches(n_images, config.batch_size, n_batches=n_batches, seed=seed, n_ranks=n_ranks)
    return ShuffledBatches(n_images, config.batch_size, n_batches=n_batches, seed=seed, drop_last=True, n_ranks=n_ranks)


def compositions(labels: Tensor, config: TrainConfig, method: Method) -> list[Composition] | None:
    """Return the composition of each batch of labels (batch, image); None where a method does not compare images."""
    if method.roles is None:
        return None
    prototypes, separate = method.roles
    if prototypes or separate:
        return [Composition(0, *count_pairs(config.shape, prototypes=prototypes, separate=separate))] * len(labels)
    return [_all_pairs(batch, config.keep_positives, config.keep_negatives) for batch in labels.numpy()]


def _all_pairs(
    labels: np.ndarray[tuple[int, ...], np.dtype[np.int64]], keep_positives: float, keep_negatives: float
) -> Composition:
    """Count the unordered pairs of a batch in which every image is compared with every other.

    A fraction applies to ordered pairs, and their number is rounded down; an ordered pair is half a pair.
    """
    sizes = np.unique(labels, return_counts=True)[1]
    positives = int((sizes * (sizes - 1)).sum())  # ordered
    negatives = len(labels) * (len(labels) - 1) - positives
    kept = (math.floor(positives * keep_positives) / 2, math.floor(negatives * keep_negatives) / 2)
    return Composition(int((sizes == 1).sum()), *kept)
