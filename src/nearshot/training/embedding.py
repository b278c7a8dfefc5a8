"""From stored images to features: what validation and `nearshot evaluate` have in common."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

import torch
import torch.nn.functional as F
from torch import Tensor

from nearshot.data.augment import centre_crop, normalise_images
from nearshot.data.loader import ImageFeed
from nearshot.evaluation import embed
from nearshot.models import Backbone
from nearshot.progress import with_progress

__all__ = ["embed_images", "images_at_once", "in_one_size"]

IMAGES_AT_ONCE = {"cuda": 2048, "cpu": 256}


def embed_images(
    backbone: Backbone,
    feed: ImageFeed,
    *,
    device: torch.device,
    network: Callable[[Tensor], Tensor] | None = None,
    bfloat16: bool = False,
    show: bool | None = False,
) -> Tensor:
    """Embed all images of a feed, each once: its centre, at the backbone's input size; (image, dim) float32.

    Args:
        backbone: in evaluation mode, on the device.
        feed: the images.
        device: where to embed.
        network: a function of normalised images instead, such as `backbone.multi_layer`.
        bfloat16: whether the network computes in bfloat16.
        show: whether to show progress; None does on a terminal.
    """
    spec = backbone.spec

    def batches() -> Iterator[Tensor]:
        at_once = images_at_once(device)
        steps = with_progress(range(math.ceil(len(feed) / at_once)), "embedding", show=show)
        for _, images in zip(steps, feed.batches(torch.arange(len(feed)), at_once), strict=True):
            yield normalise_images(centre_crop(images, spec.input_size), *spec.normalisation)

    with torch.autocast(device.type, torch.bfloat16, enabled=bfloat16):
        return embed(network or backbone, batches()).float()


def images_at_once(device: torch.device) -> int:
    """Return how many images are embedded at a time."""
    return IMAGES_AT_ONCE.get(device.type, 256)


def in_one_size(
    network: Callable[[Tensor], Tensor], device: torch.device, most: int | None = None
) -> Callable[[Tensor], Tensor]:
    """Return a network for `embed_images` that sees one size of batch: a smaller one is filled up, and cut again.

    Otherwise every odd size would be compiled, or tuned by cuDNN, on its own.

    Args:
        network: from normalised images to features.
        device: where it computes.
        most: how many images there are to embed at most, where they are fewer than a batch has.
    """
    size = images_at_once(device) if most is None else min(most, images_at_once(device))

    def embedded(images: Tensor) -> Tensor:
        missing = max(size - len(images), 0)
        features: Tensor = network(F.pad(images, (0, 0, 0, 0, 0, 0, 0, missing)))
        return features[: len(images)]

    return embedded
