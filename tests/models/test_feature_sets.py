"""Feature sets: their mathematics against slow loops, and what every backbone offers."""

import hashlib
import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from nearshot.models import build_backbone
from nearshot.models.efficientnet_lite import VARIANTS
from nearshot.models.feature_sets import (
    PROJECTED_DIM,
    layout,
    pool,
    project,
    second_order,
    side_by_side,
)

MOST_BYTES = 12_000  # of a photo in the cache


def maps(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


@pytest.mark.parametrize(
    ("height", "width", "grid"), [(28, 28, 8), (7, 9, 4), (14, 14, 1), (3, 5, 8)]
)
def test_pooling_is_that_of_pytorch(height: int, width: int, grid: int) -> None:
    values = maps(2, 3, height, width)
    torch.testing.assert_close(pool(values, grid), F.adaptive_avg_pool2d(values, grid))


def test_a_layout_is_relative_to_all_places_and_to_the_energy_around_it() -> None:
    values = maps(1, 3, 8, 8)
    cells = values[0].tolist()
    centred = []
    for channel in cells:
        mean = sum(sum(row) for row in channel) / 64
        centred.append([[value - mean for value in row] for row in channel])

    def energy(row: int, column: int) -> float:
        row = min(max(row, 0), 7)  # beyond an edge is the place at the edge
        column = min(max(column, 0), 7)
        return sum(float(channel[row][column]) ** 2 for channel in centred)

    expected = torch.zeros(1, 3, 8, 8, dtype=torch.float64)
    for row in range(8):
        for column in range(8):
            around = [energy(row + y, column + x) for y in (-1, 0, 1) for x in (-1, 0, 1)]
            contrast = math.sqrt(sum(around) / 9) + 1e-3
            for number, channel in enumerate(centred):
                expected[0, number, row, column] = channel[row][column] / contrast
    torch.testing.assert_close(layout(values), expected)


def test_a_layout_does_not_depend_on_brightness_or_contrast() -> None:
    values = maps(2, 3, 28, 28)
    torch.testing.assert_close(layout(1000 * values + 7), layout(1000 * values), rtol=1e-6, atol=0)
    torch.testing.assert_close(layout(1000 * values), layout(500 * values), rtol=1e-4, atol=1e-4)
    assert layout(torch.ones(1, 2, 9, 9)).abs().max() < 1e-3


def test_second_order_features_are_signed_roots_of_covariances() -> None:
    values = maps(1, 4, 3, 5)
    rows = values[0].flatten(1).numpy()
    covariances = np.cov(rows, bias=True)
    expected = [
        math.copysign(math.sqrt(abs(covariances[i, j])), covariances[i, j])
        for i in range(4)
        for j in range(i, 4)
    ]
    np.testing.assert_allclose(second_order(values)[0], expected)


def test_a_projection_adds_up_signed_values() -> None:
    """By the bits of a published hash function: the same on every machine, in every version."""
    values = maps(3, 10)
    digest = hashlib.shake_128(b"nearshot feature sets").digest(2)
    bits = f"{digest[0]:08b}{digest[1]:08b}"
    expected = torch.zeros(3, 4, dtype=torch.float64)
    for column in range(10):
        sign = 1 if bits[column] == "1" else -1
        expected[:, column % 4] += sign * values[:, column]
    torch.testing.assert_close(project(values, dim=4), expected)
    assert project(values, dim=10) is values


def test_a_projection_keeps_products() -> None:
    """The error of a cosine is about 1/√dim."""
    values = F.normalize(maps(40, 6328))
    projected = project(values)
    assert projected.shape == (40, PROJECTED_DIM)
    errors = projected @ projected.T - values @ values.T
    assert errors.square().mean().sqrt() < 2 / math.sqrt(PROJECTED_DIM)
    assert errors.mean().abs() < 0.005


def test_sets_side_by_side() -> None:
    sets = side_by_side(
        {"embedding": 1280, "block": 320, "layout": 2560}, [("embedding",), ("root",)], root="root"
    )
    assert sets.dim == 1280 + 320 + 1024
    assert sets.columns("embedding") == sets.columns("root") == slice(0, 1280)
    assert sets["root"].is_rooted
    assert not sets["layout"].is_rooted
    assert sets.columns("layout") == slice(1600, 2624)


@pytest.mark.parametrize("name", VARIANTS)
def test_every_backbone_offers_its_embedding_and_what_it_describes(name: str) -> None:
    torch.manual_seed(0)
    backbone = build_backbone(name, input_size=48).eval()
    sets = backbone.feature_sets
    assert sets is not None
    assert 2 * sets.dim < MOST_BYTES
    images = torch.randn(2, 3, 48, 48)
    with torch.inference_mode():
        flat = backbone.flat_features(images)
        named = backbone.named_features(images)
        embedding = backbone(images)
    assert flat.shape == (2, sets.dim)
    (plain,) = sets.plain
    torch.testing.assert_close(flat[:, plain.columns], embedding)
    for feature_set in sets.sets:
        values = flat[:, feature_set.columns]
        assert values.std(0).min() >= 0
        if feature_set.is_rooted:
            assert values.min() >= 0
        else:
            expected = named[feature_set.name]
            if feature_set is not plain:
                expected = project(expected)
            torch.testing.assert_close(values, expected)
