"""Views: the whole image first, then its mirror image, then crops that cover areas and places evenly."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from PIL import Image
from scipy.stats import qmc

from nearshot.data.augment import centre_crop
from nearshot.data.views import SMALLEST_CROP, view_box, view_of


@pytest.mark.parametrize(("height", "width", "size"), [(32, 32, 32), (32, 32, 84), (60, 40, 24)])
def test_the_first_views_are_the_centre_and_its_mirror_image(height: int, width: int, size: int) -> None:
    images = torch.randint(256, (3, height, width, 3), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    centre = centre_crop(images, size)
    assert torch.equal(view_of(images, 0, size), centre)
    torch.testing.assert_close(view_of(images, 1, size), centre.flip(3), rtol=0, atol=1e-5)


def test_boxes_are_a_halton_sequence_inside_the_image() -> None:
    expected = qmc.Halton(3, scramble=False).random(40)  # the first is 0, 0, 0
    for number in range(2, 41):
        top, left, side, is_mirrored = view_box(number)
        area, y, x = expected[number - 1]
        assert side**2 == pytest.approx(SMALLEST_CROP + (1 - SMALLEST_CROP) * area)
        assert (top, left) == pytest.approx((y * (1 - side), x * (1 - side)))
        assert is_mirrored == (number % 2 == 1)
        assert 0 <= min(top, left) <= max(top, left) + side <= 1


@pytest.mark.parametrize(("height", "width"), [(200, 200), (300, 200)])
@pytest.mark.parametrize("number", [2, 3, 7])
def test_a_crop_is_pillows(height: int, width: int, number: int) -> None:
    y, x = np.mgrid[0:height, 0:width] / 60
    pixels = np.stack([127 + 120 * np.sin(x + c) * np.cos(y - c) for c in range(3)], axis=2).astype(np.uint8)
    top, left, side, is_mirrored = view_box(number)
    above, before = (height - 200) / 2, (width - 200) / 2
    box = (before + 200 * left, above + 200 * top, before + 200 * (left + side), above + 200 * (top + side))
    expected = np.asarray(Image.fromarray(pixels).resize((48, 48), Image.Resampling.BILINEAR, box=box)).astype(float)
    found = view_of(torch.from_numpy(pixels)[None], number, 48)[0].permute(1, 2, 0).numpy() * 255
    assert (
        np.abs(found[:, ::-1] - expected if is_mirrored else found - expected).max() < 2.5
    )  # smooth, but for a box's edge
