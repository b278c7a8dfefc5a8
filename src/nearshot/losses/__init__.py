"""The paper's losses, most of them `neighbour_loss` with different anchors and candidates; and distillation."""

from nearshot.losses.cross_entropy import (
    cross_entropy_loss,
    distillation_loss,
    mixed_loss,
    neighbour_distillation_loss,
)
from nearshot.losses.episodic import episode_loss, matching_loss, prototypical_loss
from nearshot.losses.neighbours import nca_loss, neighbour_loss
from nearshot.losses.pairs import ExpectedPairs, PairCounts, count_pairs, expected_pairs
from nearshot.losses.supcon import supervised_contrastive_loss

__all__ = [
    "ExpectedPairs",
    "PairCounts",
    "count_pairs",
    "cross_entropy_loss",
    "distillation_loss",
    "episode_loss",
    "expected_pairs",
    "matching_loss",
    "mixed_loss",
    "nca_loss",
    "neighbour_distillation_loss",
    "neighbour_loss",
    "prototypical_loss",
    "supervised_contrastive_loss",
]
