"""From stored images to features, for validation and `nearshot evaluate`."""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from nearshot.data.augment import normalise_images, view_of
from nearshot.data.loader import ImageFeed
from nearshot.evaluation import embed
from nearshot.evaluation.leaks import check_evaluation_mode
from nearshot.models import Backbone
from nearshot.text import with_progress


def embed_images(
    backbone: Backbone,
    feed: ImageFeed,
    *,
    network: Callable[[Tensor], Tensor] | None = None,
    bfloat16: bool = False,
    n_views: int = 1,
    rows: Tensor | None = None,
    at_once: int | None = None,
    progress: bool | None = False,
) -> Tensor:
    """Embed the centre of all images of a feed, at the backbone's input size.

    Returns (image, dim) float32.

    Args:
        backbone: in evaluation mode, on the device.
        feed: the images.
        network: a function of normalised images to use instead, such as `backbone.multi_layer`.
        bfloat16: whether the network computes in bfloat16.
        n_views: the number of views of each image, whose embeddings are averaged; see `view_of`.
        rows: (row,) the images to embed; by default all.
        at_once: the batch size; by default that of validation.
        progress: show progress; None does on a terminal.
    """
    spec = backbone.spec
    network = network or backbone
    at_once = at_once or images_at_once(feed.device)
    rows = torch.arange(len(feed)) if rows is None else rows
    check_evaluation_mode(network)
    steps = with_progress(range(0, len(rows), at_once), "embedding", progress=progress)
    batches = zip(steps, feed.batches(rows, at_once), strict=True)

    def embedded(images: Tensor) -> Tensor:
        views = (view_of(images, number, spec.input_size) for number in range(n_views))
        return torch.stack(
            [network(normalise_images(view, *spec.normalisation)).float() for view in views]
        ).mean(0)

    with torch.autocast(feed.device.type, torch.bfloat16, enabled=bfloat16):
        return embed(embedded, (images for _, images in batches))


def images_at_once(device: torch.device) -> int:
    """Return the batch size of embedding."""
    return 2048 if device.type == "cuda" else 256


def in_one_size(
    network: Callable[[Tensor], Tensor], device: torch.device, most: int | None = None
) -> Callable[[Tensor], Tensor]:
    """Return a network that pads smaller batches to one size, and cuts their features again.

    Otherwise every odd batch size would be compiled, or tuned by cuDNN, separately. `most` is the
    number of images to embed, where they are fewer than a batch.
    """
    size = images_at_once(device) if most is None else min(most, images_at_once(device))

    def embedded(images: Tensor) -> Tensor:
        missing = max(size - len(images), 0)
        features: Tensor = network(F.pad(images, (0, 0, 0, 0, 0, 0, 0, missing)))
        return features[: len(images)]

    return embedded
