"""RandAugment's operations (Cubuk et al., 2020) on a whole batch; each image draws its own.

The operations and their largest strengths are those of torchvision's RandAugment; colours are as
Pillow computes them. As in `augment`, nothing here is copied from the host or waits for the device.
"""

import math
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

# The weights of red, green and blue in Pillow and ITU-R 601-2.
RED_WEIGHT = 0.299
GREEN_WEIGHT = 0.587
BLUE_WEIGHT = 0.114
LEVELS = 256
# The centre and the sum of Pillow's filter SMOOTH, which is 1 around its centre.
SMOOTH_CENTRE = 5
SMOOTH_SUM = 13


def luminance(images: Tensor) -> Tensor:
    """Return grey images, (image, 1, height, width)."""
    red, green, blue = images.split(1, dim=1)
    grey = torch.mul(red, RED_WEIGHT)
    return grey.add_(green, alpha=GREEN_WEIGHT).add_(blue, alpha=BLUE_WEIGHT)


def _brightness(images: Tensor, factor: Tensor) -> Tensor:
    return images * factor


def _contrast(images: Tensor, factor: Tensor) -> Tensor:
    return torch.lerp(luminance(images).mean((2, 3), keepdim=True), images, factor)


def _colour(images: Tensor, factor: Tensor) -> Tensor:
    return torch.lerp(luminance(images), images, factor)


def _sharpness(images: Tensor, factor: Tensor) -> Tensor:
    return torch.lerp(_smooth(images), images, factor)


def _smooth(images: Tensor) -> Tensor:
    around = F.avg_pool2d(images, 3, stride=1) * 9
    smooth = images.clone()  # the border stays
    inner = images[:, :, 1:-1, 1:-1]
    smooth[:, :, 1:-1, 1:-1] = (around + (SMOOTH_CENTRE - 1) * inner) / SMOOTH_SUM
    return smooth


def _posterise(images: Tensor, strength: Tensor) -> Tensor:
    step = 2 ** (4 * strength.abs()).round()  # levels: 1 to 16, from 8 bits to 4
    return ((images * (LEVELS - 1)).round() / step).floor() * step / (LEVELS - 1)


def _solarise(images: Tensor, strength: Tensor) -> Tensor:
    return torch.where(images < 1 - strength.abs(), images, 1 - images)


def _autocontrast(images: Tensor, _: Tensor) -> Tensor:
    low = images.amin((2, 3), keepdim=True)
    high = images.amax((2, 3), keepdim=True)
    return torch.where(high > low, (images - low) / (high - low).clamp(min=1e-6), images)


def _equalise(images: Tensor, _: Tensor) -> Tensor:
    levels = (images * (LEVELS - 1)).round().long().flatten(2)  # (image, 3, pixel)
    counts = images.new_zeros(*levels.shape[:2], LEVELS)
    counts = counts.scatter_add_(2, levels, torch.ones_like(levels).to(images))
    brightest = counts.gather(2, levels.amax(2, keepdim=True))  # the pixels of the highest level
    step = ((levels.shape[2] - brightest) / (LEVELS - 1)).floor()
    below = counts.cumsum(2) - counts  # the pixels of lower levels
    table = (((step / 2).floor() + below) / step.clamp(min=1)).floor().clamp(max=LEVELS - 1)
    equalised = table.gather(2, levels).view_as(images) / (LEVELS - 1)
    return torch.where(step[..., None] > 0, equalised, images)


# All take images (image, 3, height, width) in [0, 1]. Enhancements, as Pillow calls them, take a
# factor (image, 1, 1, 1), of which 1 changes nothing; other changes of colour take a signed
# strength (image, 1, 1, 1) in [−1, 1].
ENHANCEMENTS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "brightness": _brightness,
    "contrast": _contrast,
    "colour": _colour,
    "sharpness": _sharpness,
}
OTHER_COLOURS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "posterise": _posterise,
    "solarise": _solarise,
    "autocontrast": _autocontrast,
    "equalise": _equalise,
}
COLOURS = (*ENHANCEMENTS, *OTHER_COLOURS)
# Movements are a matrix for each image, from positions in the result to positions in the image,
# both from −1 to 1.
MOVEMENTS = ("shear-x", "shear-y", "translate-x", "translate-y", "rotate")
OPERATIONS = (*COLOURS, *MOVEMENTS, "identity")
LARGEST_SHEAR = 0.3
LARGEST_SHIFT = 2 * 150 / 331
LARGEST_TURN = math.radians(30)


def apply_operations(
    images: Tensor, n_operations: int, magnitude: float, draw: Callable[..., Tensor]
) -> Tensor:
    """Apply some random operations to each image (image, 3, height, width), one after the other.

    Args:
        images: (image, 3, height, width) in [0, 1].
        n_operations: how many operations each image gets.
        magnitude: the largest strength, in [0, 1]; strengths are drawn uniformly up to it, and
            their signs at random.
        draw: a function of a shape that returns uniform numbers in [0, 1), (image, *shape).
    """
    for _ in range(n_operations):
        choice_draws, strength_draws = draw(2).unbind(1)  # (image,) each
        choice = (choice_draws * len(OPERATIONS)).long()
        images = apply_chosen(images, choice, magnitude * (2 * strength_draws - 1))
    return images


def apply_chosen(images: Tensor, choice: Tensor, strength: Tensor) -> Tensor:
    """Apply to each image the operation of its own choice, with its own strength.

    Args:
        images: (image, 3, height, width) in [0, 1].
        choice: (image,) numbers of operations in `OPERATIONS`.
        strength: (image,) signed strengths.
    """
    is_movement = (choice >= len(COLOURS)) & (choice < len(COLOURS) + len(MOVEMENTS))
    moved = _moved(images, choice, strength)
    result = torch.where(is_movement[:, None, None, None], moved, images)
    strength = strength[:, None, None, None]
    for number, name in enumerate(COLOURS):
        if name in ENHANCEMENTS:
            changed = ENHANCEMENTS[name](images, 1 + 0.9 * strength)
        else:
            changed = OTHER_COLOURS[name](images, strength)
        result = torch.where((choice == number)[:, None, None, None], changed.clamp(0, 1), result)
    return result


def _moved(images: Tensor, choice: Tensor, strength: Tensor) -> Tensor:
    """Shear, shift or rotate each image about its centre; what comes from outside is black."""

    def amount(movement: str, largest: float) -> Tensor:
        """Return how far each image moves, (image,): zero where it has another operation."""
        return torch.where(choice == OPERATIONS.index(movement), largest * strength, 0.0)

    angle = amount("rotate", LARGEST_TURN)
    shear_x = amount("shear-x", LARGEST_SHEAR)
    shear_y = amount("shear-y", LARGEST_SHEAR)
    shift_x = amount("translate-x", LARGEST_SHIFT)
    shift_y = amount("translate-y", LARGEST_SHIFT)
    across = torch.stack([angle.cos(), shear_x - angle.sin(), shift_x], dim=1)  # (image, 3)
    down = torch.stack([shear_y + angle.sin(), angle.cos(), shift_y], dim=1)
    matrices = torch.stack([across, down], dim=1)  # (image, 2, 3)
    grid = F.affine_grid(matrices, list(images.shape), align_corners=False)
    return F.grid_sample(images, grid, mode="bilinear", padding_mode="zeros", align_corners=False)
