"""Triton kernels for batch norm, shortcut and activation.

They work on a matrix (place, channel): images with channels last.

The forward and the backward pass each read memory twice: for the sums, then for the values. Sums
are added up in a fixed order, so the same input gives the same bits. The second time the places are
read in reverse order: those that were read last are still in the cache.
"""

from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from nearshot.models.kernels import triton_shared as shared
from nearshot.models.kernels.triton_shared import Line

# The values that a program keeps in its registers.
VALUES = 4096
# The warps of a program that takes one tile.
TILE_WARPS = 4
NO_LINE = (None, None, None, None)
Gradients = tuple[Tensor | None, Tensor | None, Tensor | None]


class Sharing(NamedTuple):
    """How many programs share the sums, and their warps."""

    programs: int
    num_warps: int


# Tuned on an H200, which has 132 processors.
SUMMING = Sharing(programs=528, num_warps=8)
SUMMING_GRADIENTS = Sharing(programs=1056, num_warps=4)
# With a shortcut or two gradients.
SUMMING_MORE = Sharing(programs=1056, num_warps=8)


class NormAct(torch.autograd.Function):
    """activation(norm(x) + shortcut), once differentiable in training.

    The shortcut may have a norm of its own. The output comes twice, for two uses (`two_uses`): the
    two gradients are added up while they are read.
    """

    @staticmethod
    def forward(
        ctx: Any,
        slope: float,
        norm: nn.BatchNorm2d,
        x: Tensor,
        weight: Tensor,
        bias: Tensor,
        shortcut: Tensor | None,
        past_norm: nn.BatchNorm2d | None,
        past_weight: Tensor | None,
        past_bias: Tensor | None,
    ) -> tuple[Tensor, Tensor]:
        """Return the output, twice, and keep what the backward pass needs.

        The weights and biases are those of the norms.
        """
        n_rows, width = _shape(x)
        with torch.cuda.device_of(x):  # Triton starts kernels on the current one
            line = _line_of(norm, x)
            past = None if past_norm is None or shortcut is None else _line_of(past_norm, shortcut)
            output = torch.empty_like(x)
            launch = shared.tiling(n_rows, width, rows=_rows(width))
            _normalise[launch.grid](
                x, *line, shortcut, *(past or NO_LINE), output, n_rows, width,
                slope=slope, has_shortcut=shortcut is not None, has_past=past is not None,
                rows=launch.rows, channels=launch.channels, num_warps=TILE_WARPS,
            )  # fmt: skip
        ctx.slope = slope
        kept = (None, *NO_LINE) if past is None else (shortcut, *past)
        ctx.save_for_backward(x, *line, *kept, None if shortcut is None else output)
        ctx.set_materialize_grads(False)
        return output, shared.second_output(output)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
        """Return the gradients of the arguments of `forward`."""
        x, *line, shortcut, mean, scale, weight, bias, output = ctx.saved_tensors
        gradient, again = shared.incoming_gradients(gradients)
        past = None if shortcut is None else Line(mean, scale, weight, bias)
        with torch.cuda.device_of(x):
            of_x, (of_shortcut, *of_past) = _backward(
                gradient, again, x, Line(*line), shortcut, past, output, ctx.slope
            )
        return None, None, *of_x, of_shortcut, None, *of_past


def _line_of(norm: nn.BatchNorm2d, x: Tensor) -> Line:
    """Return a norm with a batch's own statistics, or in evaluation with the running ones."""
    if not norm.training:
        return shared.running_line(norm)
    n_rows, width = _shape(x)
    launch = shared.sharing(n_rows, width, rows=_rows(width), programs=SUMMING.programs)
    sums = x.new_empty(3, launch.grid[1], width, dtype=torch.float32)
    _summarise[launch.grid](
        x, sums, n_rows, width,
        rows=launch.rows, channels=launch.channels, num_warps=SUMMING.num_warps,
    )  # fmt: skip
    return shared.batch_line(norm, sums, n_rows)


