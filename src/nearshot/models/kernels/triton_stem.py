"""Triton kernels for a 3×3 convolution of images with batch norm and ReLU.

The convolution is never written to memory.

A place's patch, the 3×3 pixels around it, is a row of 27 numbers, and the convolution is its
product x = p·w with the weights, (27, channel). Patches are gathered from the images wherever x is
needed: for its moments, for the output, and in the backward pass.

The backward pass reads memory once. With G the gradient after the activation, batch norm's gradient
of x is

    dX = factor · (G − ΣG / n − x̂ · Σ(G·x̂) / n),    x̂ = (x − mean) · scale,

and the weights' gradient is PᵀdX. Both follow from sums over the places: PᵀP, from the forward
pass, and GᵀP, with the sums of G and of p, for which a patch ends in a one. So one pass over the
gradient adds up GᵀP, and the rest is algebra with small matrices.
"""

from typing import Any

import torch
import torch.nn.functional as F
import triton
import triton.language as tl
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from nearshot.models.kernels import triton_shared as shared
from nearshot.models.kernels.triton_shared import Line, Setting

# Places of a tile, warps, and programs that share the places: as many as fit an H200's 132
# processors at once. None of the others that were tried there saves 0.1 ms of a step of 30 ms.
SUMMING = Setting(rows=32, programs=792, num_warps=4)
BACKWARD = Setting(rows=32, programs=660, num_warps=4)
BACKWARD_STAGES = 2  # three would fill a small card
NORMALISING_ROWS = 64
NORMALISING_WARPS = 4
# Where a patch has its one; behind it are zeros up to 32.
ONE = tl.constexpr(27)


