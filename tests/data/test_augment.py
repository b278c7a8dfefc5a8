"""Augmentation against Pillow, image by image, and against the distribution's own definition."""

import colorsys
import math
import random
import re
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image, ImageEnhance
from scipy.stats import qmc
from tests.helpers.dispatched import BETWEEN_HOST_AND_DEVICE, Dispatched
from tests.helpers.layouts import picture
from torch import Tensor

from nearshot.data.augment import (
    SMALLEST_CROP,
    Augmentation,
    augment,
    centre_crop,
    cut,
    normalise_images,
    random_boxes,
    shift_hue,
    turn_images,
    view_box,
    view_of,
)
from nearshot.errors import InputError


def smooth(n: int, side: int = 32, width: int | None = None) -> torch.Tensor:
    """Images without sharp edges, on which interpolation is not a matter of taste."""
    y, x = np.mgrid[0:side, 0 : width or side][..., None] / side  # (side, width, 1)
    channel = np.arange(3)
    phase = np.arange(n)[:, None, None, None]
    planes = np.sin(3 * x + phase + channel) * np.cos(2 * y - channel)
    return torch.from_numpy((127.5 + 120 * planes).astype(np.uint8))


def uniform(n_images: int) -> Callable[..., Tensor]:
    generator = torch.Generator().manual_seed(0)
    return lambda *shape: torch.rand(n_images, *shape, generator=generator)


@pytest.mark.parametrize(
    ("height", "width", "size"), [(32, 32, 84), (120, 90, 40), (200, 200, 84), (90, 30, 31)]
)
@pytest.mark.parametrize("rough", [False, True])
def test_a_crop_is_pillows_crop_resized(height: int, width: int, size: int, rough: bool) -> None:
    images = smooth(20, height, width)
    if rough:  # where the filter shows
        images = torch.randint(
            256, images.shape, generator=torch.Generator().manual_seed(0), dtype=torch.uint8
        )
    boxes = random_boxes(height, width, height * width, Augmentation(), uniform(20))
    flips = torch.arange(20) % 2 == 0
    ours = cut(images.permute(0, 3, 1, 2).float() / 255, boxes, flips, size)
    for image, (top, left, tall, wide), flip, result in zip(
        images, boxes.tolist(), flips, ours, strict=True
    ):
        crop = Image.fromarray(image.numpy()).crop(
            (int(left), int(top), int(left + wide), int(top + tall))
        )
        expected = np.asarray(crop.resize((size, size), Image.Resampling.BILINEAR))
        expected = expected[:, ::-1] if flip else expected
        difference = np.abs(result.permute(1, 2, 0).numpy() * 255 - expected)
        assert difference.max() < 1.01  # Pillow rounds to whole values, twice


def torchvisions_box(
    generator: random.Random, height: int, width: int, a: Augmentation
) -> tuple[int, int, int, int]:
    """RandomResizedCrop.get_params, from its documentation."""
    for _ in range(10):
        area = height * width * generator.uniform(*a.scale)
        ratio = math.exp(generator.uniform(math.log(a.ratio[0]), math.log(a.ratio[1])))
        w = round(math.sqrt(area * ratio))
        h = round(math.sqrt(area / ratio))
        if 0 < w <= width and 0 < h <= height:
            return generator.randint(0, height - h), generator.randint(0, width - w), h, w
    ratio = width / height
    w = width
    h = height
    if ratio < a.ratio[0]:
        h = round(w / a.ratio[0])
    elif ratio > a.ratio[1]:
        w = round(h * a.ratio[1])
    return (height - h) // 2, (width - w) // 2, h, w


