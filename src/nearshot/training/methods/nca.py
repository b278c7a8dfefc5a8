"""Neighbourhood Component Analysis, alone or mixed with cross-entropy."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, get_args

import numpy as np
from torch import Tensor, nn

from nearshot.distances import DistanceName
from nearshot.episode_shape import EpisodeShape
from nearshot.errors import InputError
from nearshot.losses import mixed_loss, nca_loss
from nearshot.models import LinearHead, ProjectionHead
from nearshot.training.checks import check_choice, check_integer, check_number
from nearshot.training.methods.method import Batch, LearntTemperature, Method, PairsInBatch


@dataclass(frozen=True)
class NCA(Method):
    """Each image of a batch picks a neighbour of its class among all the others (Section 2.2)."""

    title: ClassVar[str] = "NCA"

    temperature: float = 1.0
    """The divisor of squared distances."""
    learn_temperature: bool = False
    """Learn the temperature, starting from `temperature`."""
    distance: DistanceName = "euclidean"
    """Squared Euclidean, as in the paper, or one minus the cosine."""
    background: float = 0.0
    """0 for the exact loss; 1e-10 for the arithmetic of the published experiments, which ignores
    anchors that are far from everything. The paper's presets have 1e-10; with a warm-up it is not
    needed."""
    keep_positives: float = 1.0
    """The fraction of positive pairs that a batch keeps, drawn at random."""
    keep_negatives: float = 1.0
    """The fraction of negative pairs that a batch keeps."""
    cross_entropy_weight: float = 0.0
    """The weight of an added cross-entropy loss; 1 is SimpleShot."""
    label_smoothing: float = 0.0
    """Of the cross-entropy: how much of each target is spread evenly over all classes."""
    projection: int | None = None
    """Train with a linear layer of this many dimensions between the network and the loss."""

    def __post_init__(self) -> None:
        check_number("temperature", self.temperature, above=0)
        check_choice("distance", self.distance, get_args(DistanceName))
        check_number("background", self.background, at_least=0)
        check_number("keep_positives", self.keep_positives, above=0, at_most=1)
        check_number("keep_negatives", self.keep_negatives, above=0, at_most=1)
        check_number("cross_entropy_weight", self.cross_entropy_weight, at_least=0, at_most=1)
        check_number("label_smoothing", self.label_smoothing, at_least=0, at_most=1)
        if self.projection is not None:
            check_integer("projection", self.projection, at_least=1)
        if self.cross_entropy_weight and (self.keep_positives < 1 or self.keep_negatives < 1):
            raise InputError(
                "cross_entropy_weight does not go together with keep_positives or keep_negatives "
                f"under 1 (got {self.cross_entropy_weight}, {self.keep_positives} and "
                f"{self.keep_negatives}). Leave one of them out."
            )
        if self.label_smoothing and not self.cross_entropy_weight:
            raise InputError(
                f"label_smoothing needs cross_entropy_weight (got {self.label_smoothing} and 0). "
                "Set it, or use SimpleShot."
            )

    def modules(self, embedding_dim: int, n_classes: int) -> Mapping[str, nn.Module]:
        """Return the projection, the linear head and the temperature, of those that are used."""
        modules: dict[str, nn.Module] = {}
        if self.projection is not None:
            # A bias changes cosines, but cancels in Euclidean distances.
            bias = self.distance == "cosine"
            modules["projection"] = ProjectionHead(embedding_dim, self.projection, bias=bias)
        if self.cross_entropy_weight:
            modules["head"] = LinearHead(embedding_dim, n_classes)
        if self.learn_temperature:
            modules["temperature"] = LearntTemperature(self.temperature)
        return modules

    def loss(self, batch: Batch) -> Tensor:
        """Return `nca_loss`, or `mixed_loss` with cross-entropy."""
        temperature = batch.modules["temperature"]() if self.learn_temperature else self.temperature
        if batch.logits is not None:
            return mixed_loss(
                batch.embeddings,
                batch.logits,
                batch.labels,
                cross_entropy_weight=self.cross_entropy_weight,
                temperature=temperature,
                background=self.background,
                distance=self.distance,
                label_smoothing=self.label_smoothing,
            )
        return nca_loss(
            batch.embeddings,
            batch.labels,
            temperature=temperature,
            background=self.background,
            distance=self.distance,
            keep_positives=self.keep_positives,
            keep_negatives=self.keep_negatives,
            generator=batch.generator,
        )

    def pairs(self, labels: Tensor, shape: EpisodeShape | None) -> PairsInBatch:
        """Return the unordered pairs of a batch.

        A kept fraction applies to ordered pairs, and their number is rounded down; an ordered pair
        is half a pair.
        """
        del shape
        return pairs_of_all_images(labels, self.keep_positives, self.keep_negatives)


def pairs_of_all_images(
    labels: Tensor, keep_positives: float = 1.0, keep_negatives: float = 1.0
) -> PairsInBatch:
    """Return the pairs where every image is compared with every other."""
    class_sizes = np.unique(labels.numpy(), return_counts=True)[1]
    ordered_positives = int((class_sizes * (class_sizes - 1)).sum())
    ordered_negatives = len(labels) * (len(labels) - 1) - ordered_positives
    return PairsInBatch(
        anchors_without_positive=int((class_sizes == 1).sum()),
        positive_pairs=math.floor(ordered_positives * keep_positives) / 2,
        negative_pairs=math.floor(ordered_negatives * keep_negatives) / 2,
    )
