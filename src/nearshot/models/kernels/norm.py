"""Batch norm with the shortcut and the activation that follow it, in one pass over memory each way: on a GPU."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from itertools import zip_longest
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd import forward_ad

from nearshot.models.kernels.self_check import agree

__all__ = ["kernels_run", "norm_act", "two_uses"]

DTYPES = (torch.float32, torch.bfloat16, torch.float16)


def norm_act(
    norm: nn.Module,
    x: Tensor,
    shortcut: Tensor | None = None,
    shortcut_norm: nn.Module | None = None,
    *,
    slope: float = 0.0,
) -> Tensor:
    """Return activation(norm(x) + shortcut). The activation is a ReLU that multiplies negative values by `slope`.

    In eager PyTorch each of these reads and writes all of memory again, and most of a step's time outside of
    convolutions is spent there. PyTorch computes what the kernels do not support: evaluation with gradients,
    `torch.func`, numbers of channels that are no multiple of 16.

    Args:
        norm: an `nn.BatchNorm2d`, or a module in its place.
        x: (image, channel, height, width).
        shortcut: of the same shape.
        shortcut_norm: the shortcut's own norm, if it has one.
        slope: 0 for ReLU, 0.1 for Lee et al.'s leaky one, 1 for none.
    """
    norms = [norm] if shortcut_norm is None else [norm, shortcut_norm]
    given = [x] if shortcut is None else [x, shortcut]
    if _are_supported(norms, given):
        return _by_kernels(norms, given, slope)
    return _by_pytorch(norms, given, slope)


def _by_pytorch(norms: list[nn.Module], given: list[Tensor], slope: float) -> Tensor:
    """Return the activation of the sum; every input has its norm, or the second has none."""
    x: Tensor = norms[0](given[0])
    if len(given) > 1:
        x = x + (norms[1](given[1]) if len(norms) > 1 else given[1])
    if slope == 1:
        return x
    return F.relu(x, inplace=True) if slope == 0 else F.leaky_relu(x, slope, inplace=True)


def two_uses(x: Tensor) -> tuple[Tensor, Tensor]:
    """Return x for each of two uses, such as a convolution and the shortcut past it.

    The kernels return their output twice. So the gradients of both uses reach them separately and are added up while
    they are read, in one pass over memory instead of two. Either gradient alone is only a part of that of x.
    """
    again: Tensor | None = getattr(x, "again", None)
    if again is None or again.grad_fn is None or x._version:  # changed in place since
        return x, x
    return x, again


def _are_supported(norms: list[nn.Module], given: list[Tensor]) -> bool:
    """Whether the kernels can train, or evaluate without gradients: blocks of 16 channels, one shape and type."""
    x = given[0]
    return (
        all(has_kernels(norm, x) for norm in norms)
        and len({norm.training for norm in norms}) == 1
        and x.shape[1] % 16 == 0
        and x.numel() > x.shape[1]  # one place has no variance: PyTorch raises its own error
        and x.dtype in DTYPES
        and all(tensor.dtype == x.dtype and tensor.shape == x.shape for tensor in given)
    )


def has_kernels(norm: nn.Module, x: Tensor) -> bool:
    """Whether the kernels support a norm in its present mode, on the device of x."""
    return (
        not torch.compiler.is_compiling()
        and not torch._C._are_functorch_transforms_active()
        and forward_ad.unpack_dual(x).tangent is None
        and type(norm) is nn.BatchNorm2d
        and (x.is_cuda or os.environ.get("TRITON_INTERPRET") == "1")
        and norm.affine
        and norm.weight.dtype == torch.float32
        and norm.track_running_stats
        and norm.momentum is not None
        and (norm.training or not torch.is_grad_enabled())
    )


def _by_kernels(norms: list[nn.Module], given: list[Tensor], slope: float) -> Tensor:
    """Return the same as `_by_pytorch`."""
    from nearshot.models.kernels import triton_norm  # noqa: PLC0415 (Triton is not available everywhere)

    arguments: list[Any] = [slope]
    for tensor, norm in zip_longest(given, norms):
        arguments.append(tensor.contiguous(memory_format=torch.channels_last))
        arguments += weights_and_settings(norm) if norm is not None else []  # type: ignore[arg-type]
    if not norms[0].training:
        return triton_norm.evaluate_norm(*arguments)
    return with_again(triton_norm.NormAct.apply(*arguments))  # type: ignore[no-untyped-call]


def weights_and_settings(norm: nn.BatchNorm2d) -> list[Any]:
    """Return a norm's arguments of the kernels; in training, count the batch as PyTorch does."""
    from nearshot.models.kernels.triton_shared import NormSettings  # noqa: PLC0415

    if norm.training and norm.num_batches_tracked is not None:
        norm.num_batches_tracked.add_(1)
    running: tuple[Tensor, Tensor] = (norm.running_mean, norm.running_var)  # type: ignore[assignment]
    return [norm.weight, norm.bias, NormSettings(running, norm.momentum, norm.eps)]  # type: ignore[arg-type]


def with_again(outputs: tuple[Tensor, Tensor]) -> Tensor:
    """Return the first of two equal outputs; `two_uses` finds the second."""
    output, again = outputs
    output.again = again  # type: ignore[attr-defined]
    return output


@functools.cache
def kernels_run(device: torch.device) -> bool:
    """Whether the kernels compile, run and agree with PyTorch on a device; if not, log the reason once."""

    def block(act: Callable[..., Tensor], convolution: nn.Conv2d, norm: nn.BatchNorm2d, images: Tensor) -> Tensor:
        """Two uses of one output, and a shortcut with a norm."""
        x, again = two_uses(act([norm], [convolution(images)], 0.0))
        return act([norm, norm], [x, again], 0.0)

    return agree("Batch norm", functools.partial(block, _by_kernels), functools.partial(block, _by_pytorch), device)
