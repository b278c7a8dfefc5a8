"""Fused GPU kernels for batch norm and the stem, behind one entry: `fuse`.

A backbone that is built or loaded consists of plain PyTorch modules, which can be changed, hooked,
exported and differentiated like any other. `fuse` puts other blocks in the place of its blocks.
They hold the same layers under the same names, and compute the same with fewer passes over memory.
The activations of such a block, and the sequences around them, are not called.
"""

from collections.abc import Callable
from typing import Any, TypeVar, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nearshot.models.conv4 import ConvBlock
from nearshot.models.kernels.ops import conv_norm_act, kernels_run, norm_act, two_uses
from nearshot.models.resnet12 import SLOPE, BasicBlock, MetaOptStage, Stem

__all__ = ["can_fuse", "fuse"]

Network = TypeVar("Network", bound=nn.Module)


def can_fuse(backbone: nn.Module, device: torch.device) -> bool:
    """Whether a backbone has blocks that can be fused, and the kernels run on the device.

    They run on CUDA where Triton works: it comes with PyTorch on Linux, and needs a C compiler.
    Batch norms that are synchronised between processes are not fused.
    """
    has_blocks = any(type(module) in FUSED for module in backbone.modules())
    has_norms = any(type(module) is nn.BatchNorm2d for module in backbone.modules())
    return device.type == "cuda" and has_blocks and has_norms and kernels_run(device)


def fuse(backbone: Network) -> Network:
    """Replace a backbone's blocks, in place, by blocks that use the fused kernels.

    The parameters, the buffers and their names stay the same, and results are equal up to rounding.
    Hooks on the replaced blocks are lost; those on their layers stay.
    """
    for parent in list(backbone.modules()):
        for name, block in parent.named_children():
            if type(block) in FUSED:
                fused = FUSED[type(block)](block)
                fused.training = block.training  # of the block alone: a layer may differ
                parent.add_module(name, fused)
    return backbone


class _FusedConvBlock(nn.Sequential):
    """Has the layers of a `ConvBlock`: convolution, norm, ReLU, and those that follow."""

    def __init__(self, block: ConvBlock) -> None:
        super().__init__(*block)

    def forward(self, images: Tensor) -> Tensor:
        convolution, norm, _, *rest = self
        x = norm_act(norm, convolution(images))
        for layer in rest:
            x = layer(x)
        return x


class _FusedStem(nn.Sequential):
    """Has the layers of a `Stem`: convolution, norm, ReLU."""

    def __init__(self, block: Stem) -> None:
        super().__init__(*block)

    def forward(self, images: Tensor) -> Tensor:
        convolution, norm, _ = self
        return conv_norm_act(convolution, norm, images)


class _FusedBasicBlock(nn.Module):
    """Has the layers of a `BasicBlock`."""

    def __init__(self, block: BasicBlock) -> None:
        super().__init__()
        self.residual = block.residual
        self.shortcut = block.shortcut

    def forward(self, x: Tensor) -> Tensor:
        first, first_norm, _, second, second_norm = self.residual
        x, again = two_uses(x)
        inner = norm_act(first_norm, first(x))
        shortcut, shortcut_norm = _shortcut(self.shortcut, again)
        return norm_act(second_norm, second(inner), shortcut, shortcut_norm)


class _FusedMetaOptStage(nn.Module):
    """Has the layers of a `MetaOptStage`."""

    def __init__(self, stage: MetaOptStage) -> None:
        super().__init__()
        self.residual = stage.residual
        self.shortcut = stage.shortcut
        self.drop = stage.drop

    def forward(self, x: Tensor) -> Tensor:
        first, first_norm, _, second, second_norm, _, third, third_norm = self.residual
        inner = norm_act(first_norm, first(x), slope=SLOPE)
        inner = norm_act(second_norm, second(inner), slope=SLOPE)
        shortcut, shortcut_norm = _shortcut(self.shortcut, x)
        x = norm_act(third_norm, third(inner), shortcut, shortcut_norm, slope=SLOPE)
        dropped: Tensor = self.drop(F.max_pool2d(x, 2))
        return dropped


# The fused block of each plain one.
FUSED: dict[type[nn.Module], Callable[[Any], nn.Module]] = {
    ConvBlock: _FusedConvBlock,
    Stem: _FusedStem,
    BasicBlock: _FusedBasicBlock,
    MetaOptStage: _FusedMetaOptStage,
}


def _shortcut(shortcut: nn.Module, x: Tensor) -> tuple[Tensor, nn.Module | None]:
    """Return what a shortcut adds, before its norm; and the norm, if it has one.

    It is x, or the 1×1 convolution of x.
    """
    if isinstance(shortcut, nn.Identity):
        return x, None
    convolution, norm = cast(nn.Sequential, shortcut)
    return convolution(x), norm
