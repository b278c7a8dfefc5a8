"""RandAugment's operations against Pillow, image by image."""

import math

import numpy as np
import pytest
import torch
from PIL import Image, ImageEnhance, ImageOps

from nearshot.data.operations import COLOURS, MOVEMENTS, OPERATIONS, apply_chosen, apply_operations

SIDE = 21


def images() -> torch.Tensor:
    """Images of several contrasts, in whole levels; one nearly flat, one of few levels."""
    generator = torch.Generator().manual_seed(0)
    y, x = torch.meshgrid(torch.linspace(0, 3, SIDE), torch.linspace(0, 3, SIDE), indexing="ij")
    phase = torch.arange(6)[:, None, None, None]
    channel = torch.arange(3)[:, None, None]
    contrast = torch.tensor([100, 60, 20, 3, 100, 80])[:, None, None, None]
    planes = 120 + contrast * (x + phase).sin() * (y - channel).cos()  # (image, 3, height, width)
    planes[4] = (planes[4] / 60).floor() * 60
    planes[5] += torch.randint(-30, 30, planes[5].shape, generator=generator)
    return planes.clamp(0, 255).round() / 255


def in_pillow(image: torch.Tensor, operation: str, strength: float) -> np.ndarray:
    picture = Image.fromarray((image * 255).round().byte().permute(1, 2, 0).numpy())
    factor = 1 + 0.9 * strength
    centre = SIDE / 2

    def moved(a: float, b: float, c: float, d: float, e: float, f: float) -> Image.Image:
        """(x, y) of the result comes from the matrix times (x, y), both from the centre."""
        across = c + centre - a * centre - b * centre
        down = f + centre - d * centre - e * centre
        matrix = (a, b, across, d, e, down)
        bilinear = Image.Resampling.BILINEAR
        return picture.transform(picture.size, Image.Transform.AFFINE, matrix, bilinear)

    angle = math.radians(30 * strength)
    cosine = math.cos(angle)
    sine = math.sin(angle)
    shear = 0.3 * strength
    shift = 150 / 331 * SIDE * strength
    changed = {
        "brightness": lambda: ImageEnhance.Brightness(picture).enhance(factor),
        "contrast": lambda: ImageEnhance.Contrast(picture).enhance(factor),
        "colour": lambda: ImageEnhance.Color(picture).enhance(factor),
        "sharpness": lambda: ImageEnhance.Sharpness(picture).enhance(factor),
        "posterise": lambda: ImageOps.posterize(picture, 8 - round(4 * abs(strength))),
        "solarise": lambda: ImageOps.solarize(picture, math.ceil(255 * (1 - abs(strength)))),
        "autocontrast": lambda: ImageOps.autocontrast(picture),
        "equalise": lambda: ImageOps.equalize(picture),
        "shear-x": lambda: moved(1, shear, 0, 0, 1, 0),
        "shear-y": lambda: moved(1, 0, 0, shear, 1, 0),
        "translate-x": lambda: moved(1, 0, shift, 0, 1, 0),
        "translate-y": lambda: moved(1, 0, 0, 0, 1, shift),
        "rotate": lambda: moved(cosine, -sine, 0, sine, cosine, 0),
        "identity": lambda: picture,
    }[operation]()
    return np.asarray(changed).astype(float)


@pytest.mark.parametrize("operation", OPERATIONS)
@pytest.mark.parametrize("strength", [-1.0, -0.37, 0.37, 0.93])
def test_an_operation_is_pillows(operation: str, strength: float) -> None:
    given = images()
    choice = torch.full((len(given),), OPERATIONS.index(operation))
    ours = apply_chosen(given, choice, torch.full((len(given),), strength))
    assert ours.min() >= 0
    assert ours.max() <= 1
    for image, result in zip(given, ours, strict=True):
        expected = in_pillow(image, operation, strength)
        compared = np.ones((SIDE, SIDE), bool)
        if operation in MOVEMENTS:
            # At the image's border, where Pillow repeats the last pixel, ours fades to black.
            white = apply_chosen(torch.ones_like(image[None]), choice[:1], torch.tensor([strength]))
            compared = white[0, 0].numpy() > 0.9999
            covered = in_pillow(torch.ones_like(image), operation, strength)[:, :, 0] > 0
            assert not (compared & ~covered).any()
            assert compared.sum() > 0.8 * covered.sum()
        difference = np.abs(result.permute(1, 2, 0).numpy() * 255 - expected)
        assert difference[compared].max() < 1.51


def test_each_image_gets_its_own_operation() -> None:
    given = images()[:1].expand(len(OPERATIONS), -1, -1, -1)
    choice = torch.arange(len(OPERATIONS))
    strength = torch.linspace(-0.9, 0.9, len(OPERATIONS))
    together = apply_chosen(given, choice, strength)
    for i in range(len(given)):
        alone = apply_chosen(given[i : i + 1], choice[i : i + 1], strength[i : i + 1])
        torch.testing.assert_close(together[i : i + 1], alone)


def test_operations_are_drawn_evenly_and_up_to_the_magnitude() -> None:
    """Brightness tells the strength of a grey image's operation."""
    n = 4000
    generator = torch.Generator().manual_seed(0)
    drawn = []

    def draw(*shape: int) -> torch.Tensor:
        drawn.append(torch.rand(n, *shape, generator=generator))
        return drawn[-1]

    given = torch.full((n, 3, 4, 4), 0.5)
    assert apply_operations(given, 0, 0.5, draw) is given
    result = apply_operations(given, 1, 0.5, draw)
    assert len(drawn) == 1
    brightness = (drawn[0][:, 0] * len(OPERATIONS)).long() == COLOURS.index("brightness")
    assert float(brightness.float().mean()) == pytest.approx(1 / len(OPERATIONS), abs=0.02)
    strengths = result[brightness, 0, 0, 0] / 0.5 - 1
    assert float(strengths.abs().max()) <= 0.9 * 0.5 + 1e-6
    assert float(strengths.abs().mean()) == pytest.approx(0.9 * 0.5 / 2, abs=0.03)
    assert float(strengths.mean()) == pytest.approx(0, abs=0.04)
