"""Augmentation against Pillow, picture by picture, and against the distribution's own definition."""

from __future__ import annotations

import math
import random

import numpy as np
import pytest
import torch
from layouts import picture
from PIL import Image

from nearshot.data.augment import Augmentation, augment, centre_crop, cut, normalise_images, random_boxes
from nearshot.errors import InputError

CPU = torch.device("cpu")


def smooth(n: int, side: int = 32, width: int | None = None) -> torch.Tensor:
    """Pictures without sharp edges, on which interpolation is not a matter of taste."""
    width = width or side
    y, x = np.mgrid[0:side, 0:width] / side
    planes = [np.stack([np.sin(3 * x + i + c) * np.cos(2 * y - c) for c in range(3)], axis=2) for i in range(n)]
    return torch.from_numpy((127.5 + 120 * np.stack(planes)).astype(np.uint8))


def test_a_crop_is_pillows_crop_resized() -> None:
    images = smooth(20)
    boxes = random_boxes(20, 32, 32, Augmentation(), CPU, torch.Generator().manual_seed(0))
    flips = torch.arange(20) % 2 == 0
    ours = cut(images.permute(0, 3, 1, 2).float() / 255, boxes, flips, 84)
    for image, (top, left, height, width), flip, result in zip(images, boxes.tolist(), flips, ours, strict=True):
        crop = Image.fromarray(image.numpy()).crop((int(left), int(top), int(left + width), int(top + height)))
        expected = np.asarray(crop.resize((84, 84), Image.Resampling.BILINEAR))
        expected = expected[:, ::-1] if flip else expected
        difference = np.abs(result.permute(1, 2, 0).numpy() * 255 - expected)
        assert difference.max() < 1.01  # Pillow rounds to whole values


def torchvisions_box(generator: random.Random, height: int, width: int, a: Augmentation) -> tuple[int, int, int, int]:
    """RandomResizedCrop.get_params, from its documentation."""
    for _ in range(10):
        area = height * width * generator.uniform(*a.scale)
        ratio = math.exp(generator.uniform(math.log(a.ratio[0]), math.log(a.ratio[1])))
        w, h = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
        if 0 < w <= width and 0 < h <= height:
            return generator.randint(0, height - h), generator.randint(0, width - w), h, w
    ratio = width / height
    w, h = width, height
    if ratio < a.ratio[0]:
        h = round(w / a.ratio[0])
    elif ratio > a.ratio[1]:
        w = round(h * a.ratio[1])
    return (height - h) // 2, (width - w) // 2, h, w


@pytest.mark.parametrize(("height", "width"), [(32, 32), (84, 84), (20, 100), (100, 20)])
def test_boxes_have_the_usual_distribution(height: int, width: int) -> None:
    n = 20_000
    ours = random_boxes(n, height, width, Augmentation(), CPU, torch.Generator().manual_seed(0)).numpy()
    generator = random.Random(0)  # noqa: S311
    theirs = np.array([torchvisions_box(generator, height, width, Augmentation()) for _ in range(n)])
    top, left, h, w = ours.T
    assert (top >= 0).all()
    assert (left >= 0).all()
    assert (top + h <= height).all()
    assert (left + w <= width).all()
    for column in range(4):
        first, second = np.sort(ours[:, column]), np.sort(theirs[:, column])
        points = np.union1d(first, second)
        gaps = np.searchsorted(first, points, "right") - np.searchsorted(second, points, "right")
        assert np.abs(gaps).max() / n < 1.95 * math.sqrt(2 / n)  # Kolmogorov and Smirnov at 0.1 %
    areas = [(rows[:, 2] * rows[:, 3] / (height * width)).mean() for rows in (ours, theirs)]
    assert areas[0] == pytest.approx(areas[1], rel=0.02)


def test_half_of_the_images_are_flipped() -> None:
    images = smooth(1)[[0] * 2000]
    result = augment(images, Augmentation(crop="centre"), size=32, generator=torch.Generator().manual_seed(0))
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
    batches = [augment(images, options, size=84, generator=torch.Generator().manual_seed(3)) for _ in range(2)]
    assert torch.equal(*batches)
    assert batches[0].shape == (8, 3, 84, 84)
    assert batches[0].is_contiguous(memory_format=torch.channels_last)
    assert 0 <= float(batches[0].min()) <= float(batches[0].max()) <= 1
    other = augment(images, options, size=84, generator=torch.Generator().manual_seed(4))
    assert not torch.equal(batches[0], other)


def test_each_image_draws_its_own() -> None:
    images = torch.from_numpy(picture(0))[None].expand(16, -1, -1, -1)
    result = augment(images, Augmentation(), size=32, generator=torch.Generator().manual_seed(0))
    assert len({row.numpy().tobytes() for row in result}) == 16


@pytest.mark.parametrize("name", ["brightness", "contrast", "saturation"])
def test_colours_vary_as_pillows_do(name: str) -> None:
    from PIL import ImageEnhance

    enhance = {
        "brightness": ImageEnhance.Brightness,
        "contrast": ImageEnhance.Contrast,
        "saturation": ImageEnhance.Color,
    }[name]
    image = smooth(1)
    options = Augmentation(crop="centre", flip=0.0, **{name: 0.5})  # type: ignore[arg-type]
    result = augment(image.expand(40, -1, -1, -1), options, size=32, generator=torch.Generator().manual_seed(0))
    found = []
    for row in result:
        pixels = row.permute(1, 2, 0).numpy() * 255
        candidates = np.linspace(0.5, 1.5, 201)
        errors = [
            np.abs(np.asarray(enhance(Image.fromarray(image[0].numpy())).enhance(f), dtype=float) - pixels).mean()
            for f in candidates
        ]
        assert min(errors) < 1.5
        found.append(candidates[int(np.argmin(errors))])
    assert min(found) < 0.65
    assert max(found) > 1.35


def test_evaluation_takes_the_centre() -> None:
    image = smooth(1, 40, 80)
    ours = centre_crop(image, 40)[0].permute(1, 2, 0)
    torch.testing.assert_close(ours, image[0, :, 20:60].float() / 255)


def test_normalisation() -> None:
    images = torch.rand(2, 3, 4, 4)
    mean, std = (0.1, 0.2, 0.3), (0.5, 0.6, 0.7)
    result = normalise_images(images, mean, std)
    for c in range(3):
        torch.testing.assert_close(result[:, c], (images[:, c] - mean[c]) / std[c])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"crop": "corner"}, "crop must be 'random' or 'centre'"),
        ({"scale": (0.0, 1.0)}, "scale must be a range inside"),
        ({"ratio": (2.0, 1.0)}, "ratio must be a range"),
        ({"flip": 2.0}, "flip must be a probability"),
        ({"contrast": -1.0}, "contrast must be between 0 and 1"),
    ],
)
def test_impossible_augmentations(options: dict[str, float], message: str) -> None:
    with pytest.raises(InputError, match=message):
        Augmentation(**options)  # type: ignore[arg-type]


def test_images_as_a_store_has_them() -> None:
    with pytest.raises(InputError, match=r"uint8 \(image, height, width, 3\), as a store has them, not torch.float32"):
        augment(torch.zeros(2, 8, 8, 3), Augmentation(), size=8)
