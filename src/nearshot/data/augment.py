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

import torch
import torch.nn.functional as F
from torch import Tensor

from nearshot.checks import convert_numpy_fields, is_integer
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
SMALLEST_CROP = 0.5  # the least share of the area that a view shows


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
        convert_numpy_fields(self)
        if self.crop not in CROPS:
            raise InputError(
                f"crop must be {', '.join(map(repr, CROPS[:-1]))} or {CROPS[-1]!r}, not {self.crop!r}."
            )
        if not 0 < self.scale[0] <= self.scale[1] <= 1:
            raise InputError(f"scale must be a range inside (0, 1], not {self.scale}.")
        if not 0 < self.ratio[0] <= self.ratio[1]:
            raise InputError(f"ratio must be a range of positive numbers, not {self.ratio}.")
        for name in ("flip", "brightness", "contrast", "saturation", "hue", "magnitude"):
            most = 0.5 if name == "hue" else 1
            if not 0 <= getattr(self, name) <= most:
                raise InputError(f"{name} must be between 0 and {most}, not {getattr(self, name)}.")
        for name in ("padding", "n_operations"):
            value = getattr(self, name)
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
    """Augment a batch: from (image, height, width, 3) uint8 to (image, 3, size, size) float in [0, 1], channels last.

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
        found = f"{images.dtype} {tuple(images.shape)}"
        raise InputError(
            f"images must be uint8 (image, height, width, 3), as a store has them, not {found}."
        )
    n_images, height, width = images.shape[:3]
    number, n_shares = share

    def draw(*shape: int) -> Tensor:
        """Return uniform numbers in [0, 1), (image, *shape), as a slice of those for the whole batch."""
        drawn = torch.rand(
            n_shares * n_images,
            *shape,
            dtype=torch.float32,
            device=images.device,
            generator=generator,
        )
        return drawn[number * n_images : (number + 1) * n_images]

    # (image, 3, height, width) with channels last in memory, as the store has them: no copy but for
    # the type
    planes = images.permute(0, 3, 1, 2).float().div_(255)
    side = min(height, width)
    if (
        augmentation.crop == "centre"
        and augmentation.flip == 0
        and size == side
        and (height - width) % 2 == 0
    ):
        top, left = (height - side) // 2, (width - side) // 2
        whole = planes[:, :, top : top + side, left : left + side]  # no resizing needed
        return _jitter(whole, augmentation, draw).contiguous(memory_format=torch.channels_last)
    if augmentation.crop.startswith("padded"):
        planes = F.pad(planes, (augmentation.padding,) * 4)
    if augmentation.crop.endswith("random"):
        boxes = random_boxes(planes.shape[2], planes.shape[3], height * width, augmentation, draw)
    elif augmentation.crop == "padded":
        room = _constant((planes.shape[2] - side + 1, planes.shape[3] - side + 1), planes)
        boxes = F.pad(
            (draw(2) * room).floor(), (0, 2), value=side
        )  # (image, 4): top, left and twice the side
    else:
        boxes = _constant(((height - side) / 2, (width - side) / 2, side, side), planes).expand(
            n_images, 4
        )
    flips = draw(1)[:, 0] < augmentation.flip
    result = cut(
        planes, boxes, flips, size, longest=side if augmentation.crop == "padded" else None
    )
    return _jitter(result, augmentation, draw).contiguous(memory_format=torch.channels_last)


def random_boxes(
    height: int, width: int, area: int, augmentation: Augmentation, draw: Callable[..., Tensor]
) -> Tensor:
    """Draw crops as (top, left, height, width) in whole pixels, (box, 4); `draw(*shape)` gives (box, *shape).

    Their sizes are shares of `area`, that of the image without its border.
    """
    fractions = draw(4, TRIES).unbind(1)  # four of (box, try)
    low, high = augmentation.scale
    areas = area * (low + (high - low) * fractions[0])  # (box, try)
    low, high = (math.log(bound) for bound in augmentation.ratio)
    ratios = torch.exp(low + (high - low) * fractions[1])
    widths, heights = (areas * ratios).sqrt().round(), (areas / ratios).sqrt().round()
    fits = (widths > 0) & (widths <= width) & (heights > 0) & (heights <= height)
    first = fits.int().argmax(1, keepdim=True)  # the first try that fits
    box_width, box_height = widths.gather(1, first)[:, 0], heights.gather(1, first)[:, 0]
    # Where none fits: the largest centred crop within the bounds of the ratio.
    ratio = width / height
    most_width = (
        min(width, round(height * augmentation.ratio[1]))
        if ratio > augmentation.ratio[1]
        else width
    )
    most_height = (
        min(height, round(width / augmentation.ratio[0]))
        if ratio < augmentation.ratio[0]
        else height
    )
    none = ~fits.any(1)
    box_width, box_height = (
        box_width.masked_fill(none, most_width),
        box_height.masked_fill(none, most_height),
    )
    top = torch.where(
        none, (height - box_height) // 2, (fractions[2][:, 0] * (height - box_height + 1)).floor()
    )
    left = torch.where(
        none, (width - box_width) // 2, (fractions[3][:, 0] * (width - box_width + 1)).floor()
    )
    return torch.stack([top, left, box_height, box_width], dim=1)


def cut(
    planes: Tensor, boxes: Tensor, flips: Tensor, size: int, *, longest: int | None = None
) -> Tensor:
    """Cut a box out of each image, resize it bilinearly to `size` × `size`, and mirror it where `flips` says.

    `planes`: (image, 3, height, width); `boxes`: (image, 4) as (top, left, height, width). Returns
    (image, 3, size, size). Each pixel is interpolated between four; where a box may be larger than
    `size`, and shrink, it is averaged over all pixels that it covers, as Pillow does. `longest` is
    the longest side of a box; by default the image's.
    """
    height, width = planes.shape[2:]
    top, left, box_height, box_width = boxes.to(planes.dtype).split(1, dim=1)
    centres = (
        torch.arange(size, device=planes.device, dtype=planes.dtype) + 0.5
    ) / size  # in [0, 1]
    y = top + centres * box_height  # (image, size): where the rows of the result lie in the image
    x = left + torch.where(flips[:, None], 1 - centres, centres) * box_width
    if (longest or max(height, width)) > size:
        with torch.autocast(planes.device.type, enabled=False):
            down = _weights(y, top, box_height, height)[:, None]  # (image, 1, size, height)
            across = _weights(x, left, box_width, width)[:, None].transpose(
                2, 3
            )  # (image, 1, width, size)
            return down @ (planes @ across)
    # Never beyond the centres of the box's own border pixels, since the crop is cut before it is
    # resized.
    x = x.clamp(left + 0.5, left + box_width - 0.5)
    y = y.clamp(top + 0.5, top + box_height - 0.5)
    across, down = (2 * x / width - 1)[:, None, :], (2 * y / height - 1)[:, :, None]
    grid = torch.stack(torch.broadcast_tensors(across, down), dim=3)  # (image, size, size, 2)
    return F.grid_sample(planes, grid, mode="bilinear", padding_mode="border", align_corners=False)


def _weights(places: Tensor, begin: Tensor, length: Tensor, n_pixels: int) -> Tensor:
    """Return Pillow's bilinear filter: a tent as wide as a pixel of the result, or of the image.

    `places`: (image, place) between `begin` and `begin + length` (image, 1). Returns (image, place,
    pixel).
    """
    centres = torch.arange(n_pixels, device=places.device, dtype=places.dtype) + 0.5
    reach = (length / places.shape[1]).clamp(min=1.0)
    tent = 1 - (centres - places[:, :, None]).abs() / reach[:, :, None]
    inside = (centres > begin) & (centres < begin + length)  # (image, pixel)
    tent = tent.clamp(min=0.0) * inside[:, None, :]
    return tent / tent.sum(2, keepdim=True)


def centre_crop(images: Tensor, size: int) -> Tensor:
    """Prepare images for evaluation: their centre, resized; (image, height, width, 3) to (image, 3, size, size)."""
    return augment(images, Augmentation(crop="centre", flip=0.0), size=size)


def view_of(images: Tensor, number: int, size: int) -> Tensor:
    """Return a view of each image: (image, height, width, 3) uint8 to (image, 3, size, size) float in [0, 1].

    View 0 is the centre, and view 1 its mirror image. All others are square crops of that centre,
    every second one mirrored. Their areas and places are a Halton sequence, which covers all of
    them evenly, the same for all images.
    """
    if number == 0:
        return centre_crop(images, size)
    top, left, side, is_mirrored = view_box(number)
    height, width = images.shape[1:3]
    shorter = min(height, width)
    y, x = (height - shorter) / 2 + top * shorter, (width - shorter) / 2 + left * shorter
    box = torch.tensor([y, x, side * shorter, side * shorter], device=images.device).expand(
        len(images), 4
    )
    flips = torch.full((len(images),), is_mirrored, device=images.device)
    return cut(images.permute(0, 3, 1, 2).float().div_(255), box, flips, size)


def view_box(number: int) -> tuple[float, float, float, bool]:
    """Return the top, left and side of a view's square, as fractions of the whole, and whether it is mirrored.

    >>> view_box(0), view_box(1)
    ((0.0, 0.0, 1.0, False), (0.0, 0.0, 1.0, True))
    """
    is_mirrored = number % 2 == 1
    if number < 2:
        return 0.0, 0.0, 1.0, is_mirrored
    area, y, x = (_radical_inverse(number - 1, base) for base in (2, 3, 5))
    side = math.sqrt(SMALLEST_CROP + (1 - SMALLEST_CROP) * area)
    return y * (1 - side), x * (1 - side), side, is_mirrored


def _radical_inverse(number: int, base: int) -> float:
    """Return the digits of a number mirrored at the point: 6 is 110 in base 2, and gives 0.011, which is 3/8."""
    inverse, weight = 0.0, 1 / base
    while number:
        number, digit = divmod(number, base)
        inverse += digit * weight
        weight /= base
    return inverse


def normalise_images(images: Tensor, mean: tuple[float, ...], std: tuple[float, ...]) -> Tensor:
    """Subtract a mean and divide by a standard deviation, channel by channel."""
    centre, spread = (_constant(values, images).view(1, 3, 1, 1) for values in (mean, std))
    return (images - centre).div_(spread)


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
    """Turn the hue of every pixel by some share of the full circle; value and saturation are unchanged.

    `images`: (image, 3, height, width) in [0, 1]; `turns`: (image, 1, 1), where 1 comes back to
    where it began.

    >>> red = torch.tensor([1.0, 0.0, 0.0]).view(1, 3, 1, 1)
    >>> shift_hue(red, torch.full((1, 1, 1), 1 / 3)).flatten().round().tolist()  # a third of the circle: green
    [0.0, 1.0, 0.0]
    """
    red, green, blue = images.unbind(1)  # (image, height, width) each
    value = images.amax(1)
    chroma = value - images.amin(1)
    divisor = chroma.clamp(
        min=torch.finfo(images.dtype).tiny
    )  # grey has no hue, and any will do: its chroma is 0
    from_green = torch.where(
        value == green, (blue - red) / divisor + 2, (red - green) / divisor + 4
    )
    hue = (
        torch.where(value == red, (green - blue) / divisor, from_green) + 6 * turns
    )  # in sixths of the circle
    # A channel is at the value for two sixths of the circle, at value − chroma for two, and goes
    # straight in between.
    places = (torch.remainder(hue + start, 6) for start in (5, 3, 1))
    return torch.stack(
        [value - chroma * torch.minimum(k, 4 - k).clamp_(0, 1) for k in places], dim=1
    )


def _jitter(images: Tensor, augmentation: Augmentation, draw: Callable[..., Tensor]) -> Tensor:
    """Apply RandAugment's operations; then vary brightness, contrast, saturation and hue by the image's own factors."""

    def draws(width: float) -> Tensor:  # uniform in [−width, width]
        return width * (2 * draw(1, 1, 1) - 1)

    images = apply_operations(images, augmentation.n_operations, augmentation.magnitude, draw)
    widths = (augmentation.brightness, augmentation.contrast, augmentation.saturation)
    for name, width in zip(("brightness", "contrast", "colour"), widths, strict=True):
        if width:
            images = ENHANCEMENTS[name](images, 1 + draws(width)).clamp_(0, 1)
    return shift_hue(images, draws(augmentation.hue)[:, 0]) if augmentation.hue else images


def _constant(values: tuple[float, ...], like: Tensor) -> Tensor:
    """Return (value,) on the device and of the type of `like`, filled in there rather than copied from the host."""
    return torch.stack(
        [torch.full((), value, device=like.device, dtype=like.dtype) for value in values]
    )
