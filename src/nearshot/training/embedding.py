"""From stored images to features: what validation and `nearshot evaluate` have in common."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from nearshot.data.augment import centre_crop, normalise_images
from nearshot.data.loading import ImageFeed
from nearshot.evaluation import embed
from nearshot.models import Backbone

__all__ = ["embed_images"]

IMAGES_AT_ONCE = {"cuda": 2048, "cpu": 256}


def embed_images(
    backbone: Backbone,
    feed: ImageFeed,
    *,
    device: torch.device,
    network: Callable[[Tensor], Tensor] | None = None,
    bfloat16: bool = False,
) -> Tensor:
    """Embed all images of a feed, each once: its centre, at the backbone's input size; (image, dim) float32.

    Args:
        backbone: in evaluation mode, on the device.
        feed: the images.
        device: where to embed.
        network: a function of normalised images instead, such as `backbone.multi_layer`.
        bfloat16: whether the network computes in bfloat16.
    """
    spec = backbone.spec

    def batches() -> Iterator[Tensor]:
        for images in feed.batches(torch.arange(len(feed)), IMAGES_AT_ONCE.get(device.type, 256)):
            yield normalise_images(centre_crop(images, spec.input_size), *spec.normalisation)

    with torch.autocast(device.type, torch.bfloat16, enabled=bfloat16):
        return embed(network or backbone, batches()).float()
