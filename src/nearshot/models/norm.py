"""Batch norm with what follows it: a shortcut, an activation. On a GPU all of it in one pass over memory."""

from __future__ import annotations

from importlib.util import find_spec

import torch
import torch.nn.functional as F
from torch import Tensor, nn

__all__ = ["can_fuse", "fuse_norms", "norm_act"]


def norm_act(norm: nn.Module, x: Tensor, shortcut: Tensor | None = None, *, slope: float = 0.0) -> Tensor:
    """Return activation(norm(x) + shortcut). The activation is a ReLU that multiplies what is negative by `slope`.

    In eager PyTorch each of these reads and writes all of memory again, and most of a step's time that is not in
    convolutions goes there. With `fuse_norms`, kernels of our own do it in one pass, where they can.

    Args:
        norm: an `nn.BatchNorm2d`, or what stands in its place.
        x: (image, channel, height, width).
        shortcut: of the same shape.
        slope: 0 for ReLU, 0.1 for Lee et al.'s leaky one, 1 for none.
    """
    if getattr(norm, "fused", False) and _fits(norm, x, shortcut):
        return _fused(norm, x, shortcut, slope)  # type: ignore[arg-type]
    x = norm(x)
    if shortcut is not None:
        x = x + shortcut
    if slope == 1:
        return x
    return F.relu(x, inplace=True) if slope == 0 else F.leaky_relu(x, slope, inplace=True)


def can_fuse(network: nn.Module, device: torch.device) -> bool:
    """Whether a network has something to fuse, and there are kernels for the device.

    For CUDA there are where there is Triton, as there is with PyTorch on Linux.
    """
    return device.type == "cuda" and getattr(network, "fusable", False) and find_spec("triton") is not None


def fuse_norms(network: nn.Module) -> nn.Module:
    """Let a network's batch norms use the fused kernels from now on; only its own code can say where (`norm_act`).

    They compute the same but for rounding. What they do not do, such as gradients of gradients, is an error there, so a
    network is fused where one knows what it is for: in training, and in embedding what it validates on.
    """
    for module in network.modules():
        if type(module) is nn.BatchNorm2d:  # a synchronised one waits for other processes in between
            module.fused = True  # type: ignore[assignment]
    return network


def _fits(norm: nn.Module, x: Tensor, shortcut: Tensor | None) -> bool:
    """Whether the kernels do what is asked: train, or evaluate without gradients; whole blocks of channels."""
    given = [x] if shortcut is None else [x, shortcut]
    return (
        type(norm) is nn.BatchNorm2d
        and norm.affine
        and norm.weight.dtype == torch.float32
        and norm.track_running_stats
        and norm.momentum is not None
        and (norm.training or not torch.is_grad_enabled())
        and x.shape[1] % 16 == 0
        and x.numel() > x.shape[1]  # one place has no variance, which PyTorch says in its own words
        and all(tensor.dtype in (torch.float32, torch.bfloat16, torch.float16) for tensor in given)
        and all(tensor.dtype == x.dtype and tensor.shape == x.shape for tensor in given)
        and not torch._C._functorch.is_functorch_wrapped_tensor(x)
        and not torch.compiler.is_compiling()
    )


def _fused(norm: nn.BatchNorm2d, x: Tensor, shortcut: Tensor | None, slope: float) -> Tensor:
    from nearshot.models import norm_kernels  # noqa: PLC0415 (Triton is not everywhere)

    x = x.contiguous(memory_format=torch.channels_last)
    if shortcut is not None:
        shortcut = shortcut.contiguous(memory_format=torch.channels_last)
    running: tuple[Tensor, Tensor] = (norm.running_mean, norm.running_var)  # type: ignore[assignment]
    if not norm.training:
        return norm_kernels.evaluated(x, norm.weight, norm.bias, shortcut, running, norm.eps, slope)
    if norm.num_batches_tracked is not None:
        norm.num_batches_tracked.add_(1)
    output: Tensor = norm_kernels.NormAct.apply(  # type: ignore[no-untyped-call]
        x, norm.weight, norm.bias, shortcut, running, norm.momentum, norm.eps, slope
    )
    return output
