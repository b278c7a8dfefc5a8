"""Batch norm with what surrounds it, in few passes over memory: on a GPU, where the kernels agree with PyTorch."""

from __future__ import annotations

import functools
import logging
import os
from collections.abc import Callable
from importlib.util import find_spec
from itertools import zip_longest
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd import forward_ad

DTYPES = (torch.float32, torch.bfloat16, torch.float16)
HOOKS = ("_forward_pre_hooks", "_forward_hooks", "_backward_pre_hooks", "_backward_hooks")
TOLERANCE = 0.05  # relative; bfloat16 rounds to 0.004, several times in a row
ON_A_GPU = (16, 3, 64, 64)  # several tiles for each program, and a number of places that divides well, as in training
INTERPRETED = (4, 3, 17, 15)  # a number of places that no tile divides

Act = Callable[[nn.Conv2d, nn.BatchNorm2d, Tensor], Tensor]


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
    `torch.func`, numbers of channels that are no multiple of 16, and modules that are no batch norm. The shortcut has
    the shape of x, (image, channel, height, width), and may have a norm of its own.
    """
    norms = [norm] if shortcut_norm is None else [norm, shortcut_norm]
    given = [x] if shortcut is None else [x, shortcut]
    is_supported = (
        all(_has_kernels(norm, x) for norm in norms)
        and len({norm.training for norm in norms}) == 1
        and x.shape[1] % 16 == 0
        and x.numel() > x.shape[1]  # one place has no variance: PyTorch raises its own error
        and x.dtype in DTYPES
        and all(tensor.dtype == x.dtype and tensor.shape == x.shape for tensor in given)
    )
    return (_norm_by_kernels if is_supported else _norm_by_pytorch)(norms, given, slope)


def conv_norm_act(convolution: nn.Module, norm: nn.Module, images: Tensor) -> Tensor:
    """Return relu(norm(convolution(images))).

    With three channels in and many out, computing the convolution is cheap beside writing and reading it. So the
    kernels compute it each time they need it. They support 3×3 convolutions of images that need no gradient, without
    hooks; `norm_act` and PyTorch do the rest.
    """
    if (
        type(convolution) is nn.Conv2d
        and convolution.in_channels == 3
        and convolution.out_channels % 16 == 0
        and convolution.kernel_size == (3, 3)
        and convolution.stride == convolution.dilation == (1, 1)
        and convolution.padding == (1, 1)
        and convolution.padding_mode == "zeros"
        and convolution.bias is None
        and convolution.weight.dtype == torch.float32
        and not any(getattr(convolution, hooks) for hooks in HOOKS)
        and _has_kernels(norm, images)
        and _dtype(images) in DTYPES
        and (images.is_cuda or _dtype(images) != torch.bfloat16)  # Triton's interpreter does not support it
        and images.dtype != torch.float64
        and images.numel() > 3
        and not images.requires_grad
        and stem_kernels_run(images.device)
    ):
        return _stem_by_kernels(convolution, norm, images)  # type: ignore[arg-type]
    return norm_act(norm, convolution(images))


def two_uses(x: Tensor) -> tuple[Tensor, Tensor]:
    """Return x for each of two uses, such as a convolution and the shortcut past it.

    The kernels return their output twice. So the gradients of both uses reach them separately and are added up while
    they are read, in one pass over memory instead of two. Either gradient alone is only a part of that of x.
    """
    again: Tensor | None = getattr(x, "again", None)
    if again is None or again.grad_fn is None or x._version:  # changed in place since
        return x, x
    return x, again


def _has_kernels(norm: nn.Module, x: Tensor) -> bool:
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


def _dtype(images: Tensor) -> torch.dtype:
    """Return the type that PyTorch's convolution would compute in."""
    device = images.device.type
    return torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else images.dtype


def _norm_by_pytorch(norms: list[nn.Module], given: list[Tensor], slope: float) -> Tensor:
    """Return the activation of the sum; every input has its norm, or the second has none."""
    x: Tensor = norms[0](given[0])
    if len(given) > 1:
        x = x + (norms[1](given[1]) if len(norms) > 1 else given[1])
    if slope == 1:
        return x
    return F.relu(x, inplace=True) if slope == 0 else F.leaky_relu(x, slope, inplace=True)


def _norm_by_kernels(norms: list[nn.Module], given: list[Tensor], slope: float) -> Tensor:
    from nearshot.models.kernels import triton_norm  # noqa: PLC0415 (Triton is not available everywhere)

    arguments: list[Any] = [slope]
    for tensor, norm in zip_longest(given, norms):
        arguments.append(tensor.contiguous(memory_format=torch.channels_last))
        arguments += _weights_and_settings(norm) if norm is not None else []  # type: ignore[arg-type]
    if not norms[0].training:
        return triton_norm.evaluate_norm(*arguments)
    return _with_again(triton_norm.NormAct.apply(*arguments))  # type: ignore[no-untyped-call]


