"""EfficientNet-Lite: equal to the reference package; and the backbone "auto"."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from efficientnet_lite_pytorch import EfficientNet

from nearshot.errors import FileFormatError, MissingExtraError
from nearshot.models import build_backbone, load_backbone, recommended
from nearshot.models.efficientnet_lite import VARIANTS, weights_file
from nearshot.models.recommended import PHOTOS, SMALL, TIMM_BACKBONES, advice_on, auto_backbone

every_variant = pytest.mark.parametrize("name", VARIANTS)


def reference(name: str) -> Any:
    """The reference package's network. Its own function to load weights may run code."""
    path = weights_file(name)
    assert path is not None
    network = EfficientNet.from_name(name)
    network.load_state_dict(torch.load(path, weights_only=True))
    return network.eval()


@every_variant
def test_features_are_those_of_the_reference_package(name: str) -> None:
    backbone = load_backbone(name)
    side = VARIANTS[name].input_size
    assert not backbone.training
    assert backbone.spec.input_size == side
    images = torch.randn(2, 3, side, side, generator=torch.Generator().manual_seed(0))
    with torch.inference_mode():
        expected = reference(name).extract_features(images).mean((2, 3))
        torch.testing.assert_close(backbone(images), expected, rtol=0, atol=1e-4)
    assert expected.shape == (2, 1280)


def test_preprocessing_is_that_of_the_published_accuracy() -> None:
    """TensorFlow's: (level − 127) / 128, bicubic, and 224 of 256 pixels."""
    backbone = load_backbone("efficientnet-lite0", input_size=97)
    assert backbone(torch.zeros(1, 3, 97, 97)).shape == (1, 1280)
    assert backbone.spec.input_size == 97
    spec = backbone.spec
    assert [255 * value for value in spec.normalisation.mean] == pytest.approx([127] * 3)
    assert [255 * value for value in spec.normalisation.std] == pytest.approx([128] * 3)
    assert (spec.interpolation, spec.crop) == ("bicubic", 0.875)


def test_loading_imports_no_module_of_the_wheel() -> None:
    code = "import sys; from nearshot import load_backbone; load_backbone('efficientnet-lite0'); "
    code += "print([name for name in sys.modules if name.startswith('efficientnet')])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_a_damaged_weights_file_is_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "weights.pth"
    path.write_bytes(b"not weights")
    monkeypatch.setattr("nearshot.models.efficientnet_lite.weights_file", lambda name: path)
    with pytest.raises(FileFormatError, match="weights.pth is not the published file"):
        load_backbone("efficientnet-lite0")


def test_auto_is_the_backbone_for_photographs() -> None:
    assert auto_backbone() == PHOTOS
    assert load_backbone("auto").spec.name == PHOTOS
    photos = build_backbone(PHOTOS)
    small = load_backbone(SMALL)
    assert TIMM_BACKBONES[0] in advice_on(photos, 0.5)
    assert PHOTOS in advice_on(small, 0.5)
    assert advice_on(small, 0.9) == advice_on(len, 0.5) == ""


def test_auto_without_the_extra_is_the_small_network_and_names_the_extra(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for module in ("recommended", "efficientnet_lite"):
        monkeypatch.setattr(f"nearshot.models.{module}.weights_file", lambda name: None)
    with pytest.warns(UserWarning, match=r"\.\[photos\]"):
        assert auto_backbone() == SMALL
    with pytest.warns(UserWarning, match=SMALL):
        assert load_backbone("auto").embedding_dim == 640
    assert ".[photos]" in advice_on(load_backbone(SMALL), 0.5)
    with pytest.raises(MissingExtraError, match=r"pip install '\.\[photos\]'"):
        load_backbone(PHOTOS)


def test_the_quoted_accuracies_are_those_of_the_benchmark() -> None:
    results = Path(__file__).parents[2] / "benchmarks" / "results" / "photos.json"
    datasets = json.loads(results.read_text())["datasets"]
    for name, accuracies in recommended.ACCURACY.items():
        for dataset, accuracy in accuracies.items():
            rows = datasets[dataset]["networks"][name]
            by_settings = {(row["head"], row["features"]): row for row in rows}
            row = by_settings["ridge", "normalised"]
            assert accuracy == round(row["accuracy_percent"]["mean"], 1)