def _backward(
    gradient: Tensor,
    again: Tensor | None,
    x: Tensor,
    line: Line,
    shortcut: Tensor | None,
    past: Line | None,
    output: Tensor | None,
    slope: float,
) -> tuple[Gradients, Gradients]:
    """Return the gradients of x and of the shortcut, each with its norm's weight and bias.

    `shortcut`: only where it has a norm, whose line is `past`; `output`: only where there was a
    shortcut.
    """
    n_rows, width = _shape(x)
    keep = again is not None or output is not None
    # The gradient before the activation, for norm and shortcut.
    behind = torch.empty_like(x) if keep else gradient
    setting = SUMMING_MORE if keep else SUMMING_GRADIENTS
    launch = shared.sharing(n_rows, width, rows=_rows(width), programs=setting.programs)
    sums = x.new_empty(2 if past is None else 3, launch.grid[1], width, dtype=torch.float32)
    _add_up_gradients[launch.grid](
        gradient, again, x, *line, shortcut, *(past or NO_LINE), output, behind, sums,
        n_rows, width, slope=slope, twofold=again is not None, has_shortcut=output is not None,
        has_past=past is not None, keep=keep,
        rows=launch.rows, channels=launch.channels, num_warps=setting.num_warps,
    )  # fmt: skip
    totals = x.new_empty(sums.shape[0], width, dtype=torch.float32)
    _total[(width // 16, sums.shape[0])](sums, totals, width, sums.shape[1], num_warps=8)
    of_x = torch.empty_like(x)
    of_shortcut = None if past is None else torch.empty_like(x)
    launch = shared.tiling(n_rows, width, rows=_rows(width))
    _spread_gradients[launch.grid](
        behind, x, *line, shortcut, *(past or NO_LINE), totals, of_x, of_shortcut, n_rows, width,
        slope=1.0 if keep else slope, has_past=past is not None,
        rows=launch.rows, channels=launch.channels, num_warps=TILE_WARPS,
    )  # fmt: skip
    of_bias = totals[0]
    of_weight = totals[1]
    if past is not None:
        return (of_x, of_weight, of_bias), (of_shortcut, totals[2], of_bias)
    return (of_x, of_weight, of_bias), (None if output is None else behind, None, None)


def _shape(x: Tensor) -> tuple[int, int]:
    width = x.shape[1]
    return x.numel() // width, width


def _rows(width: int) -> int:
    return VALUES // shared.channels_of(width)


@triton.jit
def _rows_from(start, n_rows, width, channel, rows: tl.constexpr):
    """Return where the values of some rows and channels are, and which of the rows exist."""
    row = start + tl.arange(0, rows).to(tl.int64)
    return row[:, None] * width + channel[None, :], (row < n_rows)[:, None]


@triton.jit
def _own_tile(n_rows, width, rows: tl.constexpr, channels: tl.constexpr):
    """Return the channels, the places and the existing rows of a program's tile, from the end."""
    tile = tl.num_programs(0) - 1 - tl.program_id(0)
    channel = tile % (width // channels) * channels + tl.arange(0, channels)
    places, inside = _rows_from(tile // (width // channels) * rows, n_rows, width, channel, rows)
    return channel, places, inside


@triton.jit
def _summarise(x, sums, n_rows, width, rows: tl.constexpr, channels: tl.constexpr):
    """Find the number, the mean and the squared deviations from it of a program's share of x.

    Values are relative to the mean of the share's first rows, so that a mean far from zero costs no
    digits.
    """
    channel = tl.program_id(0) * channels + tl.arange(0, channels)
    begin = tl.program_id(1) * rows
    places, inside = _rows_from(begin, n_rows, width, channel, rows)
    values = tl.load(x + places, mask=inside, other=0.0).to(tl.float32)
    origin = tl.sum(values, 0) / tl.minimum(n_rows - begin, rows).to(tl.float32)
    first = tl.zeros((rows, channels), tl.float32)
    second = tl.zeros((rows, channels), tl.float32)
    count = 0
    for start in range(begin, n_rows, tl.num_programs(1) * rows):
        places, inside = _rows_from(start, n_rows, width, channel, rows)
        values = tl.load(x + places, mask=inside, other=0.0).to(tl.float32) - origin[None, :]
        values = tl.where(inside, values, 0.0)
        first += values
        second += values * values
        count += tl.minimum(n_rows - start, rows)
    number = tl.zeros((channels,), tl.float32) + count
    shared.store_share(sums, channel, width, number, origin, tl.sum(first, 0), tl.sum(second, 0))


@triton.jit
def _normalise(
    x, mean, scale, weight, bias, shortcut, past_mean, past_scale, past_weight, past_bias, output,
    n_rows, width,
    slope: tl.constexpr, has_shortcut: tl.constexpr, has_past: tl.constexpr,
    rows: tl.constexpr, channels: tl.constexpr,
):  # fmt: skip
    """activation((x − mean) · scale · weight + bias + shortcut); the shortcut may have a norm."""
    channel, places, inside = _own_tile(n_rows, width, rows, channels)
    centre, factor, offset, _ = shared.load_line(mean, scale, weight, bias, channel)
    values = (tl.load(x + places, mask=inside).to(tl.float32) - centre) * factor + offset
    if has_shortcut:
        added = tl.load(shortcut + places, mask=inside).to(tl.float32)
        if has_past:
            centre, factor, offset, _ = shared.load_line(
                past_mean, past_scale, past_weight, past_bias, channel
            )
            added = (added - centre) * factor + offset
        values += added
    values = shared.activated(values, values, slope)
    tl.store(output + places, values.to(output.dtype.element_ty), mask=inside)


@triton.jit
def _add_up_gradients(
    gradient, again, x, mean, scale, weight, bias,
    shortcut, past_mean, past_scale, past_weight, past_bias,
    output, behind, sums, n_rows, width,
    slope: tl.constexpr, twofold: tl.constexpr, has_shortcut: tl.constexpr,
    has_past: tl.constexpr, keep: tl.constexpr,
    rows: tl.constexpr, channels: tl.constexpr,
):  # fmt: skip
    """Sum a program's share of the gradient behind the activation, alone and times each input."""
    channel = tl.program_id(0) * channels + tl.arange(0, channels)
    centre, factor, offset, length = shared.load_line(mean, scale, weight, bias, channel)
    first = tl.zeros((rows, channels), tl.float32)
    second = tl.zeros((rows, channels), tl.float32)
    if has_past:
        past_centre, _, _, past_length = shared.load_line(
            past_mean, past_scale, past_weight, past_bias, channel
        )
        third = tl.zeros((rows, channels), tl.float32)
    for start in range(tl.program_id(1) * rows, n_rows, tl.num_programs(1) * rows):
        places, inside = _rows_from(start, n_rows, width, channel, rows)
        values = tl.load(x + places, mask=inside, other=0.0).to(tl.float32) - centre
        arriving = shared.load_arriving(gradient, again, places, inside, twofold)
        if has_shortcut:
            ahead = tl.load(output + places, mask=inside, other=0.0).to(tl.float32)
        else:
            ahead = values * factor + offset
        arriving = shared.activated(arriving, ahead, slope)
        if keep:
            tl.store(behind + places, arriving.to(behind.dtype.element_ty), mask=inside)
        first += arriving
        second += arriving * values
        if has_past:
            third += arriving * (
                tl.load(shortcut + places, mask=inside, other=0.0).to(tl.float32) - past_centre
            )
    at = tl.program_id(1) * width + channel
    size = tl.num_programs(1) * width
    tl.store(sums + at, tl.sum(first, 0))
    tl.store(sums + size + at[None, :], tl.sum(second, 0)[None, :] * length)
    if has_past:
        tl.store(sums + 2 * size + at[None, :], tl.sum(third, 0)[None, :] * past_length)


@triton.jit
def _total(sums, totals, width, n_programs):
    """Add the programs' sums up: the gradients of bias and weights."""
    channel = tl.program_id(0) * 16 + tl.arange(0, 16)
    program = tl.arange(0, shared.AT_ONCE)
    own = sums + tl.program_id(1) * n_programs * width
    total = tl.zeros((shared.AT_ONCE, 16), tl.float32)
    for start in range(0, n_programs, shared.AT_ONCE):
        inside = (start + program < n_programs)[:, None]
        total += tl.load(
            own + (start + program)[:, None] * width + channel[None, :], mask=inside, other=0.0
        )
    tl.store(totals + tl.program_id(1) * width + channel, tl.sum(total, 0))


@triton.jit
def _spread_gradients(
    gradient, x, mean, scale, weight, bias,
    shortcut, past_mean, past_scale, past_weight, past_bias,
    totals, of_x, of_shortcut, n_rows, width,
    slope: tl.constexpr, has_past: tl.constexpr, rows: tl.constexpr, channels: tl.constexpr,
):  # fmt: skip
    """The gradient of x: what is behind the activation, without its mean and its part along x."""
    channel, places, inside = _own_tile(n_rows, width, rows, channels)
    count = n_rows.to(tl.float32)
    centre, factor, offset, length = shared.load_line(mean, scale, weight, bias, channel)
    values = tl.load(x + places, mask=inside).to(tl.float32) - centre
    arriving = tl.load(gradient + places, mask=inside).to(tl.float32)
    if slope != 1.0:
        arriving = shared.activated(arriving, values * factor + offset, slope)
    arriving -= tl.load(totals + channel)[None, :] / count
    along = tl.load(totals + width + channel)[None, :] / count * length
    values = factor * (arriving - values * along)
    tl.store(of_x + places, values.to(of_x.dtype.element_ty), mask=inside)
    if has_past:
        centre, factor, offset, length = shared.load_line(
            past_mean, past_scale, past_weight, past_bias, channel
        )
        along = tl.load(totals + 2 * width + channel)[None, :] / count * length
        values = factor * (
            arriving - (tl.load(shortcut + places, mask=inside).to(tl.float32) - centre) * along
        )
        tl.store(of_shortcut + places, values.to(of_shortcut.dtype.element_ty), mask=inside)
