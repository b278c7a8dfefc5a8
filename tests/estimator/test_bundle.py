"""Bundles: a loaded classifier answers as the saved one did."""

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.torch
import torch
from PIL import Image
from tests.helpers.clouds import Brightness, clouds, conv4, tinted
from tests.helpers.layouts import encoded, picture, write_folder

from nearshot import FewShotClassifier
from nearshot.errors import FileFormatError, InputError
from nearshot.io import read_tensors
from nearshot.models import load_backbone, save_backbone
from nearshot.models.pair import BackbonePair


def save_and_load(model: FewShotClassifier, path: Path) -> FewShotClassifier:
    model.save(path)
    return FewShotClassifier.load(path)


@pytest.mark.parametrize(
    "parameters",
    [
        {},
        {"classifier": "soft", "centre": "support", "reject_rate": np.float64(0.1)},
        {"classifier": "knn", "n_neighbors": np.int64(3), "normalise": False, "temperature": 0.5},
        {"centre": np.full(16, 0.25), "reject_rate": 0.05, "reject_label": "weiß nicht"},
    ],
)
def test_answers_and_parameters_survive(parameters: dict[str, Any], tmp_path: Path) -> None:
    drawn = clouds(0)
    model = FewShotClassifier(**parameters).fit(drawn.support, drawn.labels)
    loaded = save_and_load(model, tmp_path / "model.safetensors")
    images = np.concatenate([drawn.query, drawn.strangers])
    np.testing.assert_array_equal(loaded.predict(images), model.predict(images))
    np.testing.assert_array_equal(loaded.predict_proba(images), model.predict_proba(images))
    np.testing.assert_array_equal(loaded.novelty(images), model.novelty(images))
    assert loaded.explain(images) == model.explain(images)
    assert loaded.predict(images).dtype == model.predict(images).dtype
    expected = {**model.get_params(), "classifier": parameters.get("classifier", "ridge")}
    for name, value in expected.items():
        np.testing.assert_array_equal(loaded.get_params()[name], value)
    more = clouds(1)
    for learner in (model, loaded):
        learner.partial_fit(more.support, np.char.add("new ", more.labels)).forget("class 1")
    np.testing.assert_array_equal(loaded.predict_proba(images), model.predict_proba(images))


@pytest.mark.parametrize(
    "labels",
    [[0, 1], [True, False], [0.0, 1.0], ["a", "ß"], np.array(["x", "yy"], dtype=object)],
    ids=str,
)
def test_labels_of_every_type(labels: Any, tmp_path: Path) -> None:
    features = np.array([[1.0, 0.0], [0.0, 1.0]])
    model = FewShotClassifier().fit(features, labels)
    loaded = save_and_load(model, tmp_path / "model.safetensors")
    assert loaded.predict(features).tolist() == list(labels)


