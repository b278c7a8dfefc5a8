"""A network's first convolution with batch norm and ReLU, of which only the output is written to memory: on a GPU."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from typing import TypeGuard

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nearshot.models.kernels.norm import DTYPES, has_kernels, norm_act, two_uses, weights_and_settings, with_again
from nearshot.models.kernels.self_check import agree

__all__ = ["conv_norm_act"]

HOOKS = ("_forward_pre_hooks", "_forward_hooks", "_backward_pre_hooks", "_backward_hooks")


def conv_norm_act(convolution: nn.Module, norm: nn.Module, images: Tensor) -> Tensor:
    """Return relu(norm(convolution(images))).

    With three channels in and many out, computing the convolution is cheap beside writing and reading it. So the
    kernels compute it each time they need it. They support 3×3 convolutions of images that need no gradient, without
    hooks; `norm_act` and PyTorch do the rest.
    """
    if _is_supported(convolution) and _is_for_kernels(convolution, norm, images) and _kernels_agree(images.device):
        return _by_kernels(convolution, norm, images)  # type: ignore[arg-type]
    return norm_act(norm, convolution(images))


def _by_kernels(convolution: nn.Conv2d, norm: nn.BatchNorm2d, images: Tensor) -> Tensor:
    from nearshot.models.kernels import triton_stem  # noqa: PLC0415 (Triton is not available everywhere)

    images = images.to(_dtype(images)).contiguous(memory_format=torch.channels_last)
    given = (images, convolution.weight, *weights_and_settings(norm))
    if not norm.training:
        return triton_stem.evaluate_stem(*given)
    return with_again(triton_stem.ConvNormAct.apply(*given))  # type: ignore[no-untyped-call]


@cache
def _kernels_agree(device: torch.device) -> bool:
    """Whether the kernels agree with PyTorch on a device; if not, log the reason once."""

    def used_twice(act: Callable[..., Tensor], *given: nn.Module | Tensor) -> Tensor:
        x, again = two_uses(act(*given))
        return x + 2 * again

    def by_pytorch(convolution: nn.Conv2d, norm: nn.BatchNorm2d, images: Tensor) -> Tensor:
        return F.relu(norm(convolution(images)))

    return agree("The first convolution", partial(used_twice, _by_kernels), partial(used_twice, by_pytorch), device)


def _is_supported(convolution: nn.Module) -> TypeGuard[nn.Conv2d]:
    return (
        type(convolution) is nn.Conv2d
        and convolution.in_channels == 3
        and convolution.out_channels % 16 == 0
        and convolution.kernel_size == (3, 3)
        and convolution.stride == convolution.dilation == (1, 1)
        and convolution.padding == (1, 1)
        and convolution.padding_mode == "zeros"
        and convolution.bias is None
        and not any(getattr(convolution, hooks) for hooks in HOOKS)
    )


def _is_for_kernels(convolution: nn.Conv2d, norm: nn.Module, images: Tensor) -> bool:
    return (
        has_kernels(norm, images)
        and convolution.weight.dtype == torch.float32
        and _dtype(images) in DTYPES
        and (images.is_cuda or _dtype(images) != torch.bfloat16)  # Triton's interpreter does not support it
        and images.dtype != torch.float64
        and images.numel() > 3
        and not images.requires_grad
    )


def _dtype(images: Tensor) -> torch.dtype:
    """Return the type that PyTorch's convolution would compute in."""
    device = images.device.type
    return torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else images.dtype
