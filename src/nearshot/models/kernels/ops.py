"""Batch norm with what surrounds it, in few passes over memory.

The kernels run on a GPU, where they agree with PyTorch.
"""

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
# The largest relative difference; bfloat16 rounds to 0.004, several times in a row.
TOLERANCE = 0.05
# The images of the check: on a GPU several tiles for each program, and a number of places that
# divides well, as in training; interpreted a number of places that no tile divides.
ON_A_GPU = (16, 3, 64, 64)
INTERPRETED = (4, 3, 17, 15)

Act = Callable[[nn.Conv2d, nn.BatchNorm2d, Tensor], Tensor]


def norm_act(
    norm: nn.Module,
    x: Tensor,
    shortcut: Tensor | None = None,
    shortcut_norm: nn.Module | None = None,
    *,
    slope: float = 0.0,
) -> Tensor:
    """Return activation(norm(x) + shortcut).

    In eager PyTorch each of these reads and writes all of memory again, and most of a step's time
    outside of convolutions is spent there. PyTorch computes evaluation with gradients and float64,
    which the kernels do not support.

    Args:
        norm: a batch norm.
        x: (image, channel, height, width).
        shortcut: of the shape of x.
        shortcut_norm: the shortcut's own norm, if it has one.
        slope: what negative values are multiplied by; 0 for a ReLU.
    """
    if not _has_kernels(norm, x, x.dtype):
        return plain_norm_act(norm, x, shortcut, shortcut_norm, slope=slope)
    # Triton is not available everywhere.
    from nearshot.models.kernels.triton_norm import NormAct  # noqa: PLC0415

    outputs: tuple[Tensor, Tensor] = NormAct.apply(  # type: ignore[no-untyped-call]
        slope,
        norm,
        _channels_last(x),
        norm.weight,
        norm.bias,
        None if shortcut is None else _channels_last(shortcut),
        shortcut_norm,
        None if shortcut_norm is None else shortcut_norm.weight,
        None if shortcut_norm is None else shortcut_norm.bias,
    )
    return _with_again(outputs)


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
        if shortcut_norm is not None:
            shortcut = shortcut_norm(shortcut)
        x = x + shortcut
    if slope:
        return F.leaky_relu(x, slope, inplace=True)
    return F.relu(x, inplace=True)


def conv_norm_act(convolution: nn.Module, norm: nn.Module, images: Tensor) -> Tensor:
    """Return relu(norm(convolution(images))) for a 3×3 convolution of three channels without bias.

    With three channels in and many out, computing the convolution is cheap beside writing and
    reading it. So the kernels compute it each time they need it. PyTorch computes images that need
    a gradient.
    """
    device = images.device.type
    # The type that PyTorch's convolution would compute in.
    dtype = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else images.dtype
    # Triton's interpreter, on the CPU, does not support bfloat16.
    is_unsupported = device == "cpu" and dtype == torch.bfloat16
    if images.requires_grad or is_unsupported or not _has_kernels(norm, images, dtype):
        return norm_act(norm, convolution(images))
    from nearshot.models.kernels.triton_stem import ConvNormAct  # noqa: PLC0415

    outputs: tuple[Tensor, Tensor] = ConvNormAct.apply(  # type: ignore[no-untyped-call]
        norm, _channels_last(images.to(dtype)), convolution.weight, norm.weight, norm.bias
    )
    return _with_again(outputs)


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
    """Whether the kernels compile, run and agree with PyTorch on a device.

    If not, the reason is logged once.

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
    fused_block = functools.partial(block, norm_act)
    plain_block = functools.partial(block, plain_norm_act)
    logger = logging.getLogger("nearshot.models")
    try:
        block_difference = relative_difference(fused_block, plain_block, device)
        stem_difference = relative_difference(stem, plain_stem, device)
    except Exception as error:  # such as a missing compiler, or a cache folder that is read-only
        lines = str(error).strip().splitlines() or [type(error).__name__]
        logger.warning(
            "The network is not fused: Triton does not work on this machine (%s).", lines[-1]
        )
        return False
    difference = max(block_difference, stem_difference)
    if difference >= TOLERANCE:
        logger.warning(
            "The network is not fused: Triton's kernels differ from PyTorch by %.0f %%.",
            100 * difference,
        )
        return False
    return True


def relative_difference(fast: Act, plain: Act, device: torch.device) -> float:
    """Return the largest relative difference between two ways to compute a block.

    It is infinite where a result is not a number.
    """
    with torch.inference_mode(False), torch.enable_grad():  # also inside a validation
        expected = _answers(plain, device, torch.float32)
        got = _answers(fast, device, torch.bfloat16 if device.type == "cuda" else torch.float32)
    length = torch.linalg.vector_norm
    differences = []
    for fast_answer, answer in zip(got, expected, strict=True):
        differences.append(length(fast_answer.float() - answer) / length(answer))
    return float(torch.stack(differences).nan_to_num(torch.inf).max())


def _answers(act: Act, device: torch.device, dtype: torch.dtype) -> list[Tensor]:
    """Return the output, the weights' gradients and the running statistics.

    No random number is drawn.
    """
    convolution = nn.utils.skip_init(
        nn.Conv2d, 3, 64, 3, padding=1, bias=False, device=device, dtype=torch.float32
    )
    norm = nn.BatchNorm2d(64, device=device, dtype=torch.float32)
    with torch.no_grad():
        convolution.weight.copy_(_numbers(convolution.weight.shape, device))
        norm.bias.copy_(_numbers(norm.bias.shape, device))
    images = _numbers(ON_A_GPU if device.type == "cuda" else INTERPRETED, device)
    with torch.autocast(device.type, dtype, enabled=dtype != torch.float32):
        output = act(convolution, norm, images)
    values = output.float()
    # Gradients that do not average out.
    (values * (values + _numbers(output.shape, device))).sum().backward()
    parameters = [*convolution.parameters(), *norm.parameters()]
    gradients = [cast(Tensor, parameter.grad) for parameter in parameters]
    return [
        output.detach(),
        *gradients,
        cast(Tensor, norm.running_mean),
        cast(Tensor, norm.running_var),
    ]


def _numbers(shape: torch.Size | tuple[int, ...], device: torch.device) -> Tensor:
    """Return −1, 0 and 1 in a pseudo-random order.

    A convolution of these has no rounding, in any precision.
    """
    count = torch.arange(torch.Size(shape).numel(), device=device)
    return (count * 7919 % 8191 * count % 8191 % 3 - 1).view(shape).float()
