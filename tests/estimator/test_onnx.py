"""A classifier as an ONNX file, run by onnxruntime."""

import json
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import PIL
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from PIL import Image
from tests.helpers.feature_sets import SETS, set_clouds
from tests.helpers.layouts import picture
from torch import nn

import nearshot
from nearshot.data.images import Interpolation, Pixels, fit_to_square
from nearshot.errors import InputError, MissingExtraError
from nearshot.estimator import Embedder, FewShotClassifier
from nearshot.estimator.onnx import EmbedImages, Resize, export_onnx, to_onnx
from nearshot.evaluation import CLASSIFIERS
from nearshot.models import Backbone, build_backbone, load_backbone
from nearshot.models.pair import BackbonePair

onnx = pytest.importorskip("onnx")
ort = pytest.importorskip("onnxruntime")
pytest.importorskip("onnxscript")

SIDE = 24
# Older versions of Pillow resize the rows of tall images first, as of others.
HAS_NEW_PILLOW = int(PIL.__version__.split(".")[0]) >= 13
NEW_PILLOW = pytest.mark.skipif(not HAS_NEW_PILLOW, reason="needs Pillow 13")
Run = Callable[..., dict[str, Any]]


def opened(content: bytes) -> Run:
    """A model as a function of its input that returns its outputs by name."""
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    session = ort.InferenceSession(content, options, providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]

    def run(**inputs: Any) -> dict[str, Any]:
        return dict(zip(names, session.run(None, inputs), strict=True))

    return run


def exported(classifier: FewShotClassifier, folder: Path) -> Run:
    export_onnx(classifier, folder / "c.onnx")
    return opened((folder / "c.onnx").read_bytes())


@pytest.fixture(scope="module")
def backbone() -> Backbone:
    torch.manual_seed(0)
    network = build_backbone("conv4-32", input_size=SIDE)
    with torch.no_grad():
        network(torch.randn(64, 3, SIDE, SIDE))  # statistics of batch norm other than 0 and 1
    network.spec = type(network.spec)(
        network.spec.name,
        SIDE,
        network.spec.normalisation,
        torch.randn(network.embedding_dim) * 0.1,
    )
    return network.eval()


class Resizer(NamedTuple):
    """The exported resizing, and its parameters."""

    run: Run
    interpolation: Interpolation
    crop: float


@pytest.fixture(
    scope="module",
    params=[("bilinear", 1.0), ("bicubic", 0.875)],
    ids=str,
)
def resizer(request: pytest.FixtureRequest) -> Resizer:
    """The resizing part alone; its outputs are levels of 0 to 255."""
    interpolation, crop = request.param
    images = torch.zeros(2, 30, 40, 3, dtype=torch.uint8)
    model = to_onnx(
        Resize(SIDE, interpolation, crop),
        images,
        axes=("image", "height", "width"),
        input_name="images",
        output_names=["squares"],
    )
    return Resizer(opened(model.SerializeToString()), interpolation, crop)


@settings(deadline=None, max_examples=100)
@given(height=st.integers(1, 200), width=st.integers(1, 200), seed=st.integers(0, 99))
@example(height=SIDE, width=SIDE, seed=0)
def test_images_are_resized_as_by_pillow(
    resizer: Resizer, height: int, width: int, seed: int
) -> None:
    pixels = picture(seed, height, width)
    expected = fit_to_square(
        Image.fromarray(pixels), SIDE, interpolation=resizer.interpolation, crop=resizer.crop
    )
    levels = resizer.run(images=pixels[None])["squares"][0].transpose(1, 2, 0)
    difference = np.abs(levels - expected.astype(float)).max()
    has_same_order = height <= width or HAS_NEW_PILLOW
    assert difference < (0.01 if has_same_order else 1.01)  # in levels


def labelled(n: int = 4, side: int = SIDE) -> tuple[list[Pixels], list[str]]:
    """Return images and labels of three classes with n, n + 1 and n + 2 images."""
    labels = ["ant"] * n + ["bée"] * (n + 1) + ["cat"] * (n + 2)
    return [picture(seed, side) for seed in range(len(labels))], labels


