"""Fused GPU kernels for batch norm and the stem, behind one entry: `fuse`.

A backbone that is built or loaded consists of plain PyTorch modules, which can be changed, hooked,
exported and differentiated like any other. `fuse` replaces the class of its blocks by a subclass
that does the same with fewer passes over memory. The activations of such a block, and the sequences
around them, are not called.
"""

from typing import TypeVar, cast

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
    has_blocks = any(isinstance(module, tuple(FUSED)) for module in backbone.modules())
    has_norms = any(type(module) is nn.BatchNorm2d for module in backbone.modules())
    return device.type == "cuda" and has_blocks and has_norms and kernels_run(device)


def fuse(backbone: Network) -> Network:
    """Let a backbone's blocks use the fused kernels, in place. The results are equal up to rounding."""
    for module in backbone.modules():
        module.__class__ = FUSED.get(type(module), type(module))
    return backbone


class _FusedConvBlock(ConvBlock):
    def forward(self, images: Tensor) -> Tensor:
        convolution, norm, _, *rest = self
        images = norm_act(norm, convolution(images))
        for module in rest:
            images = module(images)
        return images


class _FusedStem(Stem):
    def forward(self, images: Tensor) -> Tensor:
        convolution, norm, _ = self
        return conv_norm_act(convolution, norm, images)


class _FusedBasicBlock(BasicBlock):
    def forward(self, x: Tensor) -> Tensor:
        first, first_norm, _, second, second_norm = self.residual
        x, again = two_uses(x)
        inner = norm_act(first_norm, first(x))
        return norm_act(second_norm, second(inner), *_shortcut(self.shortcut, again))


class _FusedMetaOptStage(MetaOptStage):
    def forward(self, x: Tensor) -> Tensor:
        first, first_norm, _, second, second_norm, _, third, third_norm = self.residual
        inner = norm_act(first_norm, first(x), slope=SLOPE)
        inner = norm_act(second_norm, second(inner), slope=SLOPE)
        x = norm_act(third_norm, third(inner), *_shortcut(self.shortcut, x), slope=SLOPE)
        dropped: Tensor = self.drop(F.max_pool2d(x, 2))
        return dropped


FUSED: dict[type[nn.Module], type[nn.Module]] = {
    ConvBlock: _FusedConvBlock,
    Stem: _FusedStem,
    BasicBlock: _FusedBasicBlock,
    MetaOptStage: _FusedMetaOptStage,
}


def _shortcut(shortcut: nn.Module, x: Tensor) -> tuple[Tensor, nn.Module | None]:
    """Return a shortcut's input to the sum and its norm: x without one, or its 1×1 convolution with its norm."""
    if isinstance(shortcut, nn.Identity):
        return x, None
    convolution, norm = cast(nn.Sequential, shortcut)
    return convolution(x), norm
