"""From photographs to the input of a network."""

from typing import Any

import numpy as np
import torch
from torch import Tensor

from nearshot.data.augment import normalise_images
from nearshot.errors import NearshotError
from nearshot.estimator.read_images import ImageContent, image_list, read_each
from nearshot.models import Backbone


def prepare_images(images: Any, backbone: Backbone) -> Tensor:
    """Return images as a backbone expects them: (image, 3, side, side), resized and normalised.

    `images` is a list of paths, Pillow images or uint8 arrays (height, width, 3). The backbone's
    `spec` says what it expects.

    >>> from nearshot import load_backbone
    >>> backbone = load_backbone("resnet12-nca-cifar-fs")
    >>> images = prepare_images([np.zeros((50, 60, 3), np.uint8)], backbone)
    >>> images.shape
    torch.Size([1, 3, 84, 84])
    >>> with torch.inference_mode():
    ...     backbone(images).shape
    torch.Size([1, 640])
    """
    spec = backbone.spec

    def square(content: ImageContent) -> Any:
        return content.square(spec.input_size, spec.interpolation, spec.crop)

    squares = []
    for result in read_each(image_list(images), square):
        if isinstance(result, NearshotError):
            raise result
        squares.append(result)
    pixels = torch.from_numpy(np.stack(squares)).permute(0, 3, 1, 2).float() / 255
    return normalise_images(pixels, *spec.normalisation)
