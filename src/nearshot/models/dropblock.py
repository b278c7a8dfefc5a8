"""DropBlock: dropout of squares of a feature map."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nearshot.errors import InputError

__all__ = ["DropBlock", "block_size_for"]


def block_size_for(input_size: int) -> int:
    """Return the side of Lee et al.'s squares: 5 at 84×84 and 2 at 32×32; here 2 for all inputs under 64.

    >>> block_size_for(84), block_size_for(32)
    (5, 2)
    """
    return 5 if input_size >= 64 else 2


class DropBlock(nn.Module):
    """Drop squares of a feature map in training, and scale the rest (Ghiasi et al., 2018).

    Args:
        drop_rate: the expected share of dropped activations.
        block_size: the side of a square; a smaller map is dropped completely.
        ramp_steps: training steps over which the rate rises from 0 to `drop_rate`; 0 for none.
    """

    n_steps: Tensor

    def __init__(self, drop_rate: float, block_size: int, ramp_steps: int = 0) -> None:
        super().__init__()
        if not 0 <= drop_rate < 1 or block_size < 1 or ramp_steps < 0:
            raise InputError(
                f"drop_rate must be in [0, 1), block_size at least 1 and ramp_steps at least 0, not {drop_rate}, "
                f"{block_size} and {ramp_steps}."
            )
        self.drop_rate, self.block_size, self.ramp_steps = drop_rate, block_size, ramp_steps
        self.register_buffer("n_steps", torch.zeros((), dtype=torch.int64))

    def forward(self, x: Tensor) -> Tensor:
        """Drop in training mode; do nothing in evaluation mode."""
        if not self.training or self.drop_rate == 0:
            return x
        self.n_steps += 1
        rate = torch.clamp(self.n_steps.float() / max(self.ramp_steps, 1), max=1.0) * self.drop_rate
        height, width = x.shape[2:]
        side = min(self.block_size, height, width)
        n_corners = (height - side + 1) * (width - side + 1)  # where a square can start
        corner_rate = rate / side**2 * (height * width) / n_corners
        shape = (*x.shape[:2], height - side + 1, width - side + 1)
        corners = torch.rand(shape, dtype=torch.float32, device=x.device) < corner_rate
        # A place is dropped when a square starts at it or up to `side` − 1 before it, in both directions.
        kept = 1 - F.max_pool2d(F.pad(corners.float(), (side - 1,) * 4), side, stride=1)
        return x * (kept * (kept.numel() / kept.sum().clamp(min=1))).to(x.dtype)
