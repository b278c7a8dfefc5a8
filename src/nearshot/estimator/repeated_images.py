"""Warn about images that are labelled twice."""

import itertools
import warnings
from collections.abc import Sequence
from typing import Any

import torch

from nearshot.data.images import Pixels
from nearshot.distances import squared_euclidean
from nearshot.errors import NearshotError
from nearshot.estimator.groups import SAME_IMAGE
from nearshot.estimator.read_images import ImageContent, read_each
from nearshot.estimator.state import FittedState
from nearshot.text import format_list

COMPARED_SIDE = 64  # of the squares whose pixels are compared


def warn_about_repeated_images(state: FittedState, images: Sequence[Any]) -> None:
    """Warn about support images that are in two classes, or twice in one.

    `images` are all support images, or their paths. Images are the same if their pixels are. Only
    those with nearly equal embeddings are compared, and one that can no longer be read is skipped.
    """
    labels = state.labels.tolist()
    in_two_classes: list[tuple[int, int]] = []
    in_one_class: list[tuple[int, int]] = []
    for first, second in _equal_pairs(images, _nearly_equal(state)):
        pairs = in_one_class if labels[first] == labels[second] else in_two_classes
        pairs.append((first, second))
    for pairs, where in ((in_two_classes, "in two classes"), (in_one_class, "twice in one class")):
        if not pairs:
            continue
        descriptions = [
            f"{state.names[first]} in {labels[first]!r} and {state.names[second]} in "
            f"{labels[second]!r}"
            for first, second in pairs
        ]
        warnings.warn(
            f"The same image is {where}: {format_list(descriptions, str)}. Keep one of them.",
            stacklevel=4,  # the caller of fit or partial_fit
        )


def _nearly_equal(state: FittedState) -> list[int]:
    """Return the images whose embeddings nearly equal that of another image."""
    support = state.support
    images = []
    for block in support.blocks(torch.arange(len(support.codes))):
        features = support.features[block]
        largest_square = (SAME_IMAGE * features.norm(dim=1)).square()[:, None]
        is_near = squared_euclidean(features, support.features) < largest_square
        images += block[is_near.sum(1) > 1].tolist()  # another image than itself
    return images


def _equal_pairs(images: Sequence[Any], candidates: Sequence[int]) -> list[tuple[int, int]]:
    """Return the pairs of candidates whose pixels are equal."""
    squares = read_each([images[number] for number in candidates], _small_square)
    by_pixels: dict[bytes, list[int]] = {}
    for number, square in zip(candidates, squares, strict=True):
        if not isinstance(square, NearshotError):
            by_pixels.setdefault(square.tobytes(), []).append(number)
    pairs: list[tuple[int, int]] = []
    for equal_images in by_pixels.values():
        pairs += itertools.combinations(equal_images, 2)
    return pairs


def _small_square(content: ImageContent) -> Pixels:
    return content.square(COMPARED_SIDE)
