"""Augmentation of a whole batch at once, on the device where it will be used.

Each image draws its own crop, flip and colours; one `grid_sample` cuts, resizes and flips all
crops. The distribution of the random resized crop is torchvision's: an area drawn uniformly from
`scale`, a ratio drawn log-uniformly from `ratio`, up to ten tries to fit it, else the largest
centred crop that the ratio's bounds allow. In evaluation, an image is seen at its centre, or as
several views whose embeddings are averaged.

Nothing here is copied from the host or waits for the device, so that an accelerator can run it in a
captured graph: numbers enter as scalars of an operation, never as a tensor made from a list.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from nearshot.checks import is_integer
from nearshot.data.operations import ENHANCEMENTS, apply_operations
from nearshot.errors import InputError

__all__ = [
    "Augmentation",
    "augment",
    "centre_crop",
    "normalise_images",
    "shift_hue",
    "turn_images",
    "view_of",
]

CROPS = ("random", "centre", "padded", "padded-random")
TRIES = 10
# The least share of the area that a view shows.
SMALLEST_CROP = 0.5


@dataclass(frozen=True)
class Augmentation:
    """What may happen to a training image.

    Attributes:
        crop: "random" for a random resized crop, "centre" for the centre, "padded" for a random
            crop of the image's own size, after a black border was put around it, and
            "padded-random" for a random resized crop of the image with that border. Of an image
            that is not square, centre and padded crops have its shorter side.
        scale: the range of a random crop's share of the image's area.
        ratio: the range of a random crop's width over its height.
        flip: the probability of a horizontal flip; 0 where left and right mean something, as in
            writing.
        brightness: by how much brightness may vary: its factor is drawn from [1 − b, 1 + b].
        contrast: the same for contrast.
        saturation: the same for saturation.
        hue: by how much of the circle of hues they may be turned: drawn from [−h, h], where 0.5 is
            half of it.
        padding: for padded crops, the width of the border in pixels of the prepared image.
        n_operations: how many of RandAugment's operations each image gets, before its colours vary;
            0 for none.
        magnitude: the largest strength of these operations, as a fraction of RandAugment's largest.
    """

    crop: str = "random"
    scale: tuple[float, float] = (0.08, 1.0)
    ratio: tuple[float, float] = (3 / 4, 4 / 3)
    flip: float = 0.5
    brightness: float = 0.0
    contrast: float = 0.0
    saturation: float = 0.0
    hue: float = 0.0
    padding: int = 8
    n_operations: int = 0
    magnitude: float = 0.3

    def __post_init__(self) -> None:
        if self.crop not in CROPS:
            raise InputError(f"crop must be one of {', '.join(CROPS)}, not {self.crop!r}.")
        if not 0 < self.scale[0] <= self.scale[1] <= 1:
            raise InputError(f"scale must be a range inside (0, 1], not {self.scale}.")
        if not 0 < self.ratio[0] <= self.ratio[1]:
            raise InputError(f"ratio must be a range of positive numbers, not {self.ratio}.")
        _check_range("flip", self.flip, 1)
        _check_range("brightness", self.brightness, 1)
        _check_range("contrast", self.contrast, 1)
        _check_range("saturation", self.saturation, 1)
        _check_range("hue", self.hue, 0.5)
        _check_range("magnitude", self.magnitude, 1)
        _check_number("padding", self.padding)
        _check_number("n_operations", self.n_operations)


def _check_range(name: str, value: float, largest: float) -> None:
    if not 0 <= value <= largest:
        raise InputError(f"{name} must be between 0 and {largest}, not {value}.")


def _check_number(name: str, value: Any) -> None:
    if not is_integer(value) or value < 0:
        raise InputError(f"{name} must be a whole number of at least 0, not {value!r}.")


def augment(
    images: Tensor,
    augmentation: Augmentation,
    *,
    size: int,
    generator: torch.Generator | None = None,
    share: tuple[int, int] = (0, 1),
) -> Tensor:
    """Augment a batch: (image, height, width, 3) uint8 to (image, 3, size, size) in [0, 1].

    The result is float32 with channels last in memory.

    Args:
        images: a batch of a store, on any device.
        augmentation: what may happen.
        size: the side of the result; a 32×32 image can become 84×84 directly.
        generator: the random-number generator, on the images' device; the same state gives the same
            batch.
        share: (2, 4) means that the images are the third of four equal shares of a batch. Random
            numbers are drawn for the whole batch, so that the shares together are augmented as the
            batch would be.
    """
    if images.ndim != 4 or images.shape[3] != 3 or images.dtype != torch.uint8:
        raise InputError(
            "images must be uint8 (image, height, width, 3), as a store has them, not "
            f"{images.dtype} {tuple(images.shape)}."
        )
    n_images, height, width = images.shape[:3]
    number, n_shares = share

    def draw(*shape: int) -> Tensor:
        """Return uniform numbers in [0, 1), (image, *shape): a slice of the whole batch's."""
        drawn = torch.rand(
            n_shares * n_images,
            *shape,
            dtype=torch.float32,
            device=images.device,
            generator=generator,
        )
        return drawn[number * n_images : (number + 1) * n_images]

    # (image, 3, height, width), channels last in memory as in the store: only the type is copied.
    planes = images.permute(0, 3, 1, 2).float().div_(255)
    crop = augmentation.crop
    side = min(height, width)
    is_centred_on_pixels = (height - width) % 2 == 0
    if crop == "centre" and augmentation.flip == 0 and size == side and is_centred_on_pixels:
        # No resizing needed.
        top = (height - side) // 2
        left = (width - side) // 2
        result = planes[:, :, top : top + side, left : left + side]
    else:
        longest = None
        if crop in ("padded", "padded-random"):
            planes = F.pad(planes, (augmentation.padding,) * 4)
        if crop in ("random", "padded-random"):
            padded_height, padded_width = planes.shape[2:]
            boxes = random_boxes(padded_height, padded_width, height * width, augmentation, draw)
        elif crop == "padded":
            room = _constant((planes.shape[2] - side + 1, planes.shape[3] - side + 1), planes)
            corners = (draw(2) * room).floor()  # (image, 2): top and left
            boxes = F.pad(corners, (0, 2), value=side)
            longest = side
        else:
            box = _constant(((height - side) / 2, (width - side) / 2, side, side), planes)
            boxes = box.expand(n_images, 4)
        flips = draw(1)[:, 0] < augmentation.flip
        result = cut(planes, boxes, flips, size, longest=longest)
    result = _vary_colours(result, augmentation, draw)
    return result.contiguous(memory_format=torch.channels_last)


