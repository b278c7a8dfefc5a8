"""Triton kernels for batch norm, shortcut and activation, over a matrix (place, channel): images with channels last.

Each way is two passes over memory: one for the sums, one for the values. Sums are added up in a fixed order, so that
the same input gives the same bits. Between the passes the order of the places is turned round: what was read last is
still in the cache.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.autograd.function import once_differentiable

__all__ = ["NormAct", "evaluated"]

VALUES = 4096  # that a program has in its registers at a time
# Programs that share the sums, and their warps; found by trying on an H200, which has 132 processors.
SUMMING = {"programs": 528, "num_warps": 8}
SUMMING_GRADIENTS = {"programs": 1056, "num_warps": 4}
AT_ONCE = tl.constexpr(256)  # sums that are added up at a time


class NormAct(torch.autograd.Function):
    """activation(norm(x) + shortcut) in training, with the gradients of x, weight, bias and shortcut, once."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weight: Tensor,
        bias: Tensor,
        shortcut: Tensor | None,
        running: tuple[Tensor, Tensor],
        momentum: float,
        epsilon: float,
        slope: float,
    ) -> Tensor:
        """Return the output; what the way back needs is kept."""
        with torch.cuda.device_of(x):  # Triton starts kernels on the current one
            output, mean, scale = _forward(x, weight, bias, shortcut, running, momentum, epsilon, slope)
        ctx.slope = slope
        ctx.save_for_backward(x, weight, bias, mean, scale, None if shortcut is None else output)
        return output

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        """Return the gradients of what `forward` was given."""
        x, weight, bias, mean, scale, output = ctx.saved_tensors
        gradient = gradient.contiguous(memory_format=torch.channels_last)
        with torch.cuda.device_of(x):
            of_x, of_weight, of_bias, behind = _backward(gradient, x, mean, scale, weight, bias, output, ctx.slope)
        return of_x, of_weight, of_bias, None if output is None else behind, None, None, None, None


