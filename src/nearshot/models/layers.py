"""Layers and heads in float32, for any `torch.set_default_dtype`.

Images, weights files and optimisers have that type.

The heads are for training; evaluation uses the backbone's own embeddings.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from copy import deepcopy
from functools import partial
from typing import Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.fusion import fuse_conv_bn_eval

convolution = partial(nn.Conv2d, dtype=torch.float32)
batch_norm = partial(nn.BatchNorm2d, dtype=torch.float32)


@contextmanager
def float32_by_default() -> Iterator[None]:
    """Make float32 the default type within the context, for networks of other libraries."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float32)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


def fold_batch_norms(network: nn.Module) -> nn.Module:
    """Return a copy for inference in which each batch norm is part of the convolution before it.

    Outputs are equal up to rounding, and on a CPU they take two thirds of the time. A network
    without batch norms is not copied.
    """
    if not any(isinstance(module, nn.BatchNorm2d) for module in network.modules()):
        return network
    network = deepcopy(network)
    for module in network.modules():
        if not isinstance(module, nn.Sequential):
            continue
        for number in range(len(module) - 1):
            layer = module[number]
            norm = module[number + 1]
            if isinstance(layer, nn.Conv2d) and isinstance(norm, nn.BatchNorm2d):
                module[number] = fuse_conv_bn_eval(layer, norm)
                module[number + 1] = nn.Identity()
    return network


class DropBlock(nn.Module):
    """Drop squares of a feature map in training, and scale the rest (Ghiasi et al., 2018).

    `drop_rate` is the expected share of dropped activations. A map smaller than a square is dropped
    completely.
    """

    def __init__(self, drop_rate: float, block_size: int) -> None:
        super().__init__()
        self.drop_rate = drop_rate
        self.block_size = block_size
        self.register_buffer("n_steps", torch.zeros((), dtype=torch.int64))  # weights files have it

    @classmethod
    def for_input(cls, drop_rate: float, input_size: int) -> Self:
        """Return one with Lee et al.'s squares: of 5 at 84×84, and of 2 at 32×32.

        Here they are of 2 for all inputs under 64.
        """
        return cls(drop_rate, 5 if input_size >= 64 else 2)

    def forward(self, x: Tensor) -> Tensor:
        """Drop in training mode; do nothing in evaluation mode."""
        if not self.training:
            return x
        rate = torch.full((), self.drop_rate, dtype=torch.float32, device=x.device)
        n_images, n_channels, height, width = x.shape
        side = min(self.block_size, height, width)
        # A square can start at these places.
        n_rows = height - side + 1
        n_columns = width - side + 1
        corner_rate = rate / side**2 * (height * width) / (n_rows * n_columns)
        shape = (n_images, n_channels, n_rows, n_columns)
        corners = torch.rand(shape, dtype=torch.float32, device=x.device) < corner_rate
        # A place is dropped when a square starts at it or up to `side` − 1 before it, in both
        # directions.
        kept = 1 - F.max_pool2d(F.pad(corners.float(), (side - 1,) * 4), side, stride=1)
        scale = kept.numel() / kept.sum().clamp(min=1)
        return x * (kept * scale).to(x.dtype)


class ProjectionHead(nn.Linear):
    """A single linear layer on top of the embeddings, (image, dim) to (image, `projected_dim`).

    The projection network A of Appendix F. A bias changes no Euclidean distance, but it changes
    cosines.
    """

    def __init__(self, embedding_dim: int, projected_dim: int = 128, *, bias: bool = False) -> None:
        super().__init__(embedding_dim, projected_dim, bias=bias, dtype=torch.float32)


class LinearHead(nn.Linear):
    """A classifier of the training classes, for cross-entropy (SimpleShot).

    (image, dim) to logits (image, class).
    """

    def __init__(self, embedding_dim: int, n_classes: int) -> None:
        super().__init__(embedding_dim, n_classes, dtype=torch.float32)
