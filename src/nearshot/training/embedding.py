"""From stored images to features, for validation and `nearshot evaluate`."""

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


def embed_images(
    backbone: Backbone,
    feed: ImageFeed,
    *,
    device: torch.device,
    network: Callable[[Tensor], Tensor] | None = None,
    bfloat16: bool = False,
    show: bool | None = False,
) -> Tensor:
    """Embed all images of a feed: their centre, at the backbone's input size. Returns (image, dim) float32.

    Args:
        backbone: in evaluation mode, on the device.
        feed: the images.
        device: where to embed.
        network: a function of normalised images to use instead, such as `backbone.multi_layer`.
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
    """Return the batch size of embedding."""
    return 2048 if device.type == "cuda" else 256


def in_one_size(
    network: Callable[[Tensor], Tensor], device: torch.device, most: int | None = None
) -> Callable[[Tensor], Tensor]:
    """Return a network that pads smaller batches to one size, and cuts their features again.

    Otherwise every odd batch size would be compiled, or tuned by cuDNN, separately. `most` is the number of images to
    embed, where they are fewer than a batch.
    """
    size = images_at_once(device) if most is None else min(most, images_at_once(device))

    def embedded(images: Tensor) -> Tensor:
        missing = max(size - len(images), 0)
        features: Tensor = network(F.pad(images, (0, 0, 0, 0, 0, 0, 0, missing)))
        return features[: len(images)]

    return embedded
