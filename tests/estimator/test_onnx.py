"""A classifier as an ONNX file, run by onnxruntime."""

from __future__ import annotations

import json
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import PIL
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from layouts import picture
from PIL import Image
from sklearn.exceptions import NotFittedError
from torch import Tensor, nn

import nearshot
from nearshot.data.images import Pixels, fit_to_square
from nearshot.errors import InputError, MissingExtraError
from nearshot.estimator import FewShotClassifier
from nearshot.estimator.onnx import Resize, export_onnx
from nearshot.models import Backbone, build_backbone

onnx = pytest.importorskip("onnx")
ort = pytest.importorskip("onnxruntime")
pytest.importorskip("onnxscript")

SIDE = 24
Run = Callable[..., dict[str, Any]]


def opened(content: bytes) -> Run:
    """A model as a function of its input that returns its outputs by name."""
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    session = ort.InferenceSession(content, options, providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    return lambda **given: dict(zip(names, session.run(None, given), strict=True))


@pytest.fixture(scope="module")
def backbone() -> Backbone:
    torch.manual_seed(0)
    network = build_backbone("conv4-32", input_size=SIDE)
    with torch.no_grad():
        network(torch.randn(64, 3, SIDE, SIDE))  # batch norm that does something
    network.spec = type(network.spec)(
        network.spec.name, SIDE, network.spec.normalisation, torch.randn(network.embedding_dim) * 0.1
    )
    return network.eval()


@pytest.fixture(scope="module")
def resize() -> Run:
    """The resizing part alone; its outputs are levels of 0 to 255."""
    sizes = {axis: torch.export.Dim(name) for axis, name in enumerate(("image", "height", "width"))}
    example = torch.zeros(2, 30, 40, 3, dtype=torch.uint8)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        program = torch.onnx.export(
            Resize(SIDE),
            (example,),
            input_names=["images"],
            output_names=["squares"],
            dynamic_shapes=(sizes,),
            opset_version=18,
            dynamo=True,
            verbose=False,
        )
    return opened(program.model_proto.SerializeToString())  # type: ignore[union-attr]


@settings(deadline=None, max_examples=100)
@given(height=st.integers(1, 200), width=st.integers(1, 200), seed=st.integers(0, 99))
def test_pictures_are_resized_as_by_pillow(resize: Run, height: int, width: int, seed: int) -> None:
    pixels = picture(seed, height, width)
    expected = fit_to_square(Image.fromarray(pixels), SIDE).astype(float)
    found = resize(images=pixels[None])["squares"][0].transpose(1, 2, 0)
    difference = np.abs(found - expected)
    # Older versions of Pillow resize tall pictures across first, as all others, and round in between.
    same = height <= width or int(PIL.__version__.split(".")[0]) >= 13
    assert difference.max() < (0.01 if same else 1.01)  # level by level


def labelled(n: int = 4, side: int = SIDE) -> tuple[list[Pixels], list[str]]:
    """Pictures of three classes, n, n + 1 and n + 2 of them."""
    labels = [label for extra, label in enumerate(["ant", "bée", "cat"]) for _ in range(n + extra)]
    return [picture(seed, side) for seed in range(len(labels))], labels


SLOW = pytest.mark.slow
CASES: list[Any] = [
    {"unknown_rate": 0.3, "unknown_label": "none of these"},
    pytest.param({"classifier": "knn", "n_neighbors": 3}, marks=SLOW),
    pytest.param({"centre": None, "normalise": False, "classifier": "soft"}, marks=SLOW),
    pytest.param({"centre": "support", "temperature": 0.01}, marks=SLOW),
]


@pytest.mark.parametrize(
    ("classifier", "normalise"),
    [
        pytest.param("centroid", False, marks=SLOW),
        ("soft", True),
        pytest.param("knn", True, marks=SLOW),
        ("knn", False),
    ],
)
def test_ties_are_decided_alike(classifier: Any, normalise: bool, tmp_path: Path) -> None:
    """Of whole numbers many are equally far; here and there the first class, and its first image, wins."""
    rng = np.random.default_rng(0)
    images, query = rng.integers(0, 3, (20, 3)), rng.integers(0, 3, (200, 3)).astype(np.float32)
    images[:, 0] += images.sum(1) == 0
    query[:, 0] += query.sum(1) == 0
    offset = 0 if normalise else 1000  # far from zero, where products lose digits
    model = FewShotClassifier(classifier=classifier, normalise=normalise, n_neighbors=4)
    model.fit(images.astype(float) + offset, np.tile(list("dbca"), 5))
    export_onnx(model, tmp_path / "ties.onnx")
    found = opened((tmp_path / "ties.onnx").read_bytes())(features=query + np.float32(offset))
    assert found["label"].tolist() == model.predict(query + offset).tolist()
    np.testing.assert_allclose(found["probabilities"], model.predict_proba(query + offset), atol=1e-6)


@pytest.fixture(scope="module")
def embedded(backbone: Backbone) -> dict[str, Any]:
    """Support features, labels and queries in the place of pictures, so that the network is exported once."""
    rng = np.random.default_rng(0)
    means = rng.normal(size=(3, 20))
    labels = labelled()[1]
    codes = np.unique(labels, return_inverse=True)[1]
    return {
        "features": (means[codes] + rng.normal(size=(len(labels), 20))).astype(np.float32),
        "labels": labels,
        "queries": (2 * rng.normal(size=(200, 20)) + means[rng.integers(0, 3, 200)]).astype(np.float32),
    }


@pytest.mark.parametrize("parameters", CASES, ids=str)
def test_decisions_from_features(parameters: dict[str, Any], embedded: dict[str, Any], tmp_path: Path) -> None:
    classifier = FewShotClassifier(**parameters).fit(embedded["features"], embedded["labels"])
    export_onnx(classifier, tmp_path / "c.onnx")
    model = opened((tmp_path / "c.onnx").read_bytes())
    _check_same(classifier, model, "features", embedded["queries"])
    _check_none(model, "features", embedded["queries"][:0])


def test_a_feature_without_a_direction(embedded: dict[str, Any], tmp_path: Path) -> None:
    """Python refuses it; a graph can only say that it knows nothing."""
    centre = embedded["features"][0]
    model = FewShotClassifier(classifier="soft", unknown_rate=0.1, centre=centre)
    export_onnx(model.fit(embedded["features"][1:], embedded["labels"][1:]), tmp_path / "c.onnx")
    queries = np.stack([centre, *embedded["queries"][:3]])
    with pytest.raises(InputError, match="The feature of image 0 is zero"):
        model.predict(queries)
    found = opened((tmp_path / "c.onnx").read_bytes())(features=queries)
    np.testing.assert_allclose(found["probabilities"][0], 1 / 3, rtol=1e-6)
    np.testing.assert_allclose(found["probabilities"][1:], model.predict_proba(queries[1:]), atol=1e-4)
    assert found["novelty"][0] == np.inf
    assert found["unknown"][0]
    assert found["label"].tolist() == ["unknown", *model.predict(queries[1:])]
    assert "any number of images, including none" in onnx.load(tmp_path / "c.onnx").doc_string


def _check_same(classifier: FewShotClassifier, model: Run, given: str, queries: Any) -> None:
    found = model(**{given: queries})
    np.testing.assert_allclose(found["probabilities"], classifier.predict_proba(queries), atol=1e-4)
    np.testing.assert_allclose(found["novelty"], classifier.novelty(queries), rtol=1e-3)
    assert found["label"].tolist() == classifier.predict(queries).tolist()
    assert ("unknown" in found) == (classifier.unknown_rate is not None)
    if "unknown" in found:
        assert 0 < found["unknown"].mean() < 1
        assert (found["unknown"] == (found["label"] == classifier.unknown_label)).all()


def _check_none(model: Run, given: str, nothing: Any) -> None:
    """Results of no pictures are of the types of any."""
    found = model(**{given: nothing})
    shapes = {"label": (0,), "probabilities": (0, 3), "novelty": (0,), "unknown": (0,)}
    assert {name: one.shape for name, one in found.items()} == {name: shapes[name] for name in found}
    assert found["label"].dtype == object
    assert {found[name].dtype for name in ("probabilities", "novelty")} == {np.dtype(np.float32)}


@pytest.fixture(scope="module")
def exported(backbone: Backbone, tmp_path_factory: pytest.TempPathFactory) -> tuple[FewShotClassifier, Path]:
    """A classifier of pictures, and the file that was made of it once it was saved and loaded again."""
    folder = tmp_path_factory.mktemp("exported")
    classifier = FewShotClassifier(backbone, unknown_rate=0.2).fit(*labelled())
    classifier.save(folder / "c.safetensors")
    export_onnx(FewShotClassifier.load(folder / "c.safetensors"), folder / "c.onnx")
    return classifier, folder / "c.onnx"


@pytest.mark.parametrize("size", [(SIDE, SIDE), (37, 61), (90, 40)], ids=str)
def test_raw_pictures_in_labels_out(exported: tuple[FewShotClassifier, Path], size: tuple[int, int]) -> None:
    classifier, file = exported
    known = [np.asarray(Image.fromarray(one).resize(size[::-1])) for one in labelled()[0]]
    queries = np.stack([*known, *(picture(1000 + seed, *size) for seed in range(20))])
    model = opened(file.read_bytes())
    _check_same(classifier, model, "images", queries)
    found = model(images=queries)
    for number in (0, 25):  # alone as among others
        one = model(images=queries[number : number + 1])
        np.testing.assert_allclose(one["probabilities"][0], found["probabilities"][number], atol=1e-5)


@pytest.mark.parametrize("size", [(SIDE, SIDE), (37, 61), (90, 40), (0, 0)], ids=str)
def test_no_pictures(exported: tuple[FewShotClassifier, Path], size: tuple[int, int]) -> None:
    _check_none(opened(exported[1].read_bytes()), "images", np.zeros((0, *size, 3), np.uint8))


def test_the_file_says_what_it_is(exported: tuple[FewShotClassifier, Path]) -> None:
    classifier, file = exported
    model = onnx.load(file)
    told = {entry.key: entry.value for entry in model.metadata_props}
    assert json.loads(told["classes"]) == ["ant", "bée", "cat"]
    assert told["nearshot_version"] == model.producer_version == nearshot.__version__
    assert told["backbone"] == "conv4-32"
    preprocessing = json.loads(told["preprocessing"])
    assert preprocessing["side"] == SIDE
    np.testing.assert_allclose(preprocessing["mean"], [0.485, 0.456, 0.406])
    assert float(told["threshold"]) == pytest.approx(classifier.threshold_)
    assert [one.name for one in model.graph.input] == ["images"]
    assert [one.name for one in model.graph.output] == ["label", "probabilities", "novelty", "unknown"]
    assert "uint8 RGB of any size" in model.doc_string
    content = file.read_bytes()
    for private in (Path(nearshot.__file__).parent, sys.prefix, file.parent):  # nothing of the machine it was made on
        assert str(private).encode() not in content


class Shy(nn.Module):
    """A network that cannot be exported."""

    input_size = 8

    def forward(self, images: Tensor) -> Tensor:
        if torch.compiler.is_exporting():
            raise RuntimeError("not me")
        return images.flatten(1)


def test_what_cannot_be_exported(embedded: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(NotFittedError):
        export_onnx(FewShotClassifier(), tmp_path / "c.onnx")
    function = FewShotClassifier(lambda images: images.mean((1, 2))).fit(*labelled())
    with pytest.raises(InputError, match="backbone must be a torch.nn.Module"):
        export_onnx(function, tmp_path / "c.onnx")
    with pytest.raises(InputError, match="cannot export the classifier 'centroid' with this backbone"):
        export_onnx(FewShotClassifier(Shy().eval()).fit(*labelled()), tmp_path / "c.onnx")
    monkeypatch.setitem(sys.modules, "onnx", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'nearshot\[onnx\]'"):
        export_onnx(FewShotClassifier().fit(embedded["features"], embedded["labels"]), tmp_path / "c.onnx")
    assert not list(tmp_path.iterdir())