class ConvNormAct(torch.autograd.Function):
    """relu(norm(conv(images))), once differentiable in training.

    The output comes twice, as that of `NormAct` does.
    """

    @staticmethod
    def forward(
        ctx: Any, norm: nn.BatchNorm2d, images: Tensor, kernel: Tensor, weight: Tensor, bias: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Return the output, twice; only the moments are kept for the backward pass.

        Weight and bias are those of the norm.
        """
        n_images, _, *sides = images.shape
        with torch.cuda.device_of(images):
            # (channel, 3, row, column) as (32, channel): by row, then column, then colour, then
            # zeros
            matrix = kernel.permute(2, 3, 1, 0).reshape(ONE.value, -1)
            matrix = F.pad(matrix, (0, 0, 0, 32 - ONE.value)).to(images.dtype).contiguous()
            n_places = images.numel() // 3
            width = matrix.shape[1]
            line, squares = _line_of(norm, images, matrix)
            output = images.new_empty(n_images, *sides, width).permute(0, 3, 1, 2)  # channels last
            launch = shared.tiling(n_places, width, rows=NORMALISING_ROWS)
            _normalise_convolution[launch.grid](
                images, matrix, *line, output, n_places, *sides, width,
                rows=launch.rows, channels=launch.channels, num_warps=NORMALISING_WARPS,
            )  # fmt: skip
        ctx.save_for_backward(images, matrix, squares, *line)
        ctx.set_materialize_grads(False)
        return output, shared.second_output(output)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
        """Return the gradients of the arguments of `forward`; the images have none."""
        images, matrix, squares, *line = ctx.saved_tensors
        with torch.cuda.device_of(images):
            gradient, again = shared.incoming_gradients(gradients)
            of_kernel, of_weight, of_bias = _backward(
                gradient, again, images, matrix, squares, Line(*line)
            )
            return None, None, of_kernel, of_weight, of_bias


def _line_of(norm: nn.BatchNorm2d, images: Tensor, matrix: Tensor) -> tuple[Line, Tensor | None]:
    """Return the norm with the batch's own statistics, and PᵀP by program.

    In evaluation, return the norm with the running statistics.
    """
    if not norm.training:
        return shared.running_line(norm), None
    n_places = images.numel() // 3
    width = matrix.shape[1]
    launch = shared.sharing(n_places, width, rows=SUMMING.rows, programs=SUMMING.programs)
    n_shares = launch.grid[1]
    sums = images.new_empty(3, n_shares, width, dtype=torch.float32)
    squares = images.new_empty(n_shares, 32, 32, dtype=torch.float32)
    _summarise_convolution[launch.grid](
        images, matrix, sums, squares, n_places, *images.shape[2:], width,
        rows=launch.rows, channels=launch.channels, num_warps=SUMMING.num_warps,
    )  # fmt: skip
    return shared.batch_line(norm, sums, n_places), squares


def _backward(
    gradient: Tensor,
    again: Tensor | None,
    images: Tensor,
    matrix: Tensor,
    squares: Tensor,
    line: Line,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the gradients of kernel, weight and bias."""
    n_places = images.numel() // 3
    width = matrix.shape[1]
    launch = shared.sharing(n_places, width, rows=BACKWARD.rows, programs=BACKWARD.programs)
    products = images.new_empty(launch.grid[1], width, 32, dtype=torch.float32)
    _add_up_products[launch.grid](
        gradient, again, images, matrix, *line, products, n_places, *images.shape[2:], width,
        twofold=again is not None, rows=launch.rows, channels=launch.channels,
        num_warps=BACKWARD.num_warps, num_stages=BACKWARD_STAGES,
    )  # fmt: skip
    mean, scale, weight, _ = line
    with torch.autocast(images.device.type, enabled=False):
        along = products.sum(0, dtype=torch.float64).mT  # PᵀG, (32, channel)
        gram = squares.sum(0, dtype=torch.float64)  # PᵀP, (32, 32)
        patches = gram[:, ONE.value, None]  # Pᵀ1, (32, 1)
        weights = matrix.double()  # (32, channel)
        of_bias = along[ONE.value]  # ΣG
        of_weight = ((along * weights).sum(0) - mean * of_bias) * scale  # Σ(G·x̂)
        with_x = (gram @ weights - patches * mean) * scale  # Pᵀx̂
        mean_part = patches * (of_bias / n_places)
        x_part = with_x * (of_weight / n_places)
        of_matrix = scale * weight * (along - mean_part - x_part)
    of_kernel = of_matrix[: ONE.value].view(3, 3, 3, width).permute(3, 2, 0, 1)
    return of_kernel.float(), of_weight.float(), of_bias.float()


@triton.jit
def _parts(entry):
    """Return an entry's row and column, counted from a patch's first pixel, and its colour.

    It compares instead of dividing: divisions of small numbers are compiled to 16 bits, two in a
    register, and gave wrong results with Triton 3.6 on an H200, although the PTX was right.
    """
    down = tl.where(entry < 9, 0, tl.where(entry < 18, 1, 2))
    rest = entry - 9 * down
    across = tl.where(rest < 3, 0, tl.where(rest < 6, 1, 2))
    return down, across, rest - 3 * across


@triton.jit
def _patches(images, start, n_places, height, width, rows: tl.constexpr):
    """Return the patches of the places from `start` on, (place, 32), with zeros outside images."""
    entry = tl.arange(0, 32)
    down, across, colour = _parts(entry)
    local = tl.arange(0, rows)
    place = (start % (height * width)).to(tl.int32) + local  # in this image, or in one of the next
    y = (place // width % height)[:, None] + down[None, :] - 1
    x = (place % width)[:, None] + across[None, :] - 1
    there = (start + local < n_places)[:, None]
    inside = there & (entry < ONE)[None, :] & (y >= 0) & (y < height) & (x >= 0) & (x < width)
    offsets = local[:, None] * 3 + ((down * width + across) * 3 + colour)[None, :]
    pixels = tl.load(images + (start - width - 1) * 3 + offsets, mask=inside, other=0.0)
    return tl.where(there & (entry == ONE)[None, :], 1.0, pixels.to(tl.float32)).to(
        images.dtype.element_ty
    )


@triton.jit
def _weights(matrix, channel, n_channels):
    """Return the weights of some channels, (32, channel)."""
    return tl.load(matrix + tl.arange(0, 32)[:, None] * n_channels + channel[None, :])


@triton.jit
def _summarise_convolution(
    images, matrix, sums, squares, n_places, height, width, n_channels,
    rows: tl.constexpr, channels: tl.constexpr,
):  # fmt: skip
    """Find PᵀP, the number, the mean and the squared deviations of a program's share of x."""
    channel = tl.program_id(0) * channels + tl.arange(0, channels)
    weights = _weights(matrix, channel, n_channels)
    local = tl.arange(0, rows)
    begin = tl.program_id(1).to(tl.int64) * rows
    patches = _patches(images, begin, n_places, height, width, rows)
    number = tl.minimum(n_places - begin, rows).to(tl.float32)
    origin = tl.sum(tl.dot(patches, weights, input_precision="ieee"), 0) / number
    first = tl.zeros((channels,), tl.float32)
    second = tl.zeros((channels,), tl.float32)
    count = tl.zeros((channels,), tl.float32)
    square = tl.zeros((32, 32), tl.float32)
    for start in range(begin, n_places, tl.num_programs(1) * rows):
        patches = _patches(images, start, n_places, height, width, rows)
        square = tl.dot(tl.trans(patches), patches, square, input_precision="ieee")
        values = tl.dot(patches, weights, input_precision="ieee") - origin[None, :]
        values = tl.where((start + local < n_places)[:, None], values, 0.0)
        first += tl.sum(values, 0)
        second += tl.sum(values * values, 0)
        count += tl.minimum(n_places - start, rows).to(tl.float32)
    shared.store_share(sums, channel, n_channels, count, origin, first, second)
    if tl.program_id(0) == 0:
        entry = tl.arange(0, 32)
        tl.store(squares + tl.program_id(1) * 1024 + entry[:, None] * 32 + entry[None, :], square)


@triton.jit
def _normalise_convolution(
    images, matrix, mean, scale, weight, bias, output, n_places, height, width, n_channels,
    rows: tl.constexpr, channels: tl.constexpr,
):  # fmt: skip
    """relu((x − mean) · scale · weight + bias)."""
    tile = tl.program_id(0)
    channel = tile % (n_channels // channels) * channels + tl.arange(0, channels)
    start = (tile // (n_channels // channels)).to(tl.int64) * rows
    patches = _patches(images, start, n_places, height, width, rows)
    x = tl.dot(patches, _weights(matrix, channel, n_channels), input_precision="ieee")
    centre, factor, offset, _ = shared.load_line(mean, scale, weight, bias, channel)
    values = (x - centre) * factor + offset
    values = shared.activated(values, values, 0.0)
    place = start + tl.arange(0, rows)
    places = place[:, None] * n_channels + channel[None, :]
    tl.store(output + places, values.to(output.dtype.element_ty), mask=(place < n_places)[:, None])


@triton.jit
def _add_up_products(
    gradient, again, images, matrix, mean, scale, weight, bias, products,
    n_places, height, width, n_channels,
    twofold: tl.constexpr, rows: tl.constexpr, channels: tl.constexpr,
):  # fmt: skip
    """Add up a program's share of GᵀP."""
    channel = tl.program_id(0) * channels + tl.arange(0, channels)
    weights = _weights(matrix, channel, n_channels)
    centre, factor, offset, _ = shared.load_line(mean, scale, weight, bias, channel)
    local = tl.arange(0, rows)
    product = tl.zeros((channels, 32), tl.float32)
    for start in range(tl.program_id(1).to(tl.int64) * rows, n_places, tl.num_programs(1) * rows):
        patches = _patches(images, start, n_places, height, width, rows)
        ahead = (tl.dot(patches, weights, input_precision="ieee") - centre) * factor + offset
        inside = (start + local < n_places)[:, None]
        places = (start + local)[:, None] * n_channels + channel[None, :]
        arriving = shared.activated(
            shared.load_arriving(gradient, again, places, inside, twofold), ahead, 0.0
        )
        product = tl.dot(
            tl.trans(arriving.to(patches.dtype)), patches, product, input_precision="ieee"
        )
    at = (tl.program_id(1) * n_channels + channel)[:, None] * 32
    tl.store(products + at + tl.arange(0, 32)[None, :], product)
