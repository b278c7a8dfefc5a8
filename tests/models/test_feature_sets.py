"""Feature sets: their mathematics against slow loops, and what every backbone offers."""

import hashlib
import math
import sys
from collections.abc import Callable
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

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
from nearshot.models.timm import TimmBackbone

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
        {"embedding": 1280, "block": 320, "layout": 2560},
        [("embedding",), ("embedding-root",)],
        rooted=["embedding", "block"],
    )
    assert sets.dim == 1280 + 320 + 1024
    assert sets.columns("embedding") == sets.columns("embedding-root") == slice(0, 1280)
    rooted = [feature_set.name for feature_set in sets.sets if feature_set.is_rooted]
    assert rooted == ["embedding-root", "block"]
    assert sets.columns("layout") == slice(1600, 2624)


@pytest.mark.parametrize("name", [*VARIANTS, "resnet12", "resnet12-metaopt"])
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
        name = "embedding" if feature_set.columns == plain.columns else feature_set.name
        expected = named[name] if name == "embedding" else project(named[name])
        torch.testing.assert_close(values, expected)
        if feature_set.is_rooted:
            assert values.min() >= 0


def test_a_backbone_without_sets_has_its_embedding() -> None:
    backbone = build_backbone("conv4-32", input_size=16).eval()
    images = torch.randn(2, 3, 16, 16)
    assert backbone.feature_sets is None
    torch.testing.assert_close(backbone.flat_features(images), backbone(images))


class StandIn(nn.Module):
    """A model with the methods of timm's that its feature sets need."""

    feature_info = ({"num_chs": 4}, {"num_chs": 6}, {"num_chs": 8})
    num_features = 8

    def __init__(self) -> None:
        super().__init__()
        layers = [nn.Conv2d(3, 4, 3), nn.Conv2d(4, 6, 3), nn.Conv2d(6, 8, 3)]
        self.layers = nn.ModuleList(layers)

    def forward_intermediates(
        self, x: Tensor, indices: list[int], output_fmt: str
    ) -> tuple[Tensor, list[Tensor]]:
        assert output_fmt == "NCHW"
        maps = []
        for layer in self.layers:
            x = layer(x)
            maps.append(x)
        return x.tanh(), [maps[index] for index in indices]

    def forward_head(self, x: Tensor) -> Tensor:
        return x.mean((2, 3))

    def forward(self, x: Tensor) -> Tensor:
        return self.forward_head(self.forward_intermediates(x, [0], "NCHW")[0])


class OldModel(StandIn):
    """A model without intermediate features."""

    forward_intermediates = property()

    def forward(self, x: Tensor) -> Tensor:
        return self.forward_head(self.layers[0](x).repeat(1, 2, 1, 1))


@pytest.fixture
def make_timm(monkeypatch: pytest.MonkeyPatch) -> Callable[[nn.Module], TimmBackbone]:
    """Return a function that makes a backbone of a model that timm would return."""

    def make(model: nn.Module) -> TimmBackbone:
        config = {
            "mean": (0.5, 0.5, 0.5),
            "std": (0.5, 0.5, 0.5),
            "interpolation": "bicubic",
            "input_size": (3, 12, 12),
            "crop_pct": 0.9,
        }
        timm = SimpleNamespace(
            create_model=lambda name, pretrained, num_classes: model,
            data=SimpleNamespace(resolve_model_data_config=lambda model: config),
        )
        monkeypatch.setitem(sys.modules, "timm", timm)
        return TimmBackbone("timm:stand_in").eval()

    return make


def test_a_model_of_timm_offers_its_intermediate_features(
    make_timm: Callable[[nn.Module], TimmBackbone],
) -> None:
    torch.manual_seed(0)
    backbone = make_timm(StandIn())
    images = torch.randn(2, 3, 12, 12)
    sets = backbone.feature_sets
    assert sets is not None
    assert sets.dim == 8 + 6 + 8 + 36  # embedding, stages 2 and 3, pairs of channels
    assert not any(feature_set.is_rooted for feature_set in sets.sets)
    with torch.inference_mode():
        flat = backbone.flat_features(images)
        second = backbone.model.layers[1](backbone.model.layers[0](images))
        torch.testing.assert_close(flat[:, :8], backbone(images))
        torch.testing.assert_close(flat[:, sets.columns("middle")], second.mean((2, 3)))


def test_a_model_of_timm_without_intermediate_features_has_its_embedding(
    make_timm: Callable[[nn.Module], TimmBackbone],
) -> None:
    backbone = make_timm(OldModel())
    images = torch.randn(2, 3, 12, 12)
    assert backbone.feature_sets is None
    torch.testing.assert_close(backbone.flat_features(images), backbone(images))
