"""Warnings about a network that does not learn what unseen classes need."""

from __future__ import annotations

from collections.abc import Collection

import torch
from torch import Tensor

from nearshot.evaluation import Accuracy

COLLAPSED = 2.0  # dimensions; trained networks have 10 and more
AT_CHANCE = 1.1  # times the accuracy of guessing
ADVICE = "Lower the learning rate, use --optimiser adam, or start from a trained network (--init)."


def effective_dimensions(features: Tensor) -> float:
    """Return how many dimensions features (image, dim) vary in: (Σ λ)² / Σ λ² of their covariance's eigenvalues.

    >>> effective_dimensions(torch.tensor([[1.0, 0.0], [-1.0, 0.0], [0.0, 1.0], [0.0, -1.0]]))
    2.0
    """
    centred = features.double() - features.double().mean(0)
    gram = centred.T @ centred if len(centred) > centred.shape[1] else centred @ centred.T  # has the same eigenvalues
    return float(gram.trace() ** 2 / gram.square().sum().clamp(min=torch.finfo(gram.dtype).tiny))


def warnings_about(features: Tensor, accuracies: Collection[Accuracy]) -> list[str]:
    """Return a warning if the features of training images collapse, and if all validation accuracies are at chance."""
    found = []
    if effective_dimensions(features) < COLLAPSED:
        found.append(f"Warning: the embeddings collapse: nearly all images have the same, or lie on a line. {ADVICE}")
    if accuracies and all(one.mean <= AT_CHANCE * 100 / one.protocol.n_way for one in accuracies):
        found.append(f"Warning: validation is at chance, as if classes were guessed. {ADVICE}")
    return found
