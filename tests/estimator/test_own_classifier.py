"""An own classifier: an entry in `CLASSIFIERS` gives its answers everywhere."""

from pathlib import Path

import numpy as np
import pytest
import torch
from tests.helpers.clouds import Clouds, clouds
from torch import Tensor

from nearshot import FewShotClassifier
from nearshot.errors import InputError
from nearshot.estimator import export_onnx
from nearshot.evaluation.classifiers import CLASSIFIERS, Classifier, best_of_class


def farthest_of_class(similarities: Tensor, class_sizes: Tensor) -> Tensor:
    """Score a class by its farthest image."""
    return -best_of_class(-similarities, class_sizes)


def by_numpy(similarities: Tensor, class_sizes: Tensor) -> Tensor:
    groups = np.split(similarities.numpy(), class_sizes.cumsum(0).numpy()[:-1], axis=-1)
    return torch.from_numpy(np.stack([group.min(-1) for group in groups], -1))


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> Clouds:
    own = {
        "farthest": farthest_of_class,
        "by numpy": by_numpy,
        "wrong": lambda similarities, _: similarities,
    }
    for name, scores in own.items():
        monkeypatch.setitem(CLASSIFIERS, name, Classifier(name, scores))
    drawn = clouds(0, n_shot=6, spread=1.3)
    # Classes of different sizes, in random order.
    rows = np.flatnonzero(np.arange(30) % 7 != 3)
    order = np.random.default_rng(0).permutation(rows)
    return drawn._replace(support=drawn.support[order], labels=drawn.labels[order])


def slow_answers(drawn: Clouds) -> list[str]:
    """Return the class whose farthest image is nearest, by a slow loop."""
    answers = []
    for query in drawn.query:
        farthest: dict[str, float] = {}
        for image, label in zip(drawn.support, drawn.labels, strict=True):
            difference = image / np.linalg.norm(image) - query / np.linalg.norm(query)
            distance = float(np.linalg.norm(difference))
            farthest[str(label)] = max(farthest.get(str(label), 0.0), distance)
        answers.append(min(farthest, key=farthest.__getitem__))
    return answers


def test_its_answers_are_its_own_in_files_too(drawn: Clouds, tmp_path: Path) -> None:
    onnxruntime = pytest.importorskip("onnxruntime")
    expected = slow_answers(drawn)
    model = FewShotClassifier(classifier="farthest", reject_rate=0.01).fit(
        drawn.support, drawn.labels
    )
    for other in ("centroid", "soft", "knn"):
        builtin = FewShotClassifier(classifier=other).fit(drawn.support, drawn.labels)
        assert builtin.predict(drawn.query).tolist() != expected
    probabilities = model.predict_proba(drawn.query)
    assert model.classes_[probabilities.argmax(1)].tolist() == expected
    np.testing.assert_allclose(probabilities.sum(1), 1)
    known = model.predict(drawn.query)
    assert (known[known != "none of these"] == np.array(expected)[known != "none of these"]).all()
    explanations = model.explain(drawn.query)
    assert [explanation.nearest for explanation in explanations] == expected
    assert 0.2 < model.estimate_accuracy().mean < 1
    model.save(tmp_path / "model.safetensors")
    again = FewShotClassifier.load(tmp_path / "model.safetensors")
    np.testing.assert_array_equal(again.predict_proba(drawn.query), probabilities)
    export_onnx(again, tmp_path / "model.onnx")
    session = onnxruntime.InferenceSession(tmp_path / "model.onnx")
    labels, exported_probabilities = session.run(
        ["label", "probabilities"], {"features": drawn.query.astype(np.float32)}
    )
    assert labels.tolist() == known.tolist()
    np.testing.assert_allclose(exported_probabilities, probabilities, atol=1e-5)


def test_what_cannot_be_exported_or_scored_is_refused(drawn: Clouds, tmp_path: Path) -> None:
    pytest.importorskip("onnxscript")
    model = FewShotClassifier(classifier="by numpy").fit(drawn.support, drawn.labels)
    assert model.predict(drawn.query).tolist() == slow_answers(drawn)
    with pytest.raises(InputError, match="'by numpy' to ONNX") as caught:
        export_onnx(model, tmp_path / "model.onnx")
    assert len(str(caught.value).splitlines()) == 1
    assert not list(tmp_path.iterdir())
    with pytest.raises(InputError, match=r"'wrong' .*\(\d+, 5\)"):
        FewShotClassifier(classifier="wrong").fit(drawn.support, drawn.labels)
