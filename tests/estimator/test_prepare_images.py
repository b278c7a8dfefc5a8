"""Images for a network that is called by hand, and what a network of one's own is fed."""

import logging
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

from nearshot import load_backbone, prepare_images
from nearshot.errors import NearshotError
from nearshot.estimator import Embedder

RNG = np.random.default_rng(0)
PIXELS = RNG.integers(0, 256, (70, 100, 3), np.uint8)


def test_images_are_prepared_as_the_embedder_does(tmp_path: Path) -> None:
    backbone = load_backbone("resnet12-nca-cifar-fs")
    Image.fromarray(PIXELS).save(tmp_path / "photo.png")
    images = prepare_images([PIXELS, tmp_path / "photo.png", Image.fromarray(PIXELS)], backbone)
    with torch.inference_mode():
        features = backbone(images)
    expected = torch.from_numpy(Embedder(backbone, device="cpu")([PIXELS]))
    for feature in features:
        torch.testing.assert_close(feature[None], expected, rtol=1e-3, atol=1e-4)
    with pytest.raises(NearshotError, match="missing"):
        prepare_images([tmp_path / "missing.png"], backbone)


def test_a_backbone_says_what_it_expects() -> None:
    backbone = load_backbone("resnet12-nca-cifar-fs")
    shown = repr(backbone)
    for value in (84, *backbone.spec.normalisation.mean, *backbone.spec.normalisation.std):
        assert str(value) in shown


class Means(nn.Module):
    """The mean of each channel, of images of 8×8 pixels."""

    input_size = 8

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return images.mean((2, 3))


def test_a_network_of_ones_own_may_say_how_images_are_normalised(
    caplog: pytest.LogCaptureFixture,
) -> None:
    pixels = np.full((8, 8, 3), 255, np.uint8)
    network = Means().eval()
    with caplog.at_level(logging.WARNING):
        as_for_imagenet = Embedder(network, device="cpu")([pixels])
    assert "ImageNet" in caplog.text
    assert as_for_imagenet[0, 0] == pytest.approx((1 - 0.485) / 0.229, rel=1e-4)
    caplog.clear()
    network.normalisation = ((0.5, 0.5, 0.5), (0.25, 0.25, 0.25))  # type: ignore[assignment]
    with caplog.at_level(logging.WARNING):
        features = Embedder(network, device="cpu")([pixels])
    np.testing.assert_allclose(features, np.full((1, 3), 2.0), rtol=1e-5)
    assert not caplog.text
