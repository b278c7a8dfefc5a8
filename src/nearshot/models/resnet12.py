"""The two networks that go by the name of ResNet-12: the one the paper's experiments ran, and Lee et al.'s."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nearshot.errors import InputError
from nearshot.models.backbone import Backbone, BackboneSpec, check_images, initialise

__all__ = ["DropBlock", "ResNet12", "ResNet12MetaOpt"]

WIDTHS = (64, 160, 320, 640)


class ResNet12(Backbone):
    """The network of the published experiments: 9,427,840 parameters.

    A 3×3 stem of 64 channels, then stages of 1, 1, 2 and 1 basic blocks (two 3×3 convolutions and a shortcut) with
    64, 160, 320 and 640 channels, halving the side from the second stage on; the embedding is the average over places.
    The paper calls it the ResNet-12 of Lee et al., which is another network: see `ResNet12MetaOpt`.
    """

    def __init__(self, name: str = "resnet12", input_size: int = 84) -> None:
        super().__init__()
        self.spec = BackboneSpec(name, input_size)
        self.embedding_dim = WIDTHS[-1]
        self.stage_dims = WIDTHS
        self.stem = nn.Sequential(
            nn.Conv2d(3, WIDTHS[0], 3, padding=1, bias=False), nn.BatchNorm2d(WIDTHS[0]), nn.ReLU(inplace=True)
        )
        self.blocks = nn.ModuleList(
            [
                nn.Sequential(_BasicBlock(64, 64, stride=1)),
                nn.Sequential(_BasicBlock(64, 160, stride=2)),
                nn.Sequential(_BasicBlock(160, 320, stride=2), _BasicBlock(320, 320, stride=1)),
                nn.Sequential(_BasicBlock(320, 640, stride=2)),
            ]
        )
        initialise(self, "relu")

    def stages(self, images: Tensor) -> list[Tensor]:
        """Return each stage's feature maps."""
        check_images(images, self.spec.name)
        x = self.stem(images)
        outputs = []
        for block in self.blocks:
            x = block(x)
            outputs.append(x)
        return outputs


class _BasicBlock(nn.Module):
    """relu(bn(conv(relu(bn(conv(x))))) + shortcut(x))."""

    def __init__(self, width_in: int, width_out: int, *, stride: int) -> None:
        super().__init__()
        self.residual = nn.Sequential(
            nn.Conv2d(width_in, width_out, 3, stride, padding=1, bias=False),
            nn.BatchNorm2d(width_out),
            nn.ReLU(inplace=True),
            nn.Conv2d(width_out, width_out, 3, padding=1, bias=False),
            nn.BatchNorm2d(width_out),
        )
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or width_in != width_out:
            self.shortcut = nn.Sequential(
                nn.Conv2d(width_in, width_out, 1, stride, bias=False), nn.BatchNorm2d(width_out)
            )

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.residual(x) + self.shortcut(x))


class ResNet12MetaOpt(Backbone):
    """Lee et al.'s ResNet-12 (MetaOptNet): 12,424,320 parameters.

    Four stages of three 3×3 convolutions with leaky ReLU, a 1×1 shortcut and 2×2 max-pooling, 64, 160, 320 and 640
    channels; dropout after the first two stages and DropBlock after the last two. The embedding is the average over
    places, as later work has it (Lee et al. flatten the last map).

    Args:
        name: the name in its `spec`.
        input_size: the side of its images; at least 16.
        drop_rate: the share of activations dropped in training.
        block_size: the side of the squares that DropBlock drops; Lee et al. use 5 at 84×84 and 2 at 32×32, which is
            the default for an input of under 64.
        ramp_steps: training steps over which DropBlock's rate rises to `drop_rate`. Lee et al. take 40,000, more than
            a whole training of the paper has (9,000); here it is active from the first step.
    """

    def __init__(
        self,
        name: str = "resnet12-metaopt",
        input_size: int = 84,
        *,
        drop_rate: float = 0.1,
        block_size: int | None = None,
        ramp_steps: int = 0,
    ) -> None:
        super().__init__()
        self.spec = BackboneSpec(name, input_size)
        self.embedding_dim = WIDTHS[-1]
        self.stage_dims = WIDTHS
        if block_size is None:
            block_size = 5 if input_size >= 64 else 2
        drops: list[nn.Module] = [nn.Dropout(drop_rate) for _ in range(2)]
        drops += [DropBlock(drop_rate, block_size, ramp_steps) for _ in range(2)]
        self.blocks = nn.ModuleList(
            _MetaOptStage(width_in, width, drop)
            for width_in, width, drop in zip((3, *WIDTHS), WIDTHS, drops)  # noqa: B905
        )
        initialise(self, "leaky_relu")

    def stages(self, images: Tensor) -> list[Tensor]:
        """Return each stage's feature maps."""
        check_images(images, self.spec.name, smallest=16)
        outputs = []
        for block in self.blocks:
            images = block(images)
            outputs.append(images)
        return outputs