@pytest.mark.parametrize(("height", "width"), [(32, 32), (84, 84), (20, 100), (100, 20)])
def test_boxes_have_the_usual_distribution(height: int, width: int) -> None:
    n = 20_000
    ours = random_boxes(height, width, height * width, Augmentation(), uniform(n)).numpy()
    generator = random.Random(0)  # noqa: S311
    boxes = [torchvisions_box(generator, height, width, Augmentation()) for _ in range(n)]
    theirs = np.array(boxes)
    top, left, h, w = ours.T
    assert ((top >= 0) & (left >= 0) & (top + h <= height) & (left + w <= width)).all()
    for column in range(4):
        first = np.sort(ours[:, column])
        second = np.sort(theirs[:, column])
        points = np.union1d(first, second)
        gaps = np.searchsorted(first, points, "right") - np.searchsorted(second, points, "right")
        assert np.abs(gaps).max() / n < 1.95 * math.sqrt(2 / n)  # Kolmogorov and Smirnov at 0.1 %


def test_half_of_the_images_are_flipped() -> None:
    images = smooth(1)[[0] * 2000]
    result = augment(
        images, Augmentation(crop="centre"), size=32, generator=torch.Generator().manual_seed(0)
    )
    plain = images[0].permute(2, 0, 1).float() / 255
    is_plain = (result - plain).abs().flatten(1).amax(1) < 1e-3
    is_flipped = (result - plain.flip(2)).abs().flatten(1).amax(1) < 1e-3
    assert (is_plain ^ is_flipped).all()
    assert is_flipped.double().mean().item() == pytest.approx(0.5, abs=0.05)
    never = augment(images[:50], Augmentation(crop="centre", flip=0.0), size=32)
    torch.testing.assert_close(never[0], plain)


def test_the_same_generator_gives_the_same_batch_in_channels_last() -> None:
    images = torch.from_numpy(np.stack([picture(i) for i in range(8)]))
    options = Augmentation(brightness=0.4, contrast=0.4, saturation=0.4)

    def augmented(seed: int) -> Tensor:
        generator = torch.Generator().manual_seed(seed)
        return augment(images, options, size=84, generator=generator)

    batch = augmented(3)
    assert torch.equal(batch, augmented(3))
    assert not torch.equal(batch, augmented(4))
    assert batch.shape == (8, 3, 84, 84)
    assert batch.is_contiguous(memory_format=torch.channels_last)
    assert 0 <= float(batch.min()) <= float(batch.max()) <= 1


def padded_by_pillow(
    image: Tensor, padding: int, box: Sequence[int], flipped: bool, size: int
) -> Tensor:
    """One image: paste it on black, cut out a box, resize, mirror; (size, size, 3) in [0, 255]."""
    height, width = image.shape[:2]
    top, left, tall, wide = box
    canvas = Image.new("RGB", (width + 2 * padding, height + 2 * padding))
    canvas.paste(Image.fromarray(image.numpy()), (padding, padding))
    cropped = canvas.crop((left, top, left + wide, top + tall))
    cropped = cropped.resize((size, size), Image.Resampling.BILINEAR)
    if flipped:
        cropped = cropped.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
    return torch.from_numpy(np.asarray(cropped, dtype=np.float32).copy())


@pytest.mark.parametrize("size", [32, 48, 20])
@pytest.mark.parametrize(("height", "width"), [(32, 32), (32, 40)])
@pytest.mark.parametrize("crop", ["padded", "padded-random"])
def test_padded_crops_are_those_of_a_loop_over_the_images(
    crop: str, height: int, width: int, size: int
) -> None:
    """Areas of random boxes are shares of the image's area without its border."""
    n = 40
    padding = 5
    side = 32
    images = smooth(n, height, width)
    options = Augmentation(crop=crop, padding=padding, scale=(0.6, 0.9))
    result = augment(images, options, size=size, generator=torch.Generator().manual_seed(0))
    draw = uniform(n)
    tall = height + 2 * padding
    wide = width + 2 * padding
    if crop == "padded":
        boxes = []
        for y, x in draw(2).tolist():
            top = int(y * (tall - side + 1))
            left = int(x * (wide - side + 1))
            boxes.append([top, left, side, side])
    else:
        drawn = random_boxes(tall, wide, height * width, options, draw)
        shares = drawn[:, 2] * drawn[:, 3] / (height * width)
        assert 0.55 < float(shares.min()) < 0.65 < 0.85 < float(shares.max()) < 0.95  # whole pixels
        assert float(drawn[:, 0].min()) < padding  # the border can be seen on all sides
        assert float((drawn[:, 0] + drawn[:, 2]).max()) > height + padding
        boxes = drawn.int().tolist()
    flips = (draw(1)[:, 0] < 0.5).tolist()
    for image, ours, box, flipped in zip(images, result, boxes, flips, strict=True):
        expected = padded_by_pillow(image, padding, box, flipped, size)
        # Pillow rounds, twice.
        torch.testing.assert_close(ours.permute(1, 2, 0) * 255, expected, rtol=0, atol=1.01)


