"""A classifier as an ONNX file, run by onnxruntime."""

import json
import sys
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import PIL
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from PIL import Image
from tests.helpers.layouts import picture
from torch import nn

import nearshot
from nearshot.data.images import Pixels, fit_to_square
from nearshot.errors import InputError, MissingExtraError
from nearshot.estimator import FewShotClassifier
from nearshot.estimator.onnx import Resize, export_onnx, to_onnx
from nearshot.evaluation import CLASSIFIERS
from nearshot.models import Backbone, build_backbone

onnx = pytest.importorskip("onnx")
ort = pytest.importorskip("onnxruntime")
pytest.importorskip("onnxscript")

SIDE = 24
SLOW = pytest.mark.slow
# Older versions of Pillow resize tall pictures across first, as all others, and round in between.
HAS_NEW_PILLOW = int(PIL.__version__.split(".")[0]) >= 13
NEW_PILLOW = pytest.mark.skipif(not HAS_NEW_PILLOW, reason="needs Pillow 13")
Run = Callable[..., dict[str, Any]]


def opened(content: bytes) -> Run:
    """A model as a function of its input that returns its outputs by name."""
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    session = ort.InferenceSession(content, options, providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    return lambda **given: dict(zip(names, session.run(None, given), strict=True))


def exported(classifier: FewShotClassifier, folder: Path) -> Run:
    export_onnx(classifier, folder / "c.onnx")
    return opened((folder / "c.onnx").read_bytes())


@pytest.fixture(scope="module")
def backbone() -> Backbone:
    torch.manual_seed(0)
    network = build_backbone("conv4-32", input_size=SIDE)
    with torch.no_grad():
        network(torch.randn(64, 3, SIDE, SIDE))  # batch norm that does something
    network.spec = type(network.spec)(
        network.spec.name,
        SIDE,
        network.spec.normalisation,
        torch.randn(network.embedding_dim) * 0.1,
    )
    return network.eval()


@pytest.fixture(
    scope="module",
    params=[("bilinear", 1.0), pytest.param(("bicubic", 0.875), marks=pytest.mark.slow)],
    ids=str,
)
def resize(request: pytest.FixtureRequest) -> tuple[Run, dict[str, Any]]:
    """The resizing part alone; its outputs are levels of 0 to 255."""
    images = torch.zeros(2, 30, 40, 3, dtype=torch.uint8)
    model = to_onnx(
        Resize(SIDE, *request.param),
        images,
        axes=("image", "height", "width"),
        input_name="images",
        output_names=["squares"],
    )
    return opened(model.SerializeToString()), {
        "interpolation": request.param[0],
        "crop": request.param[1],
    }


@settings(deadline=None, max_examples=100)
@given(height=st.integers(1, 200), width=st.integers(1, 200), seed=st.integers(0, 99))
@example(height=SIDE, width=SIDE, seed=0)
def test_pictures_are_resized_as_by_pillow(resize: Any, height: int, width: int, seed: int) -> None:
    pixels, (run, how) = picture(seed, height, width), resize
    expected = fit_to_square(Image.fromarray(pixels), SIDE, **how).astype(float)
    found = run(images=pixels[None])["squares"][0].transpose(1, 2, 0)
    difference = np.abs(found - expected)
    same = height <= width or HAS_NEW_PILLOW
    assert difference.max() < (0.01 if same else 1.01)  # level by level


def labelled(n: int = 4, side: int = SIDE) -> tuple[list[Pixels], list[str]]:
    """Pictures of three classes, n, n + 1 and n + 2 of them."""
    labels = [label for extra, label in enumerate(["ant", "bée", "cat"]) for _ in range(n + extra)]
    return [picture(seed, side) for seed in range(len(labels))], labels


@pytest.mark.parametrize(
    ("classifier", "normalise"),
    [
        ("knn", False),
        *(
            pytest.param(*one, marks=SLOW)
            for one in product(CLASSIFIERS, (False, True))
            if one != ("knn", False)
        ),
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
    found = exported(model, tmp_path)(features=query + np.float32(offset))
    assert found["label"].tolist() == model.predict(query + offset).tolist()
    np.testing.assert_allclose(
        found["probabilities"], model.predict_proba(query + offset), atol=1e-6
    )


@pytest.fixture(scope="module")
def embedded() -> tuple[Any, list[str], Any]:
    """Support features, labels and queries in the place of pictures, so that the network is exported once."""
    rng = np.random.default_rng(0)
    means, labels = rng.normal(size=(3, 20)), labelled()[1]
    features = means[np.unique(labels, return_inverse=True)[1]] + rng.normal(size=(len(labels), 20))
    queries = 2 * rng.normal(size=(200, 20)) + means[rng.integers(0, 3, 200)]
    return features.astype(np.float32), labels, queries.astype(np.float32)


@pytest.mark.slow
@pytest.mark.parametrize(
    "parameters",
    [
        {"classifier": "knn", "n_neighbors": 3},
        {"classifier": "ridge", "normalise": False, "unknown_rate": 0.2},
        {"centre": None, "normalise": False, "classifier": "soft"},
        {"centre": "support", "temperature": 0.01},
    ],
    ids=str,
)
def test_decisions_from_features(parameters: dict[str, Any], embedded: Any, tmp_path: Path) -> None:
    features, labels, queries = embedded
    classifier = FewShotClassifier(**parameters).fit(features, labels)
    _check_same(classifier, exported(classifier, tmp_path), "features", queries)


def test_a_feature_without_a_direction(embedded: Any, tmp_path: Path) -> None:
    """Python refuses it; a graph can only say that it knows nothing."""
    features, labels, queries = embedded
    model = FewShotClassifier(
        classifier="soft", unknown_rate=0.1, unknown_label="none", centre=features[0]
    )
    session = exported(model.fit(features[1:], labels[1:]), tmp_path)
    _check_same(model, session, "features", queries)
    with pytest.raises(InputError, match="The feature of image 0 is zero"):
        model.predict(features[:1])
    found = session(features=np.concatenate([features[:1], queries[:3]]))
    np.testing.assert_allclose(found["probabilities"][0], 1 / 3, rtol=1e-6)
    np.testing.assert_allclose(
        found["probabilities"][1:], model.predict_proba(queries[:3]), atol=1e-4
    )
    assert found["novelty"][0] == np.inf
    assert found["label"].tolist() == ["none", *model.predict(queries[:3])]


def _check_same(classifier: FewShotClassifier, model: Run, given: str, queries: Any) -> None:
    found = model(**{given: queries})
    np.testing.assert_allclose(found["probabilities"], classifier.predict_proba(queries), atol=1e-4)
    np.testing.assert_allclose(found["novelty"], classifier.novelty(queries), rtol=1e-3)
    assert found["label"].tolist() == classifier.predict(queries).tolist()
    assert ("unknown" in found) == (classifier.unknown_rate is not None)
    if "unknown" in found:
        assert 0 < found["unknown"].mean() < 1
        assert (found["unknown"] == (found["label"] == classifier.unknown_label)).all()


@pytest.fixture(scope="module")
def of_pictures(
    backbone: Backbone, tmp_path_factory: pytest.TempPathFactory
) -> tuple[FewShotClassifier, Path]:
    """A classifier of pictures, and the file that was made of it once it was saved and loaded again."""
    folder = tmp_path_factory.mktemp("exported")
    classifier = FewShotClassifier(backbone, unknown_rate=0.2, device="cpu").fit(
        *labelled()
    )  # as the file will
    classifier.save(folder / "c.safetensors")
    export_onnx(FewShotClassifier.load(folder / "c.safetensors"), folder / "c.onnx")
    return classifier, folder / "c.onnx"


@pytest.mark.parametrize(
    "size", [(SIDE, SIDE), (37, 61), pytest.param((90, 40), marks=NEW_PILLOW)], ids=str
)
def test_raw_pictures_in_labels_out(
    of_pictures: tuple[FewShotClassifier, Path], size: tuple[int, int]
) -> None:
    classifier, file = of_pictures
    known = [np.asarray(Image.fromarray(one).resize(size[::-1])) for one in labelled()[0]]
    queries = np.stack([*known, *(picture(1000 + seed, *size) for seed in range(20))])
    model = opened(file.read_bytes())
    _check_same(classifier, model, "images", queries)
    found = model(images=queries)
    for number in (0, 25):  # alone as among others
        one = model(images=queries[number : number + 1])
        np.testing.assert_allclose(
            one["probabilities"][0], found["probabilities"][number], atol=1e-5
        )


def test_the_file_says_what_it_is(of_pictures: tuple[FewShotClassifier, Path]) -> None:
    classifier, file = of_pictures
    model = onnx.load(file)
    told = {entry.key: entry.value for entry in model.metadata_props}
    assert json.loads(told["classes"]) == ["ant", "bée", "cat"]
    assert told["nearshot_version"] == model.producer_version == nearshot.__version__
    assert told["backbone"] == "conv4-32"
    assert json.loads(told["preprocessing"])["side"] == SIDE
    assert float(told["threshold"]) == pytest.approx(classifier.threshold_)
    assert [one.name for one in model.graph.input] == ["images"]
    assert [one.name for one in model.graph.output] == [
        "label",
        "probabilities",
        "novelty",
        "unknown",
    ]
    content = file.read_bytes()
    for private in (
        Path(nearshot.__file__).parent,
        sys.prefix,
        file.parent,
    ):  # nothing of the machine it was made on
        assert str(private).encode() not in content


def test_what_cannot_be_exported(
    embedded: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    function = FewShotClassifier(lambda images: images.mean((1, 2))).fit(*labelled())
    with pytest.raises(InputError, match="backbone must be a torch.nn.Module"):
        export_onnx(function, tmp_path / "c.onnx")
    with pytest.raises(InputError, match="n_views must be 1"):
        export_onnx(
            FewShotClassifier(nn.Flatten().eval(), n_views=2, input_size=4).fit(*labelled()),
            tmp_path / "c.onnx",
        )
    monkeypatch.setitem(sys.modules, "onnx", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'nearshot\[onnx\]'"):
        export_onnx(FewShotClassifier().fit(*embedded[:2]), tmp_path / "c.onnx")
    assert not list(tmp_path.iterdir())
