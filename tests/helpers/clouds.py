"""Random features of classes, and small backbones."""

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from tests.helpers.layouts import picture

from nearshot.models import Backbone, build_backbone

Array = npt.NDArray[Any]


class Clouds(NamedTuple):
    """Support images, queries of the same classes, and queries of other classes (strangers)."""

    support: Array
    labels: Array
    query: Array
    query_labels: Array
    strangers: Array


def clouds(
    seed: int,
    *,
    n_way: int = 5,
    n_shot: int = 5,
    n_query: int = 15,
    dim: int = 16,
    spread: float = 0.5,
) -> Clouds:
    """Draw an episode.

    `spread` is the standard deviation of a coordinate within a class; between classes it is 1.
    """
    generator = np.random.default_rng(seed)
    means = generator.normal(size=(2 * n_way, dim))

    def around(first: int, n: int) -> Array:
        rows = np.repeat(means[first : first + n_way], n, axis=0)
        return rows + spread * generator.normal(size=rows.shape)

    names = np.array([f"class {number}" for number in range(n_way)])
    return Clouds(
        around(0, n_shot),
        np.repeat(names, n_shot),
        around(0, n_query),
        np.repeat(names, n_query),
        around(n_way, n_query),
    )


def conv4() -> Backbone:
    """Return a small untrained backbone for images of 16 pixels."""
    torch.manual_seed(0)
    return build_backbone("conv4-32", input_size=16).eval()


def tinted(seed: int, channel: int, *size: int) -> Array:
    """Return the pixels of an image in which one colour is strong."""
    pixels = picture(seed, *(size or (16,))) // 4
    pixels[:, :, channel] += 150
    return pixels


def colours(images: Any) -> Any:
    """Embed images by their mean colours."""
    return images.mean((1, 2))


colours.input_size = 16  # type: ignore[attr-defined]


class Brightness:
    """A backbone that is a function, and can be pickled."""

    input_size = 16

    def __call__(self, images: Any) -> Any:
        means = images.mean((1, 2, 3))[:, None] - 60
        return np.concatenate([means, np.full_like(means, 10)], 1)