@pytest.mark.parametrize("name", ["brightness", "contrast", "saturation"])
def test_colours_vary_as_pillows_do(name: str) -> None:
    enhance = getattr(ImageEnhance, "Color" if name == "saturation" else name.title())
    image = smooth(1)
    options = Augmentation(crop="centre", flip=0.0, **{name: 0.5})  # type: ignore[arg-type]
    result = augment(
        image.expand(20, -1, -1, -1), options, size=32, generator=torch.Generator().manual_seed(0)
    )
    factors = 0.5 + uniform(20)(1)[:, 0]
    for row, factor in zip(result, factors.tolist(), strict=True):
        enhanced = enhance(Image.fromarray(image[0].numpy())).enhance(factor)
        expected = np.asarray(enhanced, dtype=float)
        assert np.abs(row.permute(1, 2, 0).numpy() * 255 - expected).max() < 1.51  # Pillow rounds


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("crop", "corner"),
        ("padding", -1),
        ("scale", (0.0, 1.0)),
        ("ratio", (2.0, 1.0)),
        ("flip", 2.0),
        ("hue", 0.6),
    ],
)
def test_impossible_augmentations_are_named(name: str, value: Any) -> None:
    with pytest.raises(InputError, match=f"^{name} must be .*{re.escape(str(value))}"):
        Augmentation(**{name: value})


def test_images_of_another_type_are_refused() -> None:
    with pytest.raises(
        InputError,
        match=r"uint8 \(image, height, width, 3\), as a store has them, not torch.float32",
    ):
        augment(torch.zeros(2, 8, 8, 3), Augmentation(), size=8)


def colorsys_shifted(image: npt.NDArray[np.float64], turn: float) -> npt.NDArray[np.float64]:
    """(height, width, 3) with its hue turned, pixel by pixel."""
    rows = []
    for pixel in image.reshape(-1, 3).tolist():
        hue, saturation, value = colorsys.rgb_to_hsv(*pixel)
        rows.append(colorsys.hsv_to_rgb((hue + turn) % 1, saturation, value))
    return np.array(rows).reshape(image.shape)


def colours(n: int, side: int, seed: int) -> torch.Tensor:
    """Images with every awkward colour: black, white, greys, and channels that are equal."""
    images = np.stack([picture(seed + i, side) for i in range(n)])
    images[:, 0, :3] = [[0] * 3, [255] * 3, [100] * 3]
    images[:, 1, :3] = [(200, 200, 10), (10, 200, 200), (200, 10, 200)]
    images[:, 2, :3] = np.diag([255, 255, 255])
    return torch.from_numpy(images)


@settings(deadline=None, max_examples=30)
@given(turns=st.lists(st.floats(-1.5, 1.5), min_size=1, max_size=4), seed=st.integers(0, 1000))
def test_a_turned_hue_is_that_of_colorsys(turns: list[float], seed: int) -> None:
    planes = colours(len(turns), 6, seed).permute(0, 3, 1, 2).double() / 255
    ours = shift_hue(planes, torch.tensor(turns, dtype=torch.float64).view(-1, 1, 1))
    for before, after, turn in zip(planes, ours, turns, strict=True):
        expected = colorsys_shifted(before.permute(1, 2, 0).numpy(), turn)
        np.testing.assert_allclose(after.permute(1, 2, 0).numpy(), expected, atol=1e-9)