def _stem_by_kernels(convolution: nn.Conv2d, norm: nn.BatchNorm2d, images: Tensor) -> Tensor:
    from nearshot.models.kernels import triton_stem  # noqa: PLC0415

    images = images.to(_dtype(images)).contiguous(memory_format=torch.channels_last)
    given = (images, convolution.weight, *_weights_and_settings(norm))
    if not norm.training:
        return triton_stem.evaluate_stem(*given)
    return _with_again(triton_stem.ConvNormAct.apply(*given))  # type: ignore[no-untyped-call]


def _weights_and_settings(norm: nn.BatchNorm2d) -> list[Any]:
    """Return a norm's arguments of the kernels; in training, count the batch as PyTorch does."""
    from nearshot.models.kernels.triton_shared import NormSettings  # noqa: PLC0415

    if norm.training and norm.num_batches_tracked is not None:
        norm.num_batches_tracked.add_(1)
    running: tuple[Tensor, Tensor] = (norm.running_mean, norm.running_var)  # type: ignore[assignment]
    return [norm.weight, norm.bias, NormSettings(running, norm.momentum, norm.eps)]  # type: ignore[arg-type]


def _with_again(outputs: tuple[Tensor, Tensor]) -> Tensor:
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

    by_kernels, by_pytorch = (functools.partial(block, act) for act in (_norm_by_kernels, _norm_by_pytorch))
    return agree("Batch norm", by_kernels, by_pytorch, device)


@functools.cache
def stem_kernels_run(device: torch.device) -> bool:
    """Whether the kernels of the first convolution do."""

    def by_kernels(*given: Any) -> Tensor:
        x, again = two_uses(_stem_by_kernels(*given))
        return x + 2 * again

    def by_pytorch(convolution: nn.Conv2d, norm: nn.BatchNorm2d, images: Tensor) -> Tensor:
        return 3 * F.relu(norm(convolution(images)))

    return agree("The first convolution", by_kernels, by_pytorch, device)


def agree(name: str, fast: Act, plain: Act, device: torch.device) -> bool:
    """Whether Triton works and `fast` computes the same as `plain`; if not, log the reason.

    Triton's compiler has been wrong before. Both are called with a convolution, a norm and a few small images, and
    differentiated. No random number is drawn.
    """
    if find_spec("triton") is None:
        return False
    try:
        with torch.inference_mode(False), torch.enable_grad():  # also inside a validation
            expected = _answers(plain, device, torch.float32)
            got = _answers(fast, device, torch.bfloat16 if device.type == "cuda" else torch.float32)
            differences = [_distance(*pair) for pair in zip(got, expected, strict=True)]
    except Exception as error:  # such as a missing compiler, or a cache folder that is read-only
        lines = str(error).strip().splitlines() or [type(error).__name__]
        why = [f"Triton does not work on this machine ({lines[-1]})"]
    else:
        wrong = [one for one in differences if not one < TOLERANCE]  # or not a number
        why = [f"its kernels differ from PyTorch by {one:.0%}, a bug of Triton" for one in wrong]
    if why:
        logging.getLogger("nearshot").warning("%s is not fused: %s.", name, why[0])
    return not why


def _answers(act: Act, device: torch.device, dtype: torch.dtype) -> list[Tensor]:
    """Return the output, the weights' gradients and the running statistics."""
    convolution = nn.utils.skip_init(nn.Conv2d, 3, 64, 3, padding=1, bias=False, device=device, dtype=torch.float32)
    norm = nn.BatchNorm2d(64, device=device, dtype=torch.float32)
    with torch.no_grad():
        convolution.weight.copy_(_numbers(convolution.weight.shape, device))
        norm.bias.copy_(_numbers(norm.bias.shape, device))
    with torch.autocast(device.type, dtype, enabled=dtype != torch.float32):
        output = act(convolution, norm, _numbers(ON_A_GPU if device.type == "cuda" else INTERPRETED, device))
    values = output.float()
    (values * (values + _numbers(output.shape, device))).sum().backward()  # gradients that do not average out
    gradients = [parameter.grad for parameter in (*convolution.parameters(), *norm.parameters())]
    return [output, *gradients, norm.running_mean, norm.running_var]


def _numbers(shape: torch.Size | tuple[int, ...], device: torch.device) -> Tensor:
    """Return −1, 0 and 1 in a pseudo-random order. A convolution of these has no rounding, in any precision."""
    count = torch.arange(torch.Size(shape).numel(), device=device)
    return (count * 7919 % 8191 * count % 8191 % 3 - 1).view(shape).float()


def _distance(got: Tensor, expected: Tensor) -> float:
    got, expected = got.detach().float(), expected.detach().float()
    return float(torch.linalg.vector_norm(got - expected) / torch.linalg.vector_norm(expected))
