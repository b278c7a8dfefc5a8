"""The paper's losses and distillation; most losses are `neighbour_loss` with their own anchors."""

from nearshot.losses.cross_entropy import cross_entropy_loss, mixed_loss
from nearshot.losses.distillation import distillation_loss, neighbour_distillation_loss
from nearshot.losses.episodic import episode_loss, matching_loss, prototypical_loss
from nearshot.losses.nca import nca_loss
from nearshot.losses.neighbours import neighbour_loss
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