def test_hues_are_drawn_uniformly_to_both_sides() -> None:
    red = torch.tensor([255, 0, 0], dtype=torch.uint8).expand(4000, 2, 2, 3)
    options = Augmentation(crop="centre", flip=0.0, hue=0.3)
    result = augment(red, options, size=2, generator=torch.Generator().manual_seed(0))
    hues = np.array([colorsys.rgb_to_hsv(*image[:, 0, 0].tolist())[0] for image in result])
    turns = np.sort((hues + 0.5) % 1 - 0.5)
    expected = np.linspace(-0.3, 0.3, len(turns))
    # Kolmogorov and Smirnov at 0.1 %.
    assert np.abs(turns - expected).max() / 0.6 < 1.95 / math.sqrt(len(turns))


EVERYTHING = Augmentation(brightness=0.4, contrast=0.4, saturation=0.4, hue=0.1, n_operations=2)


@pytest.mark.parametrize(
    "options",
    [
        EVERYTHING,
        Augmentation(crop="centre"),
        Augmentation(flip=0.0),
        Augmentation(crop="padded"),
        Augmentation(crop="padded-random", padding=0),
    ],
)
def test_nothing_goes_between_host_and_device(options: Augmentation) -> None:
    images = smooth(4)
    with Dispatched() as operations:
        result = augment(images, options, size=84)
        normalise_images(result, (0.5, 0.4, 0.3), (0.2, 0.2, 0.2))
        augment(images, options, size=16)  # smaller
    assert {"grid_sampler_2d", "bmm"} <= operations.names
    assert not operations.names & BETWEEN_HOST_AND_DEVICE


@pytest.mark.parametrize("n_shares", [1, 2, 4])
def test_shares_are_augmented_as_the_whole_batch_is(n_shares: int) -> None:
    images = torch.randint(
        256, (8, 12, 12, 3), dtype=torch.uint8, generator=torch.Generator().manual_seed(0)
    )
    whole = augment(images, EVERYTHING, size=10, generator=torch.Generator().manual_seed(1))
    shares = []
    for number, share in enumerate(images.chunk(n_shares)):
        generator = torch.Generator().manual_seed(1)
        augmented = augment(
            share, EVERYTHING, size=10, generator=generator, share=(number, n_shares)
        )
        shares.append(augmented)
    torch.testing.assert_close(torch.cat(shares), whole, rtol=0, atol=1e-6)


@pytest.mark.parametrize(("height", "width"), [(12, 12), (12, 16), (18, 12)])
def test_a_centre_of_the_right_size_is_cut_out_unchanged(height: int, width: int) -> None:
    images = torch.randint(
        256, (3, height, width, 3), dtype=torch.uint8, generator=torch.Generator().manual_seed(0)
    )
    top = (height - 12) // 2
    left = (width - 12) // 2
    expected = images[:, top : top + 12, left : left + 12].permute(0, 3, 1, 2) / 255
    torch.testing.assert_close(centre_crop(images, 12), expected)
    # A possible flip takes the long way.
    resampled = augment(images, Augmentation(crop="centre", flip=1e-30), size=12)
    torch.testing.assert_close(resampled, expected, rtol=0, atol=1e-5)


def test_each_image_is_turned_by_its_own_quarters() -> None:
    images = torch.rand(12, 3, 5, 5)
    turns = torch.arange(12) % 4
    results = turn_images(images, turns)
    for image, quarters, result in zip(images, turns.tolist(), results, strict=True):
        assert np.array_equal(result, np.rot90(image.numpy(), quarters, axes=(1, 2)))


@pytest.mark.parametrize(("height", "width", "size"), [(32, 32, 32), (32, 32, 84), (60, 40, 24)])
def test_the_first_views_are_the_centre_and_its_mirror_image(
    height: int, width: int, size: int
) -> None:
    images = torch.randint(
        256, (3, height, width, 3), dtype=torch.uint8, generator=torch.Generator().manual_seed(0)
    )
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
