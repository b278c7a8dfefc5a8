"""Several views of each image, whose embeddings are averaged in evaluation: the whole, its mirror image, and crops."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from nearshot.data.augment import centre_crop, cut

SMALLEST_CROP = 0.5  # the least share of the area that a crop shows


def view_of(images: Tensor, number: int, size: int) -> Tensor:
    """Return a view of each image: (image, height, width, 3) uint8 to (image, 3, size, size) float in [0, 1].

    View 0 is the centre, as in evaluation without views, and view 1 its mirror image. All others are square crops of
    that centre, every second one mirrored. They are the same for all images, and depend on no random numbers: their
    areas and places are a Halton sequence, which covers all of them evenly.
    """
    if number == 0:
        return centre_crop(images, size)
    top, left, side, is_mirrored = view_box(number)
    height, width = images.shape[1:3]
    shorter = min(height, width)
    y, x = (height - shorter) / 2 + top * shorter, (width - shorter) / 2 + left * shorter
    box = torch.tensor([y, x, side * shorter, side * shorter], device=images.device).expand(len(images), 4)
    flips = torch.full((len(images),), is_mirrored, device=images.device)
    return cut(images.permute(0, 3, 1, 2).float().div_(255), box, flips, size)


def view_box(number: int) -> tuple[float, float, float, bool]:
    """Return the top, left and side of a view's square, as fractions of the whole, and whether it is mirrored.

    >>> view_box(0), view_box(1)
    ((0.0, 0.0, 1.0, False), (0.0, 0.0, 1.0, True))
    """
    is_mirrored = number % 2 == 1
    if number < 2:
        return 0.0, 0.0, 1.0, is_mirrored
    area, y, x = (_radical_inverse(number - 1, base) for base in (2, 3, 5))
    side = math.sqrt(SMALLEST_CROP + (1 - SMALLEST_CROP) * area)
    return y * (1 - side), x * (1 - side), side, is_mirrored


def _radical_inverse(number: int, base: int) -> float:
    """Return the digits of a number mirrored at the point: 6 is 110 in base 2, and gives 0.011, which is 3/8."""
    inverse, weight = 0.0, 1 / base
    while number:
        number, digit = divmod(number, base)
        inverse += digit * weight
        weight /= base
    return inverse