def random_boxes(
    height: int, width: int, area: int, augmentation: Augmentation, draw: Callable[..., Tensor]
) -> Tensor:
    """Draw crops as (top, left, height, width) in whole pixels, (box, 4).

    Args:
        height: the height of the image, with its border.
        width: the width, likewise.
        area: the area of the image without its border; the crops' sizes are shares of it.
        augmentation: the ranges of the scale and of the ratio.
        draw: a function of a shape that returns uniform numbers in [0, 1), (box, *shape).
    """
    area_draws, ratio_draws, top_draws, left_draws = draw(4, TRIES).unbind(1)  # (box, try) each
    smallest, largest = augmentation.scale
    areas = area * (smallest + (largest - smallest) * area_draws)
    lowest_ratio, highest_ratio = augmentation.ratio
    log_lowest = math.log(lowest_ratio)
    log_highest = math.log(highest_ratio)
    ratios = torch.exp(log_lowest + (log_highest - log_lowest) * ratio_draws)
    widths = (areas * ratios).sqrt().round()
    heights = (areas / ratios).sqrt().round()
    fits = (widths > 0) & (widths <= width) & (heights > 0) & (heights <= height)
    first = fits.int().argmax(1, keepdim=True)  # the first try that fits
    # Where none fits: the largest centred crop within the bounds of the ratio.
    none_fits = ~fits.any(1)
    most_width = width
    most_height = height
    if width / height > highest_ratio:
        most_width = min(width, round(height * highest_ratio))
    if width / height < lowest_ratio:
        most_height = min(height, round(width / lowest_ratio))
    box_width = widths.gather(1, first)[:, 0].masked_fill(none_fits, most_width)
    box_height = heights.gather(1, first)[:, 0].masked_fill(none_fits, most_height)
    random_top = (top_draws[:, 0] * (height - box_height + 1)).floor()
    random_left = (left_draws[:, 0] * (width - box_width + 1)).floor()
    top = torch.where(none_fits, (height - box_height) // 2, random_top)
    left = torch.where(none_fits, (width - box_width) // 2, random_left)
    return torch.stack([top, left, box_height, box_width], dim=1)


def cut(
    planes: Tensor, boxes: Tensor, flips: Tensor, size: int, *, longest: int | None = None
) -> Tensor:
    """Cut a box out of each image, resize it bilinearly, and mirror it where `flips` says.

    Each pixel is interpolated between four; where a box may be larger than `size`, and shrink, it
    is averaged over all pixels that it covers, as Pillow does.

    Args:
        planes: (image, 3, height, width).
        boxes: (image, 4) as (top, left, height, width).
        flips: (image,) booleans.
        size: the side of the result, (image, 3, size, size).
        longest: the longest side of a box; by default the image's.
    """
    height, width = planes.shape[2:]
    if longest is None:
        longest = max(height, width)
    top, left, box_height, box_width = boxes.to(planes.dtype).split(1, dim=1)
    # Where the pixels of the result lie in the box, in [0, 1], and in the image, (image, size).
    centres = (torch.arange(size, device=planes.device, dtype=planes.dtype) + 0.5) / size
    y = top + centres * box_height
    x = left + torch.where(flips[:, None], 1 - centres, centres) * box_width
    if longest > size:
        with torch.autocast(planes.device.type, enabled=False):
            down = _weights(y, top, box_height, height)[:, None]  # (image, 1, size, height)
            across = _weights(x, left, box_width, width)[:, None].mT  # (image, 1, width, size)
            return down @ (planes @ across)
    # Never beyond the centres of the box's own border pixels, since the crop is cut before it is
    # resized.
    x = x.clamp(left + 0.5, left + box_width - 0.5)
    y = y.clamp(top + 0.5, top + box_height - 0.5)
    across = (2 * x / width - 1)[:, None, :]
    down = (2 * y / height - 1)[:, :, None]
    grid = torch.stack(torch.broadcast_tensors(across, down), dim=3)  # (image, size, size, 2)
    return F.grid_sample(planes, grid, mode="bilinear", padding_mode="border", align_corners=False)


def _weights(positions: Tensor, begin: Tensor, length: Tensor, n_pixels: int) -> Tensor:
    """Return Pillow's bilinear filter: a tent as wide as a pixel of the result, or of the image.

    `positions`: (image, position) between `begin` and `begin + length` (image, 1). Returns
    (image, position, pixel).
    """
    centres = torch.arange(n_pixels, device=positions.device, dtype=positions.dtype) + 0.5
    reach = (length / positions.shape[1]).clamp(min=1.0)
    tent = 1 - (centres - positions[:, :, None]).abs() / reach[:, :, None]
    inside = (centres > begin) & (centres < begin + length)  # (image, pixel)
    tent = tent.clamp(min=0.0) * inside[:, None, :]
    return tent / tent.sum(2, keepdim=True)


def centre_crop(images: Tensor, size: int) -> Tensor:
    """Return the centre of each image, resized, as evaluation sees it.

    (image, height, width, 3) uint8 to (image, 3, size, size) in [0, 1].
    """
    return augment(images, Augmentation(crop="centre", flip=0.0), size=size)


def view_of(images: Tensor, number: int, size: int) -> Tensor:
    """Return a view of each image: (image, height, width, 3) uint8 to (image, 3, size, size).

    View 0 is the centre, and view 1 its mirror image. All others are square crops of that centre,
    every second one mirrored. Their areas and places are a Halton sequence, which covers all of
    them evenly, the same for all images.
    """
    if number == 0:
        return centre_crop(images, size)
    top, left, side, is_mirrored = view_box(number)
    height, width = images.shape[1:3]
    shorter = min(height, width)
    y = (height - shorter) / 2 + top * shorter
    x = (width - shorter) / 2 + left * shorter
    box = torch.tensor([y, x, side * shorter, side * shorter], device=images.device)
    boxes = box.expand(len(images), 4)
    flips = torch.full((len(images),), is_mirrored, device=images.device)
    planes = images.permute(0, 3, 1, 2).float().div_(255)
    return cut(planes, boxes, flips, size)


def view_box(number: int) -> tuple[float, float, float, bool]:
    """Return the top, left and side of a view's square, in fractions, and whether it is mirrored.

    >>> view_box(0), view_box(1)
    ((0.0, 0.0, 1.0, False), (0.0, 0.0, 1.0, True))
    """
    is_mirrored = number % 2 == 1
    if number < 2:
        return 0.0, 0.0, 1.0, is_mirrored
    area = SMALLEST_CROP + (1 - SMALLEST_CROP) * _radical_inverse(number - 1, 2)
    side = math.sqrt(area)
    top = _radical_inverse(number - 1, 3) * (1 - side)
    left = _radical_inverse(number - 1, 5) * (1 - side)
    return top, left, side, is_mirrored


def _radical_inverse(number: int, base: int) -> float:
    """Return the digits of a number mirrored at the point.

    >>> _radical_inverse(6, base=2)  # 110 gives 0.011
    0.375
    """
    inverse = 0.0
    weight = 1 / base
    while number:
        number, digit = divmod(number, base)
        inverse += digit * weight
        weight /= base
    return inverse


def normalise_images(images: Tensor, mean: tuple[float, ...], std: tuple[float, ...]) -> Tensor:
    """Subtract a mean and divide by a standard deviation, channel by channel."""
    means = _constant(mean, images).view(1, 3, 1, 1)
    stds = _constant(std, images).view(1, 3, 1, 1)
    return (images - means).div_(stds)


def turn_images(images: Tensor, turns: Tensor) -> Tensor:
    """Turn each square image by some quarters of a full turn, counter-clockwise.

    `images`: (image, 3, side, side); `turns`: (image,), each 0, 1, 2 or 3.
    """
    turned = images
    for quarters in (1, 2, 3):
        is_turned = (turns == quarters)[:, None, None, None]
        turned = torch.where(is_turned, torch.rot90(images, quarters, dims=(2, 3)), turned)
    return turned


def shift_hue(images: Tensor, turns: Tensor) -> Tensor:
    """Turn the hue of every pixel by a share of the full circle; keep value and saturation.

    `images`: (image, 3, height, width) in [0, 1]; `turns`: (image, 1, 1), where 1 is a full circle.
    A third of the circle leads from red to green:

    >>> red = torch.tensor([1.0, 0.0, 0.0]).view(1, 3, 1, 1)
    >>> shift_hue(red, torch.full((1, 1, 1), 1 / 3)).flatten().round().tolist()
    [0.0, 1.0, 0.0]
    """
    red, green, blue = images.unbind(1)  # (image, height, width) each
    value = images.amax(1)
    chroma = value - images.amin(1)
    # Grey has no hue, and any will do: its chroma is 0.
    divisor = chroma.clamp(min=torch.finfo(images.dtype).tiny)
    # The hue in sixths of the circle, counted from red.
    from_red = (green - blue) / divisor
    from_green = (blue - red) / divisor + 2
    from_blue = (red - green) / divisor + 4
    hue = torch.where(value == red, from_red, torch.where(value == green, from_green, from_blue))
    hue = hue + 6 * turns
    # A channel is at the value for two sixths of the circle, at value − chroma for two, and goes
    # straight in between.
    channels = []
    for start in (5, 3, 1):
        sixths = torch.remainder(hue + start, 6)
        channels.append(value - chroma * torch.minimum(sixths, 4 - sixths).clamp_(0, 1))
    return torch.stack(channels, dim=1)


def _vary_colours(
    images: Tensor, augmentation: Augmentation, draw: Callable[..., Tensor]
) -> Tensor:
    """Apply RandAugment's operations; then vary brightness, contrast, saturation and hue.

    Each image draws its own.
    """

    def symmetric(width: float) -> Tensor:
        """Return a number of each image, uniform in [−width, width], (image, 1, 1, 1)."""
        return width * (2 * draw(1, 1, 1) - 1)

    images = apply_operations(images, augmentation.n_operations, augmentation.magnitude, draw)
    if augmentation.brightness:
        factor = 1 + symmetric(augmentation.brightness)
        images = ENHANCEMENTS["brightness"](images, factor).clamp_(0, 1)
    if augmentation.contrast:
        factor = 1 + symmetric(augmentation.contrast)
        images = ENHANCEMENTS["contrast"](images, factor).clamp_(0, 1)
    if augmentation.saturation:
        factor = 1 + symmetric(augmentation.saturation)
        images = ENHANCEMENTS["colour"](images, factor).clamp_(0, 1)
    if augmentation.hue:
        images = shift_hue(images, symmetric(augmentation.hue)[:, 0])
    return images


def _constant(values: tuple[float, ...], like: Tensor) -> Tensor:
    """Return (value,) on the device and of the type of `like`, without a copy from the host."""
    scalars = [torch.full((), value, device=like.device, dtype=like.dtype) for value in values]
    return torch.stack(scalars)
