"""Batch norm with what follows it, a shortcut and an activation, in one pass over memory each way: on a GPU.

Networks that can do so have blocks with an attribute `fused`. Where it is False, as it is in every network that is
built or loaded, a block is PyTorch's own modules, called one after the other, and may be changed, hooked, exported and
differentiated like any. `fuse_norms` sets it, for training and for embedding what is validated on: then the block calls
`norm_act` with its convolutions' outputs, and its activations and the sequences around them are not called.
"""

from __future__ import annotations

import functools
import logging
import os
from importlib.util import find_spec

import torch
import torch.nn.functional as F
from torch import Tensor, nn

__all__ = ["can_fuse", "fuse_norms", "norm_act"]

DTYPES = (torch.float32, torch.bfloat16, torch.float16)


def can_fuse(network: nn.Module, device: torch.device) -> bool:
    """Whether a network has something to fuse, and the kernels run on the device.

    They do on CUDA where Triton works: it comes with PyTorch on Linux, and needs a C compiler. A network whose batch
    norms wait for other processes has nothing to fuse.
    """
    has_blocks = any(hasattr(type(module), "fused") for module in network.modules())
    has_norms = any(type(module) is nn.BatchNorm2d for module in network.modules())
    return device.type == "cuda" and has_blocks and has_norms and _kernels_run(device)


def fuse_norms(network: nn.Module) -> nn.Module:
    """Let a network's blocks use the fused kernels from now on. They compute the same but for rounding."""
    for module in network.modules():
        if hasattr(type(module), "fused"):
            module.fused = True  # type: ignore[assignment]
    return network


def norm_act(norm: nn.Module, x: Tensor, shortcut: Tensor | None = None, *, slope: float = 0.0) -> Tensor:
    """Return activation(norm(x) + shortcut). The activation is a ReLU that multiplies what is negative by `slope`.

    In eager PyTorch each of these reads and writes all of memory again, and most of a step's time that is not in
    convolutions goes there. What the kernels do not do is left to PyTorch: evaluation with gradients, `torch.func`,
    odd numbers of channels.

    Args:
        norm: an `nn.BatchNorm2d`, or what stands in its place.
        x: (image, channel, height, width).
        shortcut: of the same shape.
        slope: 0 for ReLU, 0.1 for Lee et al.'s leaky one, 1 for none.
    """
    if is_for_kernels(norm, x, shortcut):
        return _by_kernels(norm, x, shortcut, slope)  # type: ignore[arg-type]
    x = norm(x)
    if shortcut is not None:
        x = x + shortcut
    if slope == 1:
        return x
    return F.relu(x, inplace=True) if slope == 0 else F.leaky_relu(x, slope, inplace=True)


def is_for_kernels(norm: nn.Module, x: Tensor, shortcut: Tensor | None) -> bool:
    """Whether the kernels do what is asked: train, or evaluate without gradients; whole blocks of channels."""
    if torch.compiler.is_compiling() or type(norm) is not nn.BatchNorm2d:
        return False
    given = [x] if shortcut is None else [x, shortcut]
    return (
        (x.is_cuda or os.environ.get("TRITON_INTERPRET") == "1")
        and norm.affine
        and norm.weight.dtype == torch.float32
        and norm.track_running_stats
        and norm.momentum is not None
        and (norm.training or not torch.is_grad_enabled())
        and x.shape[1] % 16 == 0
        and x.numel() > x.shape[1]  # one place has no variance, which PyTorch says in its own words
        and x.dtype in DTYPES
        and all(tensor.dtype == x.dtype and tensor.shape == x.shape for tensor in given)
        and not any(
            torch._C._functorch.is_functorch_wrapped_tensor(tensor) for tensor in (*given, norm.weight, norm.bias)
        )
    )


def _by_kernels(norm: nn.BatchNorm2d, x: Tensor, shortcut: Tensor | None, slope: float) -> Tensor:
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


@functools.cache
def _kernels_run(device: torch.device) -> bool:
    """Whether Triton can build and start a kernel here; if not, say why once."""
    if find_spec("triton") is None:
        return False
    try:
        norm = nn.BatchNorm2d(16).to(device).eval()
        with torch.no_grad():
            _by_kernels(norm, torch.zeros(2, 16, 1, 1, device=device), None, 0.0)
    except Exception as error:  # whatever it is: a compiler that is missing, a folder that cannot be written, …
        lines = str(error).strip().splitlines() or [type(error).__name__]
        logging.getLogger("nearshot").warning("Batch norm is not fused: Triton does not work here (%s).", lines[-1])
        return False
    return True
