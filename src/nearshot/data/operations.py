"""RandAugment's operations (Cubuk et al., 2020) on a whole batch, on its device: each image draws its own.

The operations and their largest strengths are those of torchvision's RandAugment; colours are as
Pillow computes them. As in `augment`, nothing here is copied from the host or waits for the device.
"""

import math
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

LUMINANCE = (0.299, 0.587, 0.114)  # as Pillow and ITU-R 601-2 have it
LEVELS = 256
SMOOTH_CENTRE, SMOOTH_SUM = 5, 13  # of Pillow's filter SMOOTH, which is 1 around its centre


def luminance(images: Tensor) -> Tensor:
    """Return grey images, (image, 1, height, width)."""
    red, green, blue = images.split(1, dim=1)
    return (
        torch.mul(red, LUMINANCE[0]).add_(green, alpha=LUMINANCE[1]).add_(blue, alpha=LUMINANCE[2])
    )


def _smooth(images: Tensor) -> Tensor:
    around = F.avg_pool2d(images, 3, stride=1) * 9
    smooth = images.clone()  # the border stays
    smooth[:, :, 1:-1, 1:-1] = (
        around + (SMOOTH_CENTRE - 1) * images[:, :, 1:-1, 1:-1]
    ) / SMOOTH_SUM
    return smooth


def _posterise(images: Tensor, strength: Tensor) -> Tensor:
    step = 2 ** (4 * strength.abs()).round()  # levels: 1 to 16, from 8 bits to 4
    return ((images * (LEVELS - 1)).round() / step).floor() * step / (LEVELS - 1)


def _autocontrast(images: Tensor, _: Tensor) -> Tensor:
    low, high = images.amin((2, 3), keepdim=True), images.amax((2, 3), keepdim=True)
    return torch.where(high > low, (images - low) / (high - low).clamp(min=1e-6), images)


def _equalise(images: Tensor, _: Tensor) -> Tensor:
    levels = (images * (LEVELS - 1)).round().long().flatten(2)  # (image, 3, pixel)
    counts = images.new_zeros(*levels.shape[:2], LEVELS).scatter_add_(
        2, levels, torch.ones_like(levels).to(images)
    )
    brightest = counts.gather(
        2, levels.amax(2, keepdim=True)
    )  # the number of pixels of the highest level
    step = ((levels.shape[2] - brightest) / (LEVELS - 1)).floor()
    below = counts.cumsum(2) - counts  # the pixels of lower levels
    table = (((step / 2).floor() + below) / step.clamp(min=1)).floor().clamp(max=LEVELS - 1)
    equalised = table.gather(2, levels).view_as(images) / (LEVELS - 1)
    return torch.where(step[..., None] > 0, equalised, images)


# All take images (image, 3, height, width) in [0, 1]. Enhancements, as Pillow calls them, take a
# factor (image, 1, 1, 1), of which 1 changes nothing; other changes of colour take a signed
# strength (image, 1, 1, 1) in [−1, 1].
ENHANCEMENTS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "brightness": lambda images, factor: images * factor,
    "contrast": lambda images, factor: torch.lerp(
        luminance(images).mean((2, 3), keepdim=True), images, factor
    ),
    "colour": lambda images, factor: torch.lerp(luminance(images), images, factor),
    "sharpness": lambda images, factor: torch.lerp(_smooth(images), images, factor),
}
OTHER_COLOURS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "posterise": _posterise,
    "solarise": lambda images, strength: torch.where(
        images < 1 - strength.abs(), images, 1 - images
    ),
    "autocontrast": _autocontrast,
    "equalise": _equalise,
}
COLOURS = (*ENHANCEMENTS, *OTHER_COLOURS)
# Movements, as one matrix per image from places in the result to places in the image, both from −1
# to 1.
MOVEMENTS = ("shear-x", "shear-y", "translate-x", "translate-y", "rotate")
OPERATIONS = (*COLOURS, *MOVEMENTS, "identity")
LARGEST_SHEAR, LARGEST_SHIFT, LARGEST_TURN = 0.3, 2 * 150 / 331, math.radians(30)


def apply_operations(
    images: Tensor, n_operations: int, magnitude: float, draw: Callable[..., Tensor]
) -> Tensor:
    """Apply some random operations to each image (image, 3, height, width), one after the other.

    Strengths are drawn uniformly up to `magnitude`, in [0, 1], and their signs at random.
    `draw(*shape)` gives uniform numbers in [0, 1), (image, *shape).
    """
    for _ in range(n_operations):
        which, strength = draw(2).split(1, dim=1)  # (image, 1) each
        choice = (which * len(OPERATIONS)).long()
        images = apply_chosen(images, choice[:, 0], magnitude * (2 * strength[:, 0] - 1))
    return images


def apply_chosen(images: Tensor, choice: Tensor, strength: Tensor) -> Tensor:
    """Apply to each image the operation of the number `choice` (image,) in `OPERATIONS`, with its signed strength."""
    strength = strength[:, None, None, None]
    is_movement = (choice >= len(COLOURS)) & (choice < len(COLOURS) + len(MOVEMENTS))
    result = torch.where(
        is_movement[:, None, None, None], _moved(images, choice, strength[:, 0, 0, 0]), images
    )
    for number, name in enumerate(COLOURS):
        if name in ENHANCEMENTS:
            changed = ENHANCEMENTS[name](images, 1 + 0.9 * strength)
        else:
            changed = OTHER_COLOURS[name](images, strength)
        result = torch.where((choice == number)[:, None, None, None], changed.clamp(0, 1), result)
    return result


def _moved(images: Tensor, choice: Tensor, strength: Tensor) -> Tensor:
    """Shear, shift or rotate each image about its centre; what comes from outside is black."""

    def amount(
        movement: str, largest: float
    ) -> Tensor:  # zero where the image has another operation
        return torch.where(choice == OPERATIONS.index(movement), largest * strength, 0.0)

    angle = amount("rotate", LARGEST_TURN)
    shear_x, shear_y = amount("shear-x", LARGEST_SHEAR), amount("shear-y", LARGEST_SHEAR)
    shift_x, shift_y = amount("translate-x", LARGEST_SHIFT), amount("translate-y", LARGEST_SHIFT)
    across = torch.stack([angle.cos(), shear_x - angle.sin(), shift_x], dim=1)  # (image, 3)
    down = torch.stack([shear_y + angle.sin(), angle.cos(), shift_y], dim=1)
    grid = F.affine_grid(
        torch.stack([across, down], dim=1), list(images.shape), align_corners=False
    )
    return F.grid_sample(images, grid, mode="bilinear", padding_mode="zeros", align_corners=False)