@pytest.mark.parametrize("normalise", [False, True])
@pytest.mark.parametrize("classifier", CLASSIFIERS)
def test_ties_have_the_same_answers(classifier: Any, normalise: bool, tmp_path: Path) -> None:
    """Many integers are equally far; the first class and its first image win in both."""
    generator = np.random.default_rng(0)
    images = generator.integers(0, 3, (20, 3))
    query = generator.integers(0, 3, (200, 3)).astype(np.float32)
    images[:, 0] += images.sum(1) == 0
    query[:, 0] += query.sum(1) == 0
    offset = 0 if normalise else 1000  # far from zero, where products lose digits
    model = FewShotClassifier(classifier=classifier, normalise=normalise, n_neighbors=4)
    model.fit(images.astype(float) + offset, np.tile(list("dbca"), 5))
    outputs = exported(model, tmp_path)(features=query + np.float32(offset))
    assert outputs["label"].tolist() == model.predict(query + offset).tolist()
    np.testing.assert_allclose(
        outputs["probabilities"], model.predict_proba(query + offset), atol=1e-6
    )


@pytest.fixture(scope="module")
def embedded() -> tuple[Any, list[str], Any]:
    """Support features, labels and queries, so that no network is exported."""
    generator = np.random.default_rng(0)
    means = generator.normal(size=(3, 20))
    _, labels = labelled()
    codes = np.unique(labels, return_inverse=True)[1]
    features = means[codes] + generator.normal(size=(len(labels), 20))
    queries = 2 * generator.normal(size=(200, 20)) + means[generator.integers(0, 3, 200)]
    return features.astype(np.float32), labels, queries.astype(np.float32)


@pytest.mark.parametrize(
    "parameters",
    [
        {"classifier": "knn", "n_neighbors": 3},
        {"classifier": "ridge", "normalise": False, "reject_rate": 0.2},
        {"centre": None, "normalise": False, "classifier": "soft"},
        {"centre": "support", "temperature": 0.01},
    ],
    ids=str,
)
def test_decisions_from_features(parameters: dict[str, Any], embedded: Any, tmp_path: Path) -> None:
    features, labels, queries = embedded
    classifier = FewShotClassifier(**parameters).fit(features, labels)
    _check_same(classifier, exported(classifier, tmp_path), "features", queries)


@pytest.mark.parametrize("has_strays", [False, True])
def test_decisions_of_a_mixture(has_strays: bool, tmp_path: Path) -> None:
    drawn = set_clouds(4, [5, 3, 4], n_query=40)
    classifier = FewShotClassifier(None, feature_sets=SETS, reject_rate=0.2)
    strays = np.float32(set_clouds(5, [6]).support) if has_strays else None
    classifier.fit(np.float32(drawn.support), drawn.labels.astype(str), none_of_these=strays)
    mixture = classifier.fitted_state().mixture
    assert mixture is not None
    assert len(mixture.candidates) > 1
    _check_same(classifier, exported(classifier, tmp_path), "features", np.float32(drawn.query))


def test_a_feature_of_zeros_is_novel_and_equally_probable_in_all_classes(
    embedded: Any, tmp_path: Path
) -> None:
    """In Python it is an error, which a graph cannot raise."""
    features, labels, queries = embedded
    model = FewShotClassifier(
        classifier="soft", reject_rate=0.1, reject_label="none", centre=features[0]
    )
    session = exported(model.fit(features[1:], labels[1:]), tmp_path)
    _check_same(model, session, "features", queries)
    with pytest.raises(InputError, match="image 0 "):
        model.predict(features[:1])
    outputs = session(features=np.concatenate([features[:1], queries[:3]]))
    np.testing.assert_allclose(outputs["probabilities"][0], 1 / 3, rtol=1e-6)
    np.testing.assert_allclose(
        outputs["probabilities"][1:], model.predict_proba(queries[:3]), atol=1e-4
    )
    assert outputs["novelty"][0] == np.inf
    assert outputs["label"].tolist() == ["none", *model.predict(queries[:3])]


def _check_same(classifier: FewShotClassifier, model: Run, name: str, queries: Any) -> None:
    outputs = model(**{name: queries})
    np.testing.assert_allclose(
        outputs["probabilities"], classifier.predict_proba(queries), atol=1e-4
    )
    np.testing.assert_allclose(outputs["novelty"], classifier.novelty(queries), rtol=1e-3)
    assert outputs["label"].tolist() == classifier.predict(queries).tolist()
    assert ("rejected" in outputs) == (classifier.reject_rate > 0)
    if "rejected" in outputs:
        assert 0 < outputs["rejected"].mean() < 1
        assert (outputs["rejected"] == (outputs["label"] == classifier.reject_label)).all()


@pytest.fixture(scope="module")
def of_images(
    backbone: Backbone, tmp_path_factory: pytest.TempPathFactory
) -> tuple[FewShotClassifier, Path]:
    """A classifier of images, and the file that was exported after saving and loading it."""
    folder = tmp_path_factory.mktemp("exported")
    classifier = FewShotClassifier(backbone, reject_rate=0.2, device="cpu").fit(*labelled())
    classifier.save(folder / "c.safetensors")
    export_onnx(FewShotClassifier.load(folder / "c.safetensors"), folder / "c.onnx")
    return classifier, folder / "c.onnx"


