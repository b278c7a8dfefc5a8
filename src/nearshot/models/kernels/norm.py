"""Batch norm with what follows it, a shortcut and an activation, in one pass over memory each way: on a GPU.

Networks that can do so have blocks with an attribute `fused`. Where it is False, as it is in every network that is
built or loaded, a block is PyTorch's own modules, called one after the other, and may be changed, hooked, exported and
differentiated like any. `fuse_norms` sets it, for training and for embedding what is validated on: then the block calls
`norm_act` with its convolutions' outputs, and its activations and the sequences around them are not called. A map of
features inside such a network has part of its gradient only: see `twice`.
"""

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

__all__ = ["can_fuse", "fuse_norms", "norm_act", "twice"]

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


def norm_act(
    norm: nn.Module,
    x: Tensor,
    shortcut: Tensor | None = None,
    shortcut_norm: nn.Module | None = None,
    *,
    slope: float = 0.0,
) -> Tensor:
    """Return activation(norm(x) + shortcut). The activation is a ReLU that multiplies what is negative by `slope`.

    In eager PyTorch each of these reads and writes all of memory again, and most of a step's time that is not in
    convolutions goes there. What the kernels do not do is left to PyTorch: evaluation with gradients, `torch.func`,
    odd numbers of channels.

    Args:
        norm: an `nn.BatchNorm2d`, or what stands in its place.
        x: (image, channel, height, width).
        shortcut: of the same shape.
        shortcut_norm: the shortcut's own norm, where it has one.
        slope: 0 for ReLU, 0.1 for Lee et al.'s leaky one, 1 for none.
    """
    norms = [norm] if shortcut_norm is None else [norm, shortcut_norm]
    given = [x] if shortcut is None else [x, shortcut]
    if _are_for_kernels(norms, given):
        return _by_kernels(norms, given, slope)
    return _by_pytorch(norms, given, slope)


def _by_pytorch(norms: list[nn.Module], given: list[Tensor], slope: float) -> Tensor:
    """Return the activation of the sum; each of what is given has its norm, or the second has none."""
    x: Tensor = norms[0](given[0])
    if len(given) > 1:
        x = x + (norms[1](given[1]) if len(norms) > 1 else given[1])
    if slope == 1:
        return x
    return F.relu(x, inplace=True) if slope == 0 else F.leaky_relu(x, slope, inplace=True)


def twice(x: Tensor) -> tuple[Tensor, Tensor]:
    """Return x two times, for two uses, such as a convolution and the shortcut past it.

    What the kernels have made is two outputs of theirs: so both uses' gradients reach them as they are, and are added
    up while they are read, which is one pass over memory instead of two. So each of the two has its own gradient, and
    one alone is not that of x.
    """
    again: Tensor | None = getattr(x, "again", None)
    if again is None or again.grad_fn is None or x._version:  # what was changed in place is no longer what was made
        return x, x
    return x, again


def _are_for_kernels(norms: list[nn.Module], given: list[Tensor]) -> bool:
    """Whether the kernels do what is asked: train, or evaluate without gradients; whole blocks of channels."""
    x = given[0]
    return (
        all(has_kernels(norm, x) for norm in norms)
        and len({norm.training for norm in norms}) == 1
        and x.shape[1] % 16 == 0
        and x.numel() > x.shape[1]  # one place has no variance, which PyTorch says in its own words
        and x.dtype in DTYPES
        and all(tensor.dtype == x.dtype and tensor.shape == x.shape for tensor in given)
    )


def has_kernels(norm: nn.Module, x: Tensor) -> bool:
    """Whether the kernels do what this norm does, as it is now, where x is."""
    return (
        not torch.compiler.is_compiling()
        and not is_transformed(x)
        and type(norm) is nn.BatchNorm2d
        and (x.is_cuda or os.environ.get("TRITON_INTERPRET") == "1")
        and norm.affine
        and norm.weight.dtype == torch.float32
        and norm.track_running_stats
        and norm.momentum is not None
        and (norm.training or not torch.is_grad_enabled())
    )


def is_transformed(x: Tensor) -> bool:
    """Whether `torch.func` is at work, or derivatives go forward with x."""
    return torch._C._are_functorch_transforms_active() or forward_ad.unpack_dual(x).tangent is not None


def _by_kernels(norms: list[nn.Module], given: list[Tensor], slope: float) -> Tensor:
    """Return what `_by_pytorch` does."""
    from nearshot.models.kernels import triton_norm  # noqa: PLC0415 (Triton is not everywhere)

    arguments: list[Any] = [slope]
    for tensor, norm in zip_longest(given, norms):
        arguments.append(tensor.contiguous(memory_format=torch.channels_last))
        arguments += weights_and_settings(norm) if norm is not None else []  # type: ignore[arg-type]
    if not norms[0].training:
        return triton_norm.evaluated(*arguments)
    return with_again(triton_norm.NormAct.apply(*arguments))  # type: ignore[no-untyped-call]


def weights_and_settings(norm: nn.BatchNorm2d) -> list[Any]:
    """Return what the kernels take of a norm; in training, count a batch, as PyTorch does."""
    from nearshot.models.kernels.triton_shared import Settings  # noqa: PLC0415

    if norm.training and norm.num_batches_tracked is not None:
        norm.num_batches_tracked.add_(1)
    running: tuple[Tensor, Tensor] = (norm.running_mean, norm.running_var)  # type: ignore[assignment]
    return [norm.weight, norm.bias, Settings(running, norm.momentum, norm.eps)]  # type: ignore[arg-type]


def with_again(outputs: tuple[Tensor, Tensor]) -> Tensor:
    """Return the first of two equal outputs; `twice` finds the second."""
    output, again = outputs
    output.again = again  # type: ignore[attr-defined]
    return output


@functools.cache
def _kernels_run(device: torch.device) -> bool:
    """Whether the kernels can be built and started here, and compute what PyTorch does; if not, say why once."""

    def block(act: Callable[..., Tensor], convolution: nn.Conv2d, norm: nn.BatchNorm2d, images: Tensor) -> Tensor:
        """Two uses of one output, and a shortcut with a norm."""
        x, again = twice(act([norm], [convolution(images)], 0.0))
        return act([norm, norm], [x, again], 0.0)

    return agree("Batch norm", functools.partial(block, _by_kernels), functools.partial(block, _by_pytorch), device)
