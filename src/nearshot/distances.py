"""Distances between all pairs of two sets of embeddings."""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Literal

import torch
from torch import Tensor

__all__ = [
    "DISTANCES",
    "Distance",
    "DistanceName",
    "cosine",
    "full_precision",
    "squared_euclidean",
    "unit_length",
]

DistanceName = Literal["euclidean", "cosine"]
"""The names of the distances."""
Distance = Callable[[Tensor, Tensor], Tensor]
"""A function of (n, d) and (m, d) that returns (n, m)."""


def full_precision(embeddings: Tensor) -> Tensor:
    """Convert lower precisions to float32, since 16 bits cannot distinguish 1000.1 and 1000.2."""
    return embeddings.float() if embeddings.dtype.itemsize < 4 else embeddings


def unit_length(embeddings: Tensor) -> Tensor:
    """Divide each embedding by its length. A zero vector stays zero and gets no gradient."""
    lengths = torch.linalg.vector_norm(embeddings, dim=-1, keepdim=True)
    has_length = lengths > 0
    divisors = torch.where(has_length, lengths, 1.0)  # a gradient through 0 / 0 would be NaN
    return torch.where(has_length, embeddings / divisors, 0.0)


def squared_euclidean(first: Tensor, second: Tensor) -> Tensor:
    """‖a − b‖² for every a in `first` (n, d) and b in `second` (m, d): (n, m), never under zero.

    >>> squared_euclidean(torch.tensor([[0.0, 0.0]]), torch.tensor([[3.0, 4.0], [0.0, 1.0]]))
    tensor([[25.,  1.]])
    """
    with torch.autocast(first.device.type, enabled=False):
        first = full_precision(first)
        second = full_precision(second)
        # A common offset changes no distance, but would cost digits in ‖a‖² + ‖b‖² − 2ab.
        offset = second.detach().mean(0)
        first = first - offset
        second = second - offset
        lengths = first.square().sum(1)[:, None] + second.square().sum(1)  # (n, m)
        return torch.addmm(lengths, first, second.T, alpha=-2).clamp(min=0)


def cosine(first: Tensor, second: Tensor) -> Tensor:
    """One minus the cosine of the angle: (n, m), between 0 and 2.

    A zero vector is at ½ from every direction.

    >>> cosine(torch.tensor([[1.0, 0.0]]), torch.tensor([[5.0, 0.0], [0.0, 2.0], [-1.0, 0.0]]))
    tensor([[0., 1., 2.]])
    """
    first = unit_length(full_precision(first))
    second = unit_length(full_precision(second))
    return squared_euclidean(first, second) / 2


DISTANCES: Mapping[DistanceName, Distance] = MappingProxyType(
    {"euclidean": squared_euclidean, "cosine": cosine}
)
"""The distances by name."""
