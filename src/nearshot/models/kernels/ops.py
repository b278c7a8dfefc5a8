"""Batch norm with what surrounds it, in few passes over memory: on a GPU, where the kernels agree with PyTorch."""

import functools
import logging
import os
from collections.abc import Callable
from importlib.util import find_spec
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

DTYPES = (torch.float32, torch.bfloat16, torch.float16)
TOLERANCE = 0.05  # relative; bfloat16 rounds to 0.004, several times in a row
ON_A_GPU = (
    16,
    3,
    64,
    64,
)  # several tiles for each program, and a number of places that divides well, as in training
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

    In eager PyTorch each of these reads and writes all of memory again, and most of a step's time
    outside of convolutions is spent there. PyTorch computes evaluation with gradients and float64,
    which the kernels do not support. The shortcut has the shape of x, (image, channel, height,
    width), and may have a norm of its own.
    """
    if not _has_kernels(norm, x, x.dtype):
        return plain_norm_act(norm, x, shortcut, shortcut_norm, slope=slope)
    from nearshot.models.kernels.triton_norm import NormAct  # noqa: PLC0415 (Triton is not available everywhere)

    x, past = _channels_last(x), None if shortcut is None else _channels_last(shortcut)
    weights = (None, None) if shortcut_norm is None else (shortcut_norm.weight, shortcut_norm.bias)
    return _with_again(
        NormAct.apply(slope, norm, x, norm.weight, norm.bias, past, shortcut_norm, *weights)
    )  # type: ignore[no-untyped-call]


def plain_norm_act(
    norm: nn.Module,
    x: Tensor,
    shortcut: Tensor | None = None,
    shortcut_norm: nn.Module | None = None,
    *,
    slope: float = 0.0,
) -> Tensor:
    """Return what `norm_act` does, by PyTorch."""
    x = norm(x)
    if shortcut is not None:
        x = x + (shortcut if shortcut_norm is None else shortcut_norm(shortcut))
    return F.leaky_relu(x, slope, inplace=True) if slope else F.relu(x, inplace=True)


def conv_norm_act(convolution: nn.Module, norm: nn.Module, images: Tensor) -> Tensor:
    """Return relu(norm(convolution(images))) for a 3×3 convolution of three channels, without a bias.

    With three channels in and many out, computing the convolution is cheap beside writing and
    reading it. So the kernels compute it each time they need it. PyTorch computes images that need
    a gradient.
    """
    device = images.device.type
    # the type that PyTorch's convolution would compute in
    dtype = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else images.dtype
    is_interpreted = (
        device == "cpu" and dtype == torch.bfloat16
    )  # which Triton's interpreter does not support
    if images.requires_grad or is_interpreted or not _has_kernels(norm, images, dtype):
        return norm_act(norm, convolution(images))
    from nearshot.models.kernels.triton_stem import ConvNormAct  # noqa: PLC0415

    images = _channels_last(images.to(dtype))
    return _with_again(ConvNormAct.apply(norm, images, convolution.weight, norm.weight, norm.bias))  # type: ignore[no-untyped-call]


def two_uses(x: Tensor) -> tuple[Tensor, Tensor]:
    """Return x for each of two uses, such as a convolution and the shortcut past it.

    The kernels return their output twice. So the gradients of both uses reach them separately and
    are added up while they are read, in one pass over memory instead of two. Either gradient alone
    is only a part of that of x.
    """
    again: Tensor | None = getattr(x, "again", None)
    if again is None or again.grad_fn is None or x._version:  # changed in place since
        return x, x
    return x, again


def _has_kernels(norm: nn.Module, x: Tensor, dtype: torch.dtype) -> bool:
    """Whether the kernels support a norm in its present mode, on the device of x."""
    return (
        (x.is_cuda or os.environ.get("TRITON_INTERPRET") == "1")
        and type(norm) is nn.BatchNorm2d
        and dtype in DTYPES
        and x.numel() > x.shape[1]  # one place has no variance: PyTorch raises its own error
        and (norm.training or not torch.is_grad_enabled())
    )


def _channels_last(x: Tensor) -> Tensor:
    return x.contiguous(memory_format=torch.channels_last)


def _with_again(outputs: tuple[Tensor, Tensor]) -> Tensor:
    """Return the first of two equal outputs; `two_uses` finds the second."""
    output, again = outputs
    output.again = again  # type: ignore[attr-defined]
    return output


@functools.cache
def kernels_run(device: torch.device) -> bool:
    """Whether the kernels compile, run and agree with PyTorch on a device; if not, log the reason once.

    Triton's compiler has been wrong before. So both compute the output, the weights' gradients and
    the running statistics of a few small images, in which the output is used twice.
    """

    def block(
        act: Callable[..., Tensor], convolution: nn.Conv2d, norm: nn.BatchNorm2d, images: Tensor
    ) -> Tensor:
        x, again = two_uses(act(norm, convolution(images)))
        return act(norm, x, again, norm)

    def stem(convolution: nn.Conv2d, norm: nn.BatchNorm2d, images: Tensor) -> Tensor:
        x, again = two_uses(conv_norm_act(convolution, norm, images))
        return x + 2 * again

    def plain_stem(convolution: nn.Conv2d, norm: nn.BatchNorm2d, images: Tensor) -> Tensor:
        return 3 * plain_norm_act(norm, convolution(images))

    if find_spec("triton") is None:
        return False
    by_kernels, by_pytorch = (
        functools.partial(block, norm_act),
        functools.partial(block, plain_norm_act),
    )
    try:
        wrong = max(
            relative_difference(by_kernels, by_pytorch, device),
            relative_difference(stem, plain_stem, device),
        )
        why = (
            ""
            if wrong < TOLERANCE
            else f"its kernels differ from PyTorch by {wrong:.0%}, a bug of Triton"
        )
    except Exception as error:  # such as a missing compiler, or a cache folder that is read-only
        lines = str(error).strip().splitlines() or [type(error).__name__]
        why = f"Triton does not work on this machine ({lines[-1]})"
    if why:
        logging.getLogger("nearshot").warning("The network is not fused: %s.", why)
    return not why


def relative_difference(fast: Act, plain: Act, device: torch.device) -> float:
    """Return the largest relative difference between two ways to compute a block; infinity for what is no number."""
    with torch.inference_mode(False), torch.enable_grad():  # also inside a validation
        expected = _answers(plain, device, torch.float32)
        got = _answers(fast, device, torch.bfloat16 if device.type == "cuda" else torch.float32)
    norm = torch.linalg.vector_norm
    found = torch.stack(
        [norm(one.float() - other) / norm(other) for one, other in zip(got, expected, strict=True)]
    )
    return float(found.nan_to_num(torch.inf).max())


def _answers(act: Act, device: torch.device, dtype: torch.dtype) -> list[Tensor]:
    """Return the output, the weights' gradients and the running statistics. No random number is drawn."""
    convolution = nn.utils.skip_init(
        nn.Conv2d, 3, 64, 3, padding=1, bias=False, device=device, dtype=torch.float32
    )
    norm = nn.BatchNorm2d(64, device=device, dtype=torch.float32)
    with torch.no_grad():
        convolution.weight.copy_(_numbers(convolution.weight.shape, device))
        norm.bias.copy_(_numbers(norm.bias.shape, device))
    with torch.autocast(device.type, dtype, enabled=dtype != torch.float32):
        output = act(
            convolution, norm, _numbers(ON_A_GPU if device.type == "cuda" else INTERPRETED, device)
        )
    values = output.float()
    (
        values * (values + _numbers(output.shape, device))
    ).sum().backward()  # gradients that do not average out
    gradients = [
        cast(Tensor, parameter.grad)
        for parameter in (*convolution.parameters(), *norm.parameters())
    ]
    return [
        output.detach(),
        *gradients,
        cast(Tensor, norm.running_mean),
        cast(Tensor, norm.running_var),
    ]


def _numbers(shape: torch.Size | tuple[int, ...], device: torch.device) -> Tensor:
    """Return −1, 0 and 1 in a pseudo-random order. A convolution of these has no rounding, in any precision."""
    count = torch.arange(torch.Size(shape).numel(), device=device)
    return (count * 7919 % 8191 * count % 8191 % 3 - 1).view(shape).float()
