"""Compares kernels with PyTorch on a device before they are used: Triton's compiler has been wrong before."""

from __future__ import annotations

import logging
from collections.abc import Callable
from importlib.util import find_spec

import torch
from torch import Tensor, nn

__all__ = ["agree"]

TOLERANCE = 0.05  # relative; bfloat16 rounds to 0.004, several times in a row
ON_A_GPU = (16, 3, 64, 64)  # several tiles for each program, and a number of places that divides well, as in training
INTERPRETED = (4, 3, 17, 15)  # a number of places that no tile divides

Act = Callable[[nn.Conv2d, nn.BatchNorm2d, Tensor], Tensor]


def agree(name: str, fast: Act, plain: Act, device: torch.device) -> bool:
    """Whether Triton works and `fast` computes the same as `plain`; if not, log the reason.

    Both are called with a convolution, a norm and a few small images, and differentiated. No random number is drawn.
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
        return _not_fused(name, f"Triton does not work on this machine ({lines[-1]})")
    for difference in differences:
        if not difference < TOLERANCE:  # or not a number
            return _not_fused(name, f"its kernels differ from PyTorch by {difference:.0%}, a bug of Triton")
    return True


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


def _not_fused(name: str, why: str) -> bool:
    logging.getLogger("nearshot").warning("%s is not fused: %s.", name, why)
    return False