class _MetaOptStage(nn.Module):
    """drop(maxpool(leaky(three convolutions + shortcut)))."""

    def __init__(self, width_in: int, width: int, drop: nn.Module) -> None:
        super().__init__()
        self.residual = nn.Sequential(
            nn.Conv2d(width_in, width, 3, padding=1, bias=False),
            nn.BatchNorm2d(width),
            nn.LeakyReLU(0.1, inplace=True),
            nn.Conv2d(width, width, 3, padding=1, bias=False),
            nn.BatchNorm2d(width),
            nn.LeakyReLU(0.1, inplace=True),
            nn.Conv2d(width, width, 3, padding=1, bias=False),
            nn.BatchNorm2d(width),
        )
        self.shortcut = nn.Sequential(nn.Conv2d(width_in, width, 1, bias=False), nn.BatchNorm2d(width))
        self.drop = drop

    def forward(self, x: Tensor) -> Tensor:
        x = F.leaky_relu(self.residual(x) + self.shortcut(x), 0.1)
        dropped: Tensor = self.drop(F.max_pool2d(x, 2))
        return dropped


class DropBlock(nn.Module):
    """Drop squares of a feature map in training, and scale what is left (Ghiasi et al., 2018).

    Args:
        drop_rate: the expected share of dropped activations.
        block_size: the side of a square; a map that is smaller is dropped whole.
        ramp_steps: training steps over which the rate rises from 0 to `drop_rate`; 0 for none.
    """

    n_steps: Tensor

    def __init__(self, drop_rate: float, block_size: int, ramp_steps: int = 0) -> None:
        super().__init__()
        if not 0 <= drop_rate < 1 or block_size < 1 or ramp_steps < 0:
            raise InputError(
                f"DropBlock needs a rate in [0, 1), a block of at least 1 and no negative ramp, not {drop_rate}, "
                f"{block_size} and {ramp_steps}."
            )
        self.drop_rate, self.block_size, self.ramp_steps = drop_rate, block_size, ramp_steps
        self.register_buffer("n_steps", torch.zeros((), dtype=torch.int64))

    def forward(self, x: Tensor) -> Tensor:
        """Drop in training mode; do nothing in evaluation mode."""
        if not self.training or self.drop_rate == 0:
            return x
        self.n_steps += 1
        rate = torch.clamp(self.n_steps / max(self.ramp_steps, 1), max=1.0) * self.drop_rate
        height, width = x.shape[2:]
        side = min(self.block_size, height, width)
        n_corners = (height - side + 1) * (width - side + 1)  # where a square can start
        corner_rate = rate / side**2 * (height * width) / n_corners
        corners = torch.rand(*x.shape[:2], height - side + 1, width - side + 1, device=x.device) < corner_rate
        # A place is dropped when a square starts at it or up to `side` − 1 before it, in both directions.
        kept = 1 - F.max_pool2d(F.pad(corners.float(), (side - 1,) * 4), side, stride=1)
        return x * (kept * (kept.numel() / kept.sum().clamp(min=1))).to(x.dtype)
