"""Ties: which images are nearest, and which class wins, where several are equally near.

Distances come from matrix products, whose last digits depend on how many rows are multiplied at once. Differences
within the rounding error therefore count as ties, and a tie goes to the first image or class. An image then gets the
same answer alone and in a batch, here and in an exported file.

In all functions `tolerance` (…, 1) is the largest difference that counts as a tie.
"""

from __future__ import annotations

import torch
from torch import Tensor

# The tolerance, relative to the largest distance or score. In float64, products of 4,096 dimensions that are summed one
# after the other round by an eighth of it. In float32 only equal values are ties.
TIE = 2.0**-42


def tied_nearest(distances: Tensor, k: int | Tensor, tolerance: Tensor) -> Tensor:
    """Return a mask of the k nearest images, of `distances` (…, image); of those tied for the last places, the first.

    >>> tied_nearest(torch.tensor([3.0, 1.0, 3.0, 2.0]), 3, torch.tensor([0.1]))
    tensor([ True,  True, False,  True])
    """
    # A sort, not topk: its shapes do not depend on k, which an ONNX graph computes.
    place = torch.as_tensor(k, device=distances.device).reshape(1) - 1
    last = distances.sort(dim=-1).values.index_select(-1, place)
    sure = distances < last - tolerance
    tied = ~sure & (distances <= last + tolerance)
    return sure | (tied & (tied.cumsum(-1) <= k - sure.sum(-1, keepdim=True)))


def nearest_in_order(distances: Tensor, k: int, tolerance: Tensor) -> Tensor:
    """Return the indices (row, k) of the k nearest images of `distances` (row, image), nearest and of tied ones first.

    >>> nearest_in_order(torch.tensor([[3.0, 1.01, 3.0, 1.0]]), 3, torch.tensor([[0.1]]))
    tensor([[1, 3, 0]])
    """
    places = tied_nearest(distances, k, tolerance).nonzero()[:, 1].view(-1, k)  # in the order of the images
    values, order = distances.gather(1, places).sort(dim=1)
    steps = torch.zeros_like(order)  # the number of steps above the tolerance from the nearest to each
    steps[:, 1:] = (values.diff(dim=1) > tolerance).cumsum(1)
    return places.gather(1, torch.zeros_like(order).scatter_(1, order, steps).argsort(dim=1, stable=True))


def n_behind(nearest: Tensor, tolerance: Tensor) -> Tensor:
    """Return how many classes are farther than each, (…, class) int64, by the distances of their nearest images."""
    return (nearest[..., None, :] > (nearest + tolerance)[..., :, None]).sum(-1)


def first_best(scores: Tensor) -> Tensor:
    """Return the class with the highest of scores (…, class), of tied ones the first."""
    tolerance = TIE * scores.abs().masked_fill(scores.isinf(), 0).amax(-1, keepdim=True)
    return (scores >= scores.amax(-1, keepdim=True) - tolerance).int().argmax(-1)