@pytest.mark.parametrize("n_views", [1, np.int64(3)])
def test_a_backbone_is_in_the_file(n_views: int, tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    weights = tmp_path / "weights.safetensors"
    backbone = conv4()
    save_backbone(backbone, weights, training_mean=torch.linspace(0, 1, 32), dtype=torch.float16)
    images = np.stack([picture(seed, 16) for seed in range(8)])
    model = FewShotClassifier(weights, reject_rate=0.1, reject_label=-1, n_views=n_views)
    model.fit(images, np.arange(8) % 2).save(path)
    expected = model.predict_proba(images)
    weights.unlink()  # nothing else is needed
    loaded = FewShotClassifier.load(path, device="cpu", cache_dir=tmp_path / "cache")
    np.testing.assert_array_equal(loaded.predict_proba(images), expected)
    np.testing.assert_array_equal(loaded.predict_proba(images), expected)  # from the cache
    assert loaded.centre_ is not None
    assert loaded.embedder_ is not None
    assert loaded.embedder_.n_views == n_views
    assert loaded.embedder_.backbone is loaded.backbone  # not copied
    with pytest.raises(InputError, match="backbone must be None"):
        FewShotClassifier.load(path, backbone=backbone)


def test_a_backbone_that_is_a_function_is_given_to_load(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    images = np.stack([picture(seed, 16) // (1 + seed % 2 * 4) for seed in range(6)])
    model = FewShotClassifier(Brightness()).fit(images, np.arange(6) % 2)
    model.save(path)
    loaded = FewShotClassifier.load(path, backbone=Brightness())
    np.testing.assert_array_equal(loaded.predict_proba(images), model.predict_proba(images))
    with pytest.raises(InputError, match="backbone is required"):
        FewShotClassifier.load(path)
    with pytest.raises(InputError, match=r"\(6, 2\) .*got \(6, 32\)"):
        FewShotClassifier.load(path, backbone=conv4()).predict(images)


def test_paths_of_images_are_relative_and_found_again(tmp_path: Path) -> None:
    """So that the file tells nothing of the disk, and `partial_fit` still knows its images."""
    members = {f"{name}/01.png": encoded(picture(code, 16)) for code, name in enumerate("ab")}
    folder = write_folder(tmp_path / "home" / "eve" / "flowers", members)
    paths = sorted(str(path) for path in folder.rglob("*.png"))
    model = FewShotClassifier(conv4()).fit(paths, ["a", "b"])
    path = tmp_path / "model.safetensors"
    for image_folder, expected in (
        (None, ["a/01.png", "b/01.png"]),
        (folder, ["a/01.png", "b/01.png"]),
        (folder.parent, ["flowers/a/01.png", "flowers/b/01.png"]),
        (folder / "c", ["../a/01.png", "../b/01.png"]),
    ):
        model.save(path, image_folder=image_folder)
        assert b"eve" not in path.read_bytes()
        assert FewShotClassifier.load(path).support_names_ == expected
    model.save(path)
    moved = folder.rename(tmp_path / "moved")
    loaded = FewShotClassifier.load(path, image_folder=moved)
    assert loaded.support_names_ == [str(moved / "a/01.png"), str(moved / "b/01.png")]
    with pytest.warns(UserWarning, match="in two classes"):
        loaded.partial_fit([encoded_again(moved / "a/01.png")], ["b"])


def encoded_again(path: Path) -> str:
    """Return another file with the same pixels."""
    copy = path.with_name("copy.png")
    Image.open(path).save(copy, compress_level=0)
    return str(copy)


def test_a_committed_file_opens_and_answers_the_same() -> None:
    folder = Path(__file__).parent / "data"
    answers = json.loads((folder / "answers-3.json").read_text())["features"]
    model = FewShotClassifier.load(folder / "features-3.safetensors")
    assert model.predict(answers["query"]).tolist() == answers["labels"]
    np.testing.assert_allclose(
        model.predict_proba(answers["query"]), answers["probabilities"], atol=1e-12
    )
    np.testing.assert_allclose(model.novelty(answers["query"]), answers["novelty"], rtol=1e-12)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    drawn = clouds(0)
    model = FewShotClassifier(centre="support").fit(drawn.support, drawn.labels)
    model.save(tmp_path / "model.safetensors")
    return tmp_path / "model.safetensors"


def rewrite(
    path: Path,
    *,
    description: dict[str, Any] | None = None,
    without: str = "",
    tensors: dict[str, torch.Tensor] | None = None,
    parameters: dict[str, Any] | None = None,
) -> None:
    """Change entries of a file's description, or its tensors, or remove one of either."""
    metadata, content = read_tensors(path)
    content |= tensors or {}
    entries = json.loads(metadata["classifier"]) | (description or {})
    if parameters:
        entries["parameters"] |= parameters
    entries.pop(without, None)
    content.pop(without, None)
    metadata["classifier"] = json.dumps(entries)
    path.write_bytes(safetensors.torch.save(content, metadata))


KINDS = (torch.bool, torch.complex64, torch.int64, torch.bfloat16, torch.float16)


def anything(*values: Any) -> tuple[Any, ...]:
    return values


BAD = anything(0, -1, math.nan, math.inf, "x", None, [])


@pytest.mark.parametrize(
    "changes",
    [
        {"without": "classes"},
        {"without": "support_features"},
        {"description": {"classes": ["a", "b"]}},
        {"description": {"classes_type": "O"}},
        {"description": {"classes_type": "<U500000000"}},
        {"description": {"names": []}},
        {"description": {"parameters": 3}},
        {"description": {"parameters": {}}},
        {"description": {"backbone": {"name": "conv4"}}},
        {"tensors": {"support_labels": torch.zeros(25, dtype=torch.long)}},
        {"tensors": {"support_labels": torch.zeros(25)}},
        *({"tensors": {"support_features": torch.ones(25, 16, dtype=kind)}} for kind in KINDS),
        {"tensors": {"support_features": torch.ones(25)}},
        {"tensors": {"support_features": torch.ones(25, 0)}},
        {"tensors": {"support_features": torch.full((25, 16), torch.nan)}},
        {"tensors": {"strays": torch.ones(2, 16)}},
        {"tensors": {"strays": torch.ones(0, 15)}},
        {"tensors": {"centre": torch.ones(15)}},
        {"tensors": {"centre": torch.full((16,), torch.inf)}},
        *({"description": {"temperatures": {"values": [v], "weights": [1]}}} for v in BAD),
        *({"description": {"temperatures": {"values": [1], "weights": [v]}}} for v in BAD),
        *({"description": {"threshold": v}} for v in anything(math.nan, -1, "1", [], {})),
        *({"parameters": {"temperature": v}} for v in BAD),
        *({"parameters": {"n_neighbors": v}} for v in anything(0, -1, 1.5, "x", [], True)),
        *({"parameters": {"n_views": v}} for v in anything(0, -1, 1.5, "x", [], True, 10**12)),
        *({"parameters": {"classifier": v}} for v in anything("x", 1, None, [], {})),
        *({"parameters": {"centre": v}} for v in anything("x", 1, [], [1.0], {})),
        *({"parameters": {"normalise": v}} for v in anything("x", 1, None, [])),
        *({"parameters": {"reject_rate": v}} for v in anything(1, -0.1, math.nan, "x", None, [])),
        *({"parameters": {"reject_label": v}} for v in anything(None, [], {})),
        {"parameters": {"reject_label": "class 1", "reject_rate": 0.1}},
        {"description": {"classes": ["class 0", "class 0", "class 2", "class 3", "class 4"]}},
        {"description": {"classes": ["b", "a", "c", "d", "e"]}},
        {"description": {"names": [1] * 25}},
        {"description": {"groups": "x" * 24}},
        {"description": {"feature_names": ["x"]}},
        {"description": {"stray_names": ["x"]}},
        {"description": {"mixture": [{"candidate": 0, "weight": 1, "temperatures": {}}]}},
    ],
)
def test_a_damaged_file_is_an_error(changes: dict[str, Any], file: Path) -> None:
    rewrite(file, **changes)
    with pytest.raises(FileFormatError, match="is damaged"):
        FewShotClassifier.load(file)


def test_json_nested_too_deep_is_an_error(file: Path) -> None:
    metadata, content = read_tensors(file)
    metadata["classifier"] = "[" * 100_000
    file.write_bytes(safetensors.torch.save(content, metadata))
    with pytest.raises(FileFormatError, match="is damaged"):
        FewShotClassifier.load(file)


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_fitting_checks_the_same(value: float) -> None:
    """A function may return anything."""

    def backbone(images: Any) -> Any:
        return np.full((len(images), 3), value)

    images = [picture(seed, 16) for seed in range(4)]
    with pytest.raises(InputError, match="finite"):
        FewShotClassifier(backbone).fit(images, [0, 0, 1, 1])


def test_a_missing_file_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="missing.safetensors"):
        FewShotClassifier.load(tmp_path / "missing.safetensors")


def test_files_of_other_kinds_and_versions_are_errors(file: Path, tmp_path: Path) -> None:
    save_backbone(conv4(), tmp_path / "weights.safetensors")
    weights = (tmp_path / "weights.safetensors").read_bytes()
    bundle = file.read_bytes()
    half = bundle[: len(bundle) // 2]
    # Without its checksum, which would not match.
    other_version = bundle.replace(b'"version":"3"', b'"version":"9"').replace(
        b'"crc32"', b'"other"'
    )
    for content, message in (
        (half, "not a safetensors file, or is damaged"),
        (weights, "not a classifier"),
        (other_version, "version '9'"),
    ):
        file.write_bytes(content)
        with pytest.raises(FileFormatError, match=message):
            FewShotClassifier.load(file)


def test_two_networks_are_in_the_file(tmp_path: Path) -> None:
    first = load_backbone("efficientnet-lite0", input_size=64)
    first.spec = replace(first.spec, look_alike_cosine=None)
    networks = BackbonePair(first, conv4())
    photos = [tinted(seed, seed % 2) for seed in range(8)]
    labels = ["red" if seed % 2 == 0 else "green" for seed in range(8)]
    model = FewShotClassifier(networks, device="cpu").fit(photos, labels)
    model.save(tmp_path / "pair.safetensors")
    again = FewShotClassifier.load(tmp_path / "pair.safetensors", device="cpu")
    queries = [tinted(100 + seed, seed % 2) for seed in range(4)]
    np.testing.assert_array_equal(again.predict_proba(queries), model.predict_proba(queries))
    assert again.fitted_state().feature_sets == model.fitted_state().feature_sets
    embedder = again.fitted_state().embedder
    assert embedder is not None
    assert isinstance(embedder.backbone, BackbonePair)
    assert [network.spec.input_size for network in embedder.networks] == [64, 16]
    again.partial_fit([tinted(50, 0)], ["red"])
