"""One file to deploy: what is loaded is what was saved, and nothing else is."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.torch
import torch
from tests.helpers.clouds import Brightness, clouds, conv4
from tests.helpers.layouts import picture

from nearshot import FewShotClassifier
from nearshot.errors import FileFormatError, InputError
from nearshot.io import read_tensors
from nearshot.models import save_backbone


def saved_again(model: FewShotClassifier, path: Path, **options: Any) -> FewShotClassifier:
    model.save(path)
    return FewShotClassifier.load(path, **options)


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"classifier": "soft", "centre": "support", "unknown_rate": np.float64(0.1)},
        {"classifier": "knn", "n_neighbors": np.int64(3), "normalise": False, "temperature": 0.5},
        {"centre": np.full(16, 0.25), "unknown_rate": 0.05, "unknown_label": "weiß nicht"},
    ],
)
def test_what_is_loaded_is_what_was_saved(settings: dict[str, Any], tmp_path: Path) -> None:
    drawn = clouds(0)
    model = FewShotClassifier(**settings).fit(drawn.support, drawn.labels)
    again = saved_again(model, tmp_path / "model.safetensors")
    pictures = np.concatenate([drawn.query, drawn.strangers])
    for ask in ("predict", "predict_proba", "novelty"):
        np.testing.assert_array_equal(getattr(again, ask)(pictures), getattr(model, ask)(pictures))
    assert again.explain(pictures) == model.explain(pictures)
    assert again.predict(pictures).dtype == model.predict(pictures).dtype
    for name, value in (
        model.get_params() | {"classifier": settings.get("classifier", "ridge")}
    ).items():
        np.testing.assert_array_equal(again.get_params()[name], value)
    more = clouds(1)  # and it goes on learning
    for one in (model, again):
        one.partial_fit(more.support, np.char.add("new ", more.labels)).forget("class 1")
    np.testing.assert_array_equal(again.predict_proba(pictures), model.predict_proba(pictures))


@pytest.mark.parametrize(
    "labels",
    [[0, 1], [True, False], [0.0, 1.0], ["a", "ß"], np.array(["x", "yy"], dtype=object)],
    ids=str,
)
def test_labels_of_every_type(labels: Any, tmp_path: Path) -> None:
    features = np.array([[1.0, 0.0], [0.0, 1.0]])
    again = saved_again(FewShotClassifier().fit(features, labels), tmp_path / "model.safetensors")
    assert again.predict(features).tolist() == list(labels)


@pytest.mark.parametrize("n_views", [1, np.int64(3)])
def test_a_backbone_is_in_the_file(n_views: int, tmp_path: Path) -> None:
    weights, backbone = tmp_path / "weights.safetensors", conv4()
    save_backbone(backbone, weights, training_mean=torch.linspace(0, 1, 32), dtype=torch.float16)
    pictures = np.stack([picture(seed, 16) for seed in range(8)])
    model = FewShotClassifier(weights, unknown_rate=0.1, unknown_label=-1, n_views=n_views)
    model.fit(pictures, np.arange(8) % 2).save(tmp_path / "model.safetensors")
    expected = model.predict_proba(pictures)
    weights.unlink()  # nothing else is needed
    again = FewShotClassifier.load(
        tmp_path / "model.safetensors", device="cpu", cache_dir=tmp_path / "cache"
    )
    np.testing.assert_array_equal(again.predict_proba(pictures), expected)
    np.testing.assert_array_equal(again.predict_proba(pictures), expected)  # from the cache
    assert again.centre_ is not None
    assert again.embedder_ is not None
    assert again.embedder_.n_views == n_views
    assert again.embedder_.backbone is again.backbone  # not copied
    with pytest.raises(InputError, match="backbone must be None"):
        FewShotClassifier.load(tmp_path / "model.safetensors", backbone=backbone)


def test_a_function_is_given_again(tmp_path: Path) -> None:
    pictures, path = (
        np.stack([picture(seed, 16) // (1 + seed % 2 * 4) for seed in range(6)]),
        tmp_path / "m",
    )
    model = FewShotClassifier(Brightness()).fit(pictures, np.arange(6) % 2)
    again = saved_again(model, path, backbone=Brightness())
    np.testing.assert_array_equal(again.predict_proba(pictures), model.predict_proba(pictures))
    with pytest.raises(InputError, match="backbone is required"):
        FewShotClassifier.load(path)
    with pytest.raises(InputError, match=r"\(6, 2\) .*got \(6, 32\)"):
        FewShotClassifier.load(path, backbone=conv4()).predict(pictures)


def test_a_committed_file_opens_and_answers_the_same() -> None:
    folder = Path(__file__).parent / "data"
    answers = json.loads((folder / "answers-2.json").read_text())["features"]
    model = FewShotClassifier.load(folder / "features-2.safetensors")
    assert model.predict(answers["query"]).tolist() == answers["labels"]
    np.testing.assert_allclose(
        model.predict_proba(answers["query"]), answers["probabilities"], atol=1e-12
    )
    np.testing.assert_allclose(model.novelty(answers["query"]), answers["novelty"], rtol=1e-12)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    drawn = clouds(0)
    FewShotClassifier(centre="support").fit(drawn.support, drawn.labels).save(
        tmp_path / "model.safetensors"
    )
    return tmp_path / "model.safetensors"


def rewritten(path: Path, *, tensors: dict[str, Any] | None = None, **described: Any) -> None:
    """Change a file: a tensor or an entry of its description; None removes it."""
    metadata, content = read_tensors(path)
    content |= tensors or {}
    values = json.loads(metadata["classifier"]) | described
    metadata["classifier"] = json.dumps(
        {key: value for key, value in values.items() if value != "gone"}
    )
    path.write_bytes(
        safetensors.torch.save({k: v for k, v in content.items() if v is not None}, metadata)
    )


@pytest.mark.parametrize(
    "damage",
    [
        {"classes": "gone"},
        {"classes": ["a", "b"]},
        {"classes_type": "O"},
        {"classes_type": "<U500000000"},
        {"names": []},
        {"parameters": 3},
        {"backbone": {"name": "conv4"}},
        {"tensors": {"support_features": None}},
        {"tensors": {"support_labels": torch.zeros(25, dtype=torch.long)}},
    ],
    ids=str,
)
def test_a_damaged_file_is_refused(damage: dict[str, Any], file: Path) -> None:
    rewritten(file, **damage)
    with pytest.raises(FileFormatError, match="is damaged"):
        FewShotClassifier.load(file)


def test_what_is_not_a_classifier(file: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="There is no classifier file"):
        FewShotClassifier.load(tmp_path / "missing.safetensors")
    save_backbone(conv4(), tmp_path / "weights.safetensors")
    whole = file.read_bytes()
    for content, message in (
        (whole[: len(whole) // 2], "not a safetensors file, or is damaged"),
        ((tmp_path / "weights.safetensors").read_bytes(), "not a classifier saved by nearshot"),
        (
            whole.replace(b'"version":"2"', b'"version":"9"').replace(b'"crc32"', b'"other"'),
            "version '9'",
        ),
    ):
        file.write_bytes(content)
        with pytest.raises(FileFormatError, match=message):
            FewShotClassifier.load(file)