@pytest.mark.parametrize(
    "size", [(SIDE, SIDE), (37, 61), pytest.param((90, 40), marks=NEW_PILLOW)], ids=str
)
def test_answers_for_raw_images_of_any_size(
    of_images: tuple[FewShotClassifier, Path], size: tuple[int, int]
) -> None:
    classifier, file = of_images
    support = [np.asarray(Image.fromarray(image).resize(size[::-1])) for image in labelled()[0]]
    queries = np.stack([*support, *(picture(1000 + seed, *size) for seed in range(20))])
    model = opened(file.read_bytes())
    _check_same(classifier, model, "images", queries)
    together = model(images=queries)
    for number in (0, 25):
        alone = model(images=queries[number : number + 1])
        np.testing.assert_allclose(
            alone["probabilities"][0], together["probabilities"][number], atol=1e-5
        )


def test_metadata(of_images: tuple[FewShotClassifier, Path]) -> None:
    classifier, file = of_images
    model = onnx.load(file)
    metadata = {entry.key: entry.value for entry in model.metadata_props}
    assert json.loads(metadata["classes"]) == ["ant", "bée", "cat"]
    assert metadata["nearshot_version"] == model.producer_version == nearshot.__version__
    assert metadata["backbone"] == "conv4-32"
    assert json.loads(metadata["preprocessing"])["side"] == SIDE
    assert float(metadata["threshold"]) == pytest.approx(classifier.threshold_)
    assert [value.name for value in model.graph.input] == ["images"]
    assert [value.name for value in model.graph.output] == [
        "label",
        "probabilities",
        "novelty",
        "rejected",
    ]
    content = file.read_bytes()
    # Nothing of the machine that it was exported on.
    for private in (Path(nearshot.__file__).parent, sys.prefix, file.parent):
        assert str(private).encode() not in content


def test_what_cannot_be_exported(
    embedded: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    function = FewShotClassifier(lambda images: images.mean((1, 2))).fit(*labelled())
    with pytest.raises(InputError, match="backbone .*torch.nn.Module"):
        export_onnx(function, tmp_path / "c.onnx")
    several_views = FewShotClassifier(nn.Flatten().eval(), n_views=2, input_size=4)
    several_views.fit(*labelled())
    with pytest.raises(InputError, match="n_views .*got 2"):
        export_onnx(several_views, tmp_path / "c.onnx")
    monkeypatch.setitem(sys.modules, "onnx", None)
    with pytest.raises(MissingExtraError, match=r"pip install '\.\[onnx\]'"):
        export_onnx(FewShotClassifier().fit(*embedded[:2]), tmp_path / "c.onnx")
    assert not list(tmp_path.iterdir())


def test_the_graph_of_a_network_gives_all_feature_sets() -> None:
    """Equal but for the last bit of float16, where a value lies between two of them."""
    embedder = Embedder("efficientnet-lite0", input_size=64, all_sets=True, device="cpu")
    example = torch.zeros(2, 65, 66, 3, dtype=torch.uint8)
    graph = to_onnx(
        EmbedImages(embedder.networks[0]).eval(),
        example,
        axes=("image", "height", "width"),
        input_name="images",
        output_names=["features"],
    )
    queries = np.stack([picture(seed, 80, 100) for seed in range(5)])
    features = opened(graph.SerializeToString())(images=queries)["features"]
    expected = embedder(list(queries))
    assert features.shape == expected.shape
    np.testing.assert_allclose(features, expected, rtol=2e-3, atol=1e-4)
    assert (features == expected).mean() > 0.9


@pytest.mark.parametrize("is_pair", [False, True])
def test_a_mixture_answers_raw_images(is_pair: bool, backbone: Backbone, tmp_path: Path) -> None:
    network: Any = load_backbone("efficientnet-lite0", input_size=64)
    network.spec = replace(network.spec, look_alike_cosine=None)
    if is_pair:
        network = BackbonePair(network, backbone)
    images, labels = labelled()
    model = FewShotClassifier(network, device="cpu", reject_rate=0.2).fit(images, labels)
    assert model.fitted_state().mixture is not None
    queries = np.stack([*images, *(picture(1000 + seed, SIDE, SIDE) for seed in range(12))])
    _check_same(model, exported(model, tmp_path), "images", queries)
