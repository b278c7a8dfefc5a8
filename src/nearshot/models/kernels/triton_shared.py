"""Parts of all kernels: launches, batch norm as a line, two outputs and their gradients."""

from typing import NamedTuple, cast

import torch
import triton
import triton.language as tl
from torch import Tensor, nn

AT_ONCE = tl.constexpr(256)  # sums that are added up at a time


class Setting(NamedTuple):
    """How a kernel is launched: rows of a tile, warps, and programs that share all rows."""

    rows: int
    num_warps: int
    programs: int


class Launch(NamedTuple):
    """The grid of a launch, and the rows and channels of a tile."""

    grid: tuple[int, ...]
    rows: int
    channels: int


class Line(NamedTuple):
    """Batch norm of a channel, as a line: (x − mean) · scale · weight + bias."""

    mean: Tensor
    scale: Tensor  # 1 / standard deviation
    weight: Tensor
    bias: Tensor


def second_output(output: Tensor) -> Tensor:
    """Return a tensor over the same memory that autograd does not treat as a view."""
    return output.new_empty(0).set_(output)  # type: ignore[call-overload,no-any-return]


def incoming_gradients(gradients: tuple[Tensor | None, ...]) -> tuple[Tensor, Tensor | None]:
    """Return the gradients of both outputs, channels last.

    If an output is not used, its gradient is missing, and None comes second.
    """
    given = [gradient for gradient in gradients if gradient is not None]
    first = given[0].contiguous(memory_format=torch.channels_last)
    if len(given) == 1:
        return first, None
    return first, given[1].contiguous(memory_format=torch.channels_last)


def channels_of(width: int) -> int:
    """Return how many channels a program takes at a time."""
    return next(size for size in (64, 32, 16) if width % size == 0)


def sharing(n_rows: int, width: int, *, rows: int, programs: int) -> Launch:
    """Return the launch, by channels and by rows, in which about `programs` share all rows."""
    channels = channels_of(width)
    n_columns = width // channels
    n_shares = min(triton.cdiv(n_rows, rows), triton.cdiv(programs, n_columns))
    return Launch((n_columns, n_shares), rows, channels)


def tiling(n_rows: int, width: int, *, rows: int) -> Launch:
    """Return the launch in which each program takes its rows and channels once."""
    channels = channels_of(width)
    n_tiles = width // channels * triton.cdiv(n_rows, rows)
    return Launch((n_tiles,), rows, channels)


def running_line(norm: nn.BatchNorm2d) -> Line:
    """Return a norm with its running statistics."""
    mean = cast(Tensor, norm.running_mean)
    variance = cast(Tensor, norm.running_var)
    return Line(mean, torch.rsqrt(variance + norm.eps), norm.weight, norm.bias)


def batch_line(norm: nn.BatchNorm2d, sums: Tensor, n_rows: int) -> Line:
    """Return the norm of a batch, and update the running statistics.

    `sums` are the programs' counts, means and squared deviations, (3, program, channel).
    """
    norm.num_batches_tracked.add_(1)  # type: ignore[union-attr]
    _, n_programs, width = sums.shape
    mean, scale = sums.new_empty(2, width)
    _moments[(width // 16,)](
        sums, mean, scale, norm.running_mean, norm.running_var, norm.momentum, norm.eps,
        n_rows, width, n_programs, num_warps=8,
    )  # fmt: skip
    return Line(mean, scale, norm.weight, norm.bias)


@triton.jit
def activated(values, before, slope: tl.constexpr):
    """Values where `before` is positive (or not a number), and `slope` of them elsewhere."""
    return tl.where(before <= 0, 0.0 if slope == 0.0 else values * slope, values)


@triton.jit
def load_arriving(gradient, again, places, inside, twofold: tl.constexpr):
    """Return the gradient at some places, or the sum of the two of them."""
    arriving = tl.load(gradient + places, mask=inside, other=0.0).to(tl.float32)
    if twofold:
        arriving += tl.load(again + places, mask=inside, other=0.0).to(tl.float32)
    return arriving


@triton.jit
def store_share(sums, channel, width, number, origin, first, second):
    """Store the number, the mean and the squared deviations of a program's share.

    `first` and `second` are the sums of the values and of their squares, seen from `origin`.
    """
    offset = first / number
    at = tl.program_id(1) * width + channel
    size = tl.num_programs(1) * width
    tl.store(sums + at, number)
    tl.store(sums + size + at, origin + offset)
    tl.store(sums + 2 * size + at, tl.maximum(second - number * offset * offset, 0.0))


@triton.jit
def load_line(mean, scale, weight, bias, channel):
    """Return batch norm's line as (x − centre) · factor + offset, and 1 / standard deviation."""
    length = tl.load(scale + channel)[None, :]
    factor = length * tl.load(weight + channel)[None, :]
    return tl.load(mean + channel)[None, :], factor, tl.load(bias + channel)[None, :], length


@triton.jit
def _moments(
    sums, mean, scale, running_mean, running_variance, momentum, epsilon, n_rows, width, n_programs
):
    """Put the programs' shares together (Chan et al.), and move the running moments."""
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