def _forward(
    x: Tensor,
    weight: Tensor,
    bias: Tensor,
    shortcut: Tensor | None,
    running: tuple[Tensor, Tensor],
    momentum: float,
    epsilon: float,
    slope: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the output and the batch's mean and 1 / standard deviation by channel; move the running statistics."""
    n_rows, width = _shape(x)
    sums, grid, sizes = _sums(x, 3, **SUMMING)
    _summarise[grid](x, sums, n_rows, width, **sizes)
    mean, scale = x.new_empty(2, width, dtype=torch.float32)
    _moments[(width // 16,)](sums, mean, scale, *running, momentum, epsilon, n_rows, width, sums.shape[1], num_warps=8)
    return _normalised(x, mean, scale, weight, bias, shortcut, slope), mean, scale


def evaluated(
    x: Tensor,
    weight: Tensor,
    bias: Tensor,
    shortcut: Tensor | None,
    running: tuple[Tensor, Tensor],
    epsilon: float,
    slope: float,
) -> Tensor:
    """Return the output with the running statistics."""
    mean, variance = running
    with torch.cuda.device_of(x):
        return _normalised(x, mean, torch.rsqrt(variance + epsilon), weight, bias, shortcut, slope)


def _backward(
    gradient: Tensor,
    x: Tensor,
    mean: Tensor,
    scale: Tensor,
    weight: Tensor,
    bias: Tensor,
    output: Tensor | None,
    slope: float,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return the gradients of x, weight, bias and shortcut. `output`: only where there was a shortcut."""
    n_rows, width = _shape(x)
    behind = gradient  # the activation: what weight, bias, x and the shortcut see
    if output is not None and slope != 1:
        behind = torch.empty_like(x)
    sums, grid, sizes = _sums(x, 2, **SUMMING_GRADIENTS)
    _add_up_gradients[grid](
        gradient, x, mean, scale, weight, bias, output, behind, sums, n_rows, width,
        slope=slope, has_shortcut=output is not None, **sizes,
    )  # fmt: skip
    of_bias, of_weight = x.new_empty(2, width, dtype=torch.float32)
    _totals[(width // 16,)](sums, of_bias, of_weight, width, sums.shape[1], num_warps=8)
    of_x = torch.empty_like(x)
    _spread_gradients[_tiles(n_rows, width)](
        behind, x, mean, scale, weight, bias, of_weight, of_bias, of_x, n_rows, width,
        slope=slope if output is None else 1.0, **_sizes(width),
    )  # fmt: skip
    return of_x, of_weight, of_bias, behind


def _normalised(
    x: Tensor, mean: Tensor, scale: Tensor, weight: Tensor, bias: Tensor, shortcut: Tensor | None, slope: float
) -> Tensor:
    n_rows, width = _shape(x)
    output = torch.empty_like(x)
    _normalise[_tiles(n_rows, width)](
        x, mean, scale, weight, bias, shortcut, output, n_rows, width,
        slope=slope, has_shortcut=shortcut is not None, **_sizes(width),
    )  # fmt: skip
    return output


def _shape(x: Tensor) -> tuple[int, int]:
    width = x.shape[1]
    return x.numel() // width, width


def _sizes(width: int) -> dict[str, int]:
    """Return how many rows and channels a program takes at a time."""
    channels = next(size for size in (64, 32, 16) if width % size == 0)
    return {"rows": VALUES // channels, "channels": channels}


def _tiles(n_rows: int, width: int) -> tuple[int]:
    """Return how many programs it takes, if each takes its rows and channels once."""
    sizes = _sizes(width)
    return (width // sizes["channels"] * triton.cdiv(n_rows, sizes["rows"]),)


def _sums(x: Tensor, n_sums: int, programs: int, num_warps: int) -> tuple[Tensor, tuple[int, int], dict[str, int]]:
    """Return room for sums, (sum, program, channel), the programs by channels and rows, and their sizes."""
    n_rows, width = _shape(x)
    sizes = _sizes(width)
    n_columns = width // sizes["channels"]
    n_programs = min(triton.cdiv(n_rows, sizes["rows"]), triton.cdiv(programs, n_columns))
    sums = x.new_empty(n_sums, n_programs, width, dtype=torch.float32)
    return sums, (n_columns, n_programs), sizes | {"num_warps": num_warps}


@triton.jit
def _activated(values, before, slope: tl.constexpr):
    """Values where `before` is positive (or not a number), and `slope` of them elsewhere."""
    return tl.where(before <= 0, 0.0 if slope == 0.0 else values * slope, values)


@triton.jit
def _summarise(x, sums, n_rows, width, rows: tl.constexpr, channels: tl.constexpr):
    """Find the number, the mean and the squared deviations from it of a program's share of x.

    Values are seen from the mean of the share's first rows, so that a mean far from zero costs no digits.
    """
    channel = tl.program_id(0) * channels + tl.arange(0, channels)
    row = tl.arange(0, rows).to(tl.int64)
    begin = tl.program_id(1) * rows
    inside = (begin + row < n_rows)[:, None]
    values = tl.load(x + (begin + row)[:, None] * width + channel[None, :], mask=inside, other=0.0).to(tl.float32)
    origin = tl.sum(values, 0) / tl.minimum(n_rows - begin, rows).to(tl.float32)
    first = tl.zeros((rows, channels), tl.float32)
    second = tl.zeros((rows, channels), tl.float32)
    count = 0
    for start in range(begin, n_rows, tl.num_programs(1) * rows):
        inside = (start + row < n_rows)[:, None]
        places = (start + row)[:, None] * width + channel[None, :]
        values = tl.load(x + places, mask=inside, other=0.0).to(tl.float32) - origin[None, :]
        values = tl.where(inside, values, 0.0)
        first += values
        second += values * values
        count += tl.minimum(n_rows - start, rows)
    number = tl.zeros((channels,), tl.float32) + count
    offset = tl.sum(first, 0) / number
    at = tl.program_id(1) * width + channel
    size = tl.num_programs(1) * width
    tl.store(sums + at, number)
    tl.store(sums + size + at, origin + offset)
    tl.store(sums + 2 * size + at, tl.maximum(tl.sum(second, 0) - number * offset * offset, 0.0))


@triton.jit
def _moments(sums, mean, scale, running_mean, running_variance, momentum, epsilon, n_rows, width, n_programs):
    """Put the programs' shares together (Chan et al.), and move the running moments towards the batch's."""
    channel = tl.program_id(0) * 16 + tl.arange(0, 16)
    program = tl.arange(0, AT_ONCE)
    size = n_programs * width
    total = tl.zeros((AT_ONCE, 16), tl.float32)
    for start in range(0, n_programs, AT_ONCE):
        inside = (start + program < n_programs)[:, None]
        at = (start + program)[:, None] * width + channel[None, :]
        number = tl.load(sums + at, mask=inside, other=0.0)
        total += number * tl.load(sums + size + at, mask=inside, other=0.0)
    count = n_rows.to(tl.float32)
    centre = tl.sum(total, 0) / count
    squares = tl.zeros((AT_ONCE, 16), tl.float32)
    for start in range(0, n_programs, AT_ONCE):
        inside = (start + program < n_programs)[:, None]
        at = (start + program)[:, None] * width + channel[None, :]
        number = tl.load(sums + at, mask=inside, other=0.0)
        away = tl.load(sums + size + at, mask=inside, other=0.0) - centre[None, :]
        squares += tl.load(sums + 2 * size + at, mask=inside, other=0.0) + number * away * away
    variance = tl.sum(squares, 0) / count
    tl.store(mean + channel, centre)
    tl.store(scale + channel, 1.0 / tl.sqrt(variance + epsilon))
    before = tl.load(running_mean + channel)
    tl.store(running_mean + channel, before + momentum * (centre - before))
    before = tl.load(running_variance + channel)
    unbiased = variance * (count / (count - 1.0))
    tl.store(running_variance + channel, before + momentum * (unbiased - before))


@triton.jit
def _normalise(
    x, mean, scale, weight, bias, shortcut, output, n_rows, width,
    slope: tl.constexpr, has_shortcut: tl.constexpr, rows: tl.constexpr, channels: tl.constexpr,
):  # fmt: skip
    """activation((x − mean) · scale · weight + bias + shortcut)."""
    tile = tl.num_programs(0) - 1 - tl.program_id(0)
    channel = tile % (width // channels) * channels + tl.arange(0, channels)
    row = tl.arange(0, rows).to(tl.int64)
    start = tile // (width // channels) * rows
    inside = (start + row < n_rows)[:, None]
    places = (start + row)[:, None] * width + channel[None, :]
    factor = tl.load(scale + channel) * tl.load(weight + channel)
    centre = tl.load(mean + channel)
    offset = tl.load(bias + channel)
    values = (tl.load(x + places, mask=inside).to(tl.float32) - centre[None, :]) * factor[None, :] + offset[None, :]
    if has_shortcut:
        values += tl.load(shortcut + places, mask=inside).to(tl.float32)
    if slope != 1.0:
        values = _activated(values, values, slope)
    tl.store(output + places, values.to(output.dtype.element_ty), mask=inside)


@triton.jit
def _add_up_gradients(
    gradient, x, mean, scale, weight, bias, output, behind, sums, n_rows, width,
    slope: tl.constexpr, has_shortcut: tl.constexpr, rows: tl.constexpr, channels: tl.constexpr,
):  # fmt: skip
    """Sum a program's share of the gradient behind the activation, and of its product with normalised x."""
    channel = tl.program_id(0) * channels + tl.arange(0, channels)
    row = tl.arange(0, rows).to(tl.int64)
    centre = tl.load(mean + channel)
    length = tl.load(scale + channel)
    factor = length * tl.load(weight + channel)
    offset = tl.load(bias + channel)
    first = tl.zeros((rows, channels), tl.float32)
    second = tl.zeros((rows, channels), tl.float32)
    for start in range(tl.program_id(1) * rows, n_rows, tl.num_programs(1) * rows):
        inside = (start + row < n_rows)[:, None]
        places = (start + row)[:, None] * width + channel[None, :]
        values = tl.load(x + places, mask=inside, other=0.0).to(tl.float32) - centre[None, :]
        arriving = tl.load(gradient + places, mask=inside, other=0.0).to(tl.float32)
        if slope != 1.0:
            if has_shortcut:
                ahead = tl.load(output + places, mask=inside, other=0.0).to(tl.float32)
            else:
                ahead = values * factor[None, :] + offset[None, :]
            arriving = _activated(arriving, ahead, slope)
            if has_shortcut:
                tl.store(behind + places, arriving.to(behind.dtype.element_ty), mask=inside)
        first += arriving
        second += arriving * values
    at = tl.program_id(1) * width + channel
    tl.store(sums + at, tl.sum(first, 0))
    tl.store(sums + tl.num_programs(1) * width + at, tl.sum(second, 0) * length)


@triton.jit
def _totals(sums, of_bias, of_weight, width, n_programs):
    """Add the programs' sums up: the gradients of bias and weight."""
    channel = tl.program_id(0) * 16 + tl.arange(0, 16)
    program = tl.arange(0, AT_ONCE)
    first = tl.zeros((AT_ONCE, 16), tl.float32)
    second = tl.zeros((AT_ONCE, 16), tl.float32)
    for start in range(0, n_programs, AT_ONCE):
        inside = (start + program < n_programs)[:, None]
        at = (start + program)[:, None] * width + channel[None, :]
        first += tl.load(sums + at, mask=inside, other=0.0)
        second += tl.load(sums + n_programs * width + at, mask=inside, other=0.0)
    tl.store(of_bias + channel, tl.sum(first, 0))
    tl.store(of_weight + channel, tl.sum(second, 0))


@triton.jit
def _spread_gradients(
    gradient, x, mean, scale, weight, bias, of_weight, of_bias, of_x, n_rows, width,
    slope: tl.constexpr, rows: tl.constexpr, channels: tl.constexpr,
):  # fmt: skip
    """The gradient of x: what is behind the activation, without its mean and its part along normalised x."""
    tile = tl.num_programs(0) - 1 - tl.program_id(0)
    channel = tile % (width // channels) * channels + tl.arange(0, channels)
    row = tl.arange(0, rows).to(tl.int64)
    start = tile // (width // channels) * rows
    inside = (start + row < n_rows)[:, None]
    places = (start + row)[:, None] * width + channel[None, :]
    count = n_rows.to(tl.float32)
    centre = tl.load(mean + channel)
    length = tl.load(scale + channel)
    factor = length * tl.load(weight + channel)
    average = tl.load(of_bias + channel) / count
    along = tl.load(of_weight + channel) / count * length
    values = tl.load(x + places, mask=inside).to(tl.float32) - centre[None, :]
    arriving = tl.load(gradient + places, mask=inside).to(tl.float32)
    if slope != 1.0:
        offset = tl.load(bias + channel)
        arriving = _activated(arriving, values * factor[None, :] + offset[None, :], slope)
    values = factor[None, :] * (arriving - average[None, :] - values * along[None, :])
    tl.store(of_x + places, values.to(of_x.dtype.element_ty), mask=inside)
