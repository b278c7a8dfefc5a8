"""A classifier of one's own: one entry in `CLASSIFIERS` gives its answers everywhere."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from clouds import Clouds, clouds
from torch import Tensor

from nearshot import FewShotClassifier
from nearshot.errors import InputError
from nearshot.estimator import export_onnx
from nearshot.evaluation.classifiers import CLASSIFIERS, Classifier, best_of_class


def farthest_of_class(similarities: Tensor, class_sizes: Tensor) -> Tensor:
    """Score a class by its farthest image."""
    return -best_of_class(-similarities, class_sizes)


OWN = {"nearest": best_of_class, "farthest": farthest_of_class}


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> Clouds:
    for name, scores in OWN.items():
        monkeypatch.setitem(CLASSIFIERS, name, Classifier(name, scores))
    drawn = clouds(0, n_shot=6, spread=1.3)
    rows = np.flatnonzero(np.arange(30) % 7 != 3)  # classes of different sizes, in no order
    order = np.random.default_rng(0).permutation(rows)
    return drawn._replace(support=drawn.support[order], labels=drawn.labels[order])


def loop(name: str, drawn: Clouds) -> list[str]:
    """The answers by a slow loop."""
    choose = {"nearest": min, "farthest": max}[name]
    answers = []
    for query in drawn.query:
        distances: dict[str, float] = {}
        for image, label in zip(drawn.support, drawn.labels, strict=True):
            between = float(np.linalg.norm(image / np.linalg.norm(image) - query / np.linalg.norm(query)))
            distances[str(label)] = choose(distances.get(str(label), between), between)
        answers.append(min(distances, key=distances.__getitem__))
    return answers


@pytest.mark.parametrize("name", OWN)
def test_its_answers_are_its_own(name: str, drawn: Clouds, tmp_path: Path) -> None:
    expected = loop(name, drawn)
    model = FewShotClassifier(classifier=name, unknown_rate=0.01).fit(drawn.support, drawn.labels)
    for other in {"centroid", "soft", "knn", *OWN} - {name}:
        assert FewShotClassifier(classifier=other).fit(drawn.support, drawn.labels).predict(drawn.query).tolist() != (
            expected
        )
    probabilities = model.predict_proba(drawn.query)
    assert model.classes_[probabilities.argmax(1)].tolist() == expected
    np.testing.assert_allclose(probabilities.sum(1), 1)
    known = model.predict(drawn.query)
    assert (known[known != "unknown"] == np.array(expected)[known != "unknown"]).all()
    assert [one.nearest for one in model.explain(drawn.query)] == expected
    assert 0.2 < model.estimate_accuracy().mean < 1
    model.save(tmp_path / "model.safetensors")
    again = FewShotClassifier.load(tmp_path / "model.safetensors")
    np.testing.assert_array_equal(again.predict_proba(drawn.query), probabilities)


@pytest.mark.parametrize("name", OWN)
def test_its_onnx_file_gives_its_answers(name: str, drawn: Clouds, tmp_path: Path) -> None:
    onnxruntime = pytest.importorskip("onnxruntime")
    model = FewShotClassifier(classifier=name).fit(drawn.support, drawn.labels)
    export_onnx(model, tmp_path / "model.onnx")
    session = onnxruntime.InferenceSession(tmp_path / "model.onnx")
    labels, probabilities = session.run(["label", "probabilities"], {"features": drawn.query.astype(np.float32)})
    assert labels.tolist() == loop(name, drawn)
    np.testing.assert_allclose(probabilities, model.predict_proba(drawn.query), atol=1e-5)


def test_what_cannot_be_exported_or_scored_is_refused(
    drawn: Clouds, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("onnxscript")

    def by_numpy(similarities: Tensor, class_sizes: Tensor) -> Tensor:
        groups = np.split(similarities.numpy(), class_sizes.cumsum(0).numpy()[:-1], axis=-1)
        return torch.from_numpy(np.stack([group.max(-1) for group in groups], -1))

    def wrong_shape(similarities: Tensor, class_sizes: Tensor) -> Tensor:
        return similarities

    monkeypatch.setitem(CLASSIFIERS, "by numpy", Classifier("by numpy", by_numpy))
    model = FewShotClassifier(classifier="by numpy").fit(drawn.support, drawn.labels)
    assert model.predict(drawn.query).tolist() == loop("nearest", drawn)
    with pytest.raises(InputError, match="cannot export the classifier 'by numpy' to ONNX") as caught:
        export_onnx(model, tmp_path / "model.onnx")
    assert len(str(caught.value).splitlines()) == 1
    assert not list(tmp_path.iterdir())
    monkeypatch.setitem(CLASSIFIERS, "wrong", Classifier("wrong", wrong_shape))
    with pytest.raises(InputError, match=r"'wrong' must return scores of shape \(\d+, 5\)"):
        FewShotClassifier(classifier="wrong").fit(drawn.support, drawn.labels)


@pytest.mark.parametrize("name", ["nearest", "svm"])
def test_an_unknown_name_is_an_error_everywhere(
    name: str, drawn: Clouds, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model: Any = FewShotClassifier(classifier="nearest").fit(drawn.support, drawn.labels)
    model.save(tmp_path / "model.safetensors")
    monkeypatch.delitem(CLASSIFIERS, "nearest")
    for use in (
        lambda: FewShotClassifier(classifier=name).fit(drawn.support, drawn.labels),
        lambda: FewShotClassifier.load(tmp_path / "model.safetensors"),
        lambda: model.predict(drawn.query),
        lambda: export_onnx(model, tmp_path / "model.onnx"),
    ):
        with pytest.raises(InputError, match="There is no classifier '(nearest|svm)'; choose one of 'centroid'"):
            use()
    assert not (tmp_path / "model.onnx").exists()
