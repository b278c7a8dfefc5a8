"""Which images are nearest, and which class is ahead, where several are equally near.

Distances come from matrix products, whose last digits depend on how many rows are multiplied at once. So what differs
by less than rounding could make it is a tie, and a tie is decided by order: the first image, the first class. The
answer about a picture is then the same alone and among others, here and in an exported file.
"""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["TIE", "first_best", "n_behind", "nearest_in_order", "tied_nearest"]

# As a share of the largest distance or score. In float64, products of 4,096 dimensions that are summed one after the
# other round by an eighth of it; in float32, whose digits are far coarser, ties are what is equal to the last one.
TIE = 2.0**-42


def tied_nearest(distances: Tensor, k: int, tolerance: Tensor) -> Tensor:
    """Return which k images are the nearest, (…, image) of truth values; of those tied for the last places, the first.

    Args:
        distances: (…, image), or anything that is less where an image is nearer.
        k: how many.
        tolerance: (…, 1) what differs by no more is tied.

    >>> tied_nearest(torch.tensor([3.0, 1.0, 3.0, 2.0]), 3, torch.tensor([0.1]))
    tensor([ True,  True, False,  True])
    """
    last = distances.topk(k, dim=-1, largest=False, sorted=False).values.amax(-1, keepdim=True)
    sure = distances < last - tolerance
    tied = ~sure & (distances <= last + tolerance)
    return sure | (tied & (tied.cumsum(-1) <= k - sure.sum(-1, keepdim=True)))


def nearest_in_order(distances: Tensor, k: int, tolerance: Tensor) -> Tensor:
    """Return the places of the k nearest images, nearest first and of tied ones the first; (row, k).

    Args:
        distances: (row, image).
        k: how many.
        tolerance: (row, 1) what differs by no more is tied.

    >>> nearest_in_order(torch.tensor([[3.0, 1.01, 3.0, 1.0]]), 3, torch.tensor([[0.1]]))
    tensor([[1, 3, 0]])
    """
    places = tied_nearest(distances, k, tolerance).nonzero()[:, 1].view(-1, k)  # in the order of the images
    values, order = distances.gather(1, places).sort(dim=1)
    steps = torch.zeros_like(order)  # how many real steps there are from the nearest to each
    steps[:, 1:] = (values.diff(dim=1) > tolerance).cumsum(1)
    return places.gather(1, torch.zeros_like(order).scatter_(1, order, steps).argsort(dim=1, stable=True))


def n_behind(nearest: Tensor, tolerance: Tensor) -> Tensor:
    """Return how many classes each is nearer than, (…, class) of int64; tied ones have equally many behind them.

    Args:
        nearest: (…, class) the distance of each class's nearest image.
        tolerance: (…, 1) what differs by no more is tied.

    >>> n_behind(torch.tensor([[1.0, 5.0, 1.0]]), torch.tensor([[0.1]]))
    tensor([[1, 0, 1]])
    """
    in_order = nearest.sort(dim=-1).values
    return nearest.shape[-1] - torch.searchsorted(in_order, (nearest + tolerance).contiguous(), right=True)


def first_best(scores: Tensor) -> Tensor:
    """Return the class with the highest of scores (…, class), of tied ones the first.

    >>> first_best(torch.tensor([[0.0, 7.0, 7.0 + 1e-15]], dtype=torch.float64))
    tensor([1])
    """
    tolerance = TIE * scores.abs().amax(-1, keepdim=True)
    return (scores >= scores.amax(-1, keepdim=True) - tolerance).int().argmax(-1)
