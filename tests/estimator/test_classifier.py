"""What `FewShotClassifier` answers, learns, forgets and refuses, on features and on images."""

import inspect
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from sklearn.exceptions import NotFittedError
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from tests import reference
from tests.helpers.clouds import clouds, colours, conv4, tinted
from tests.helpers.layouts import picture

from nearshot import FewShotClassifier
from nearshot.errors import InputError, NearshotError
from nearshot.estimator import Embedder
from nearshot.estimator.read_images import are_images
from nearshot.estimator.support import PAIRS_AT_ONCE
from nearshot.evaluation import CLASSIFIERS, prepare_features, sample_episodes
from nearshot.models import save_backbone

NAMES = tuple(CLASSIFIERS)


def test_the_constructor_lists_and_only_stores_its_parameters() -> None:
    signature = inspect.signature(FewShotClassifier)
    values = {name: object() for name in signature.parameters}
    model = FewShotClassifier(**values)  # type: ignore[arg-type]
    assert vars(model) == values


@pytest.mark.parametrize("n_shot", [1, 5])
@pytest.mark.parametrize("name", NAMES)
def test_answers_are_those_of_evaluation(name: Any, n_shot: int) -> None:
    """What is measured over episodes is what is used."""
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(12).repeat_interleave(25)
    means = torch.randn(12, 8, generator=generator)
    features = means[labels] + torch.randn(300, 8, generator=generator)
    centre = features.mean(0)
    prepared = prepare_features(features.double(), centre=centre.double())
    episodes = sample_episodes(labels, n_shot=n_shot, n_episodes=20, seed=1)
    for support, query in zip(episodes.support, episodes.query.flatten(1), strict=True):
        scores = CLASSIFIERS[name](prepared[support][None], prepared[query][None])[0]
        model = FewShotClassifier(classifier=name, centre=centre.numpy())
        model.fit(features[support].flatten(0, 1).numpy(), np.repeat(np.arange(5), n_shot))
        answers = model.predict(features[query].numpy())
        np.testing.assert_array_equal(answers, scores.argmax(1).numpy())


def soft_answer(classes: list[torch.Tensor], query: torch.Tensor) -> int:
    likelihoods = [(-((images - query) ** 2)).sum(1).exp().mean() for images in classes]
    return int(torch.stack(likelihoods).argmax())


UNEQUAL_CLASSES: dict[str, Any] = {
    "centroid": reference.centroid_answer,
    "soft": soft_answer,
    "knn": lambda classes, query: reference.knn_answer(classes, query, k=min(map(len, classes))),
    "ridge": reference.ridge_answer,
}


@settings(max_examples=30, deadline=None)
@given(
    st.lists(st.integers(1, 6), min_size=1, max_size=4),
    st.integers(0, 10**6),
    st.sampled_from(sorted(UNEQUAL_CLASSES)),
)
def test_answers_against_loops_with_unequal_classes(sizes: list[int], seed: int, name: Any) -> None:
    generator = np.random.default_rng(seed)
    labels = np.repeat(np.arange(len(sizes)), sizes)
    support = generator.normal(size=(len(labels), 3))
    query = generator.normal(size=(7, 3))
    model = FewShotClassifier(classifier=name, normalise=False).fit(support, labels)
    classes = [torch.from_numpy(support[labels == code]) for code in range(len(sizes))]
    slow_answer = UNEQUAL_CLASSES[name]
    expected = [slow_answer(classes, row) for row in torch.from_numpy(query)]
    assert model.predict(query).tolist() == expected


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("centre", ["auto", "support"])
def test_partial_fits_equal_one_fit(name: Any, centre: Any) -> None:
    drawn = clouds(0)
    order = np.random.default_rng(0).permutation(len(drawn.labels))
    whole = FewShotClassifier(classifier=name, centre=centre, reject_rate=0.1)
    whole.fit(drawn.support[order], drawn.labels[order])
    parts = FewShotClassifier(classifier=name, centre=centre, reject_rate=0.1)
    for rows in np.split(order, [3, 4, 11]):
        parts.partial_fit(drawn.support[rows], drawn.labels[rows])
    np.testing.assert_array_equal(parts.classes_, whole.classes_)
    np.testing.assert_array_equal(parts.predict(drawn.query), whole.predict(drawn.query))
    np.testing.assert_array_equal(
        parts.predict_proba(drawn.query), whole.predict_proba(drawn.query)
    )
    assert parts.temperature_ == whole.temperature_
    assert parts.threshold_ == whole.threshold_


def test_forgetting_a_class_equals_never_having_seen_it() -> None:
    drawn = clouds(1)
    model = FewShotClassifier(reject_rate=0.05).fit(drawn.support, drawn.labels).forget("class 2")
    is_kept = drawn.labels != "class 2"
    expected = FewShotClassifier(reject_rate=0.05)
    expected.fit(drawn.support[is_kept], drawn.labels[is_kept])
    np.testing.assert_array_equal(
        model.predict_proba(drawn.query), expected.predict_proba(drawn.query)
    )
    assert model.threshold_ == expected.threshold_
    assert len(model.support_names_) == len(model.support_features_) == 20
    model.partial_fit(drawn.support[~is_kept], drawn.labels[~is_kept])
    assert model.score(drawn.query, drawn.query_labels) > 0.9


def test_forgetting_an_unknown_class_or_the_last_one_is_an_error() -> None:
    model = FewShotClassifier().fit(np.eye(2), ["cat", "dog"])
    with pytest.raises(InputError, match="got 'fish'"):
        model.forget("fish")
    model.forget("dog")
    with pytest.raises(InputError, match="got 'cat'"):
        model.forget("cat")


def test_a_failed_fit_or_addition_changes_nothing() -> None:
    drawn = clouds(2)
    model = FewShotClassifier(reject_rate=0.1).fit(drawn.support, drawn.labels)
    before = model.predict_proba(drawn.query)
    for features, labels, message in (
        (np.zeros((1, 16)), ["new"], "zero"),
        (np.full((1, 16), np.nan), ["new"], "NaN"),
        (drawn.support[:1], [3], "'class 0' .* 3"),
        (drawn.support[:1, :4], ["new"], "expecting 16 features"),
    ):
        with pytest.raises(ValueError, match=message):
            model.partial_fit(features, labels)
    with_reject_label = np.where(drawn.labels == "class 0", "none of these", drawn.labels)
    with pytest.raises(InputError, match="reject_label .*'none of these'"):
        model.fit(drawn.support[:, :3], with_reject_label)
    assert model.n_features_in_ == 16
    np.testing.assert_array_equal(model.predict_proba(drawn.query), before)


@pytest.mark.parametrize("missing", [None, float("nan")])
@pytest.mark.parametrize(
    ("model", "images"),
    [
        (FewShotClassifier(), np.eye(3)),
        (FewShotClassifier(colours), ["a.png", "b.png", "c.png"]),
    ],
    ids=["features", "images"],
)
def test_a_missing_label_is_an_error_before_anything_is_embedded(
    model: FewShotClassifier, images: Any, missing: Any
) -> None:
    with pytest.raises(InputError, match=f"{missing} for image 1"):
        model.fit(images, ["cat", missing, "dog"])


@pytest.fixture
def repeated_images(tmp_path: Path) -> list[str]:
    """Seven images, and seven files with the same pixels and other content."""
    paths = []
    for number in range(14):
        path = tmp_path / f"{number}.png"
        Image.fromarray(picture(number % 7, 224)).save(path, compress_level=number // 7)
        paths.append(str(path))
    return paths


@pytest.mark.parametrize("pairs_at_once", [PAIRS_AT_ONCE, 1])  # whatever the blocks
def test_the_same_image_in_two_classes_is_named(
    pairs_at_once: int, repeated_images: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("nearshot.estimator.support.PAIRS_AT_ONCE", pairs_at_once)
    paths = repeated_images
    labels = ["ant"] * 7 + ["bee"] * 7
    pairs = [f"{paths[i]} in 'ant' and {paths[i + 7]} in 'bee'" for i in range(7)]
    with pytest.warns(UserWarning, match="in two classes") as caught:
        FewShotClassifier(colours).fit(paths, labels)
    assert f": {', '.join(pairs[:5])} and 2 more. " in str(caught[0].message)
    assert caught[0].filename == __file__
    model = FewShotClassifier(colours).fit(paths[:7], labels[:7])
    with pytest.warns(UserWarning, match="in two classes") as caught:
        model.partial_fit(paths[13:], ["bee"])
    assert f": {pairs[6]}. " in str(caught[0].message)
    assert caught[0].filename == __file__


def test_the_same_image_twice_in_one_class_is_named(repeated_images: list[str]) -> None:
    paths = repeated_images[:8]
    with pytest.warns(UserWarning, match=f"twice .*{paths[0]} in 'ant' and {paths[7]} in 'ant'"):
        FewShotClassifier(colours).fit(paths, ["ant"] * 8)


def test_equal_embeddings_of_different_pixels_are_not_named(repeated_images: list[str]) -> None:
    model = FewShotClassifier(lambda images: np.ones((len(images), 3), np.float32))
    model.fit(repeated_images[:7], ["ant"] * 3 + ["bee"] * 4)


def test_one_class_and_one_image() -> None:
    model = FewShotClassifier().fit([[1.0, 2.0]], ["cat"])
    assert model.predict([[3.0, 1.0]]).tolist() == ["cat"]
    assert model.predict_proba([[3.0, 1.0]]).tolist() == [[1.0]]
    with pytest.raises(InputError, match="reject_rate .* 2 .*got 1"):
        FewShotClassifier(reject_rate=0.05).fit([[1.0, 2.0]], ["cat"])


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"classifier": "svm"}, "'svm'.*'centroid', 'soft', 'knn'"),
        ({"n_neighbors": 0}, "n_neighbors .*got 0"),
        ({"temperature": 0}, "temperature .*got 0"),
        ({"temperature": "hot"}, "temperature .*got 'hot'"),
        ({"reject_rate": 1}, "reject_rate .*got 1"),
        ({"reject_rate": 0.1, "reject_label": "dog"}, "reject_label .*got 'dog'"),
        ({"centre": "mean"}, "centre .*got 'mean'"),
        ({"centre": np.zeros(3)}, r"centre .*\(2,\)"),
    ],
)
def test_invalid_parameters_are_errors_of_fit(parameters: dict[str, Any], message: str) -> None:
    model = FewShotClassifier(**parameters)  # no error yet, as scikit-learn requires
    with pytest.raises(InputError, match=message):
        model.fit([[1.0, 0.0], [0.0, 1.0]], ["cat", "dog"])
    with pytest.raises(NotFittedError):
        model.predict([[1.0, 0.0]])


@pytest.mark.parametrize("changed", [{"reject_rate": 0.2}, {"centre": np.ones(16)}], ids=str)
def test_parameters_changed_after_fit_need_another_fit(changed: dict[str, Any]) -> None:
    drawn = clouds(0)
    model = FewShotClassifier(classifier="knn", centre=np.zeros(16))
    model.fit(drawn.support, drawn.labels)
    before = model.predict(drawn.query)
    parameters = model.get_params()
    with pytest.raises(InputError, match=f"^{next(iter(changed))} was "):
        model.set_params(**changed).predict(drawn.query)
    model.set_params(**parameters)
    np.testing.assert_array_equal(model.predict(drawn.query), before)


def test_parameters_that_change_no_answer_need_no_fit() -> None:
    drawn = clouds(0)
    model = FewShotClassifier(centre=np.zeros(16)).fit(drawn.support, drawn.labels)
    before = model.predict(drawn.query)
    model.set_params(centre=np.zeros(16), verbose=True)
    np.testing.assert_array_equal(model.predict(drawn.query), before)


def test_one_thread_learns_and_forgets_while_others_predict() -> None:
    """Every answer is by one support set; labels of one with features of another would be wrong."""
    directions = np.eye(8)
    images = np.repeat(directions[:3], 10, axis=0)
    labels = np.repeat(["a", "b", "c"], 10)
    query = directions[2:3]
    model = FewShotClassifier().fit(images, labels)
    is_done = threading.Event()
    seen = set()

    def predict() -> None:
        while not is_done.is_set():
            try:
                seen.add(str(model.predict(query)[0]))
                explanation = model.explain(query, n_neighbors=1)[0]
                seen.add(str(explanation.label))
                seen.add(str(explanation.neighbours[0].label))
            except Exception as error:  # any error fails the test
                seen.add(repr(error))

    threads = [threading.Thread(target=predict) for _ in range(3)]
    switch_interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        for thread in threads:
            thread.start()
        for _ in range(20):
            model.forget("a").partial_fit(images[:10], ["a"] * 10)
    finally:
        sys.setswitchinterval(switch_interval)
        is_done.set()
        for thread in threads:
            thread.join()
    assert seen == {"c"}


def test_tensors_with_gradients_are_features() -> None:
    drawn = clouds(0)
    support = torch.tensor(drawn.support, requires_grad=True)
    query = torch.tensor(drawn.query, requires_grad=True)
    expected = FewShotClassifier().fit(drawn.support, drawn.labels).predict(drawn.query)
    model = FewShotClassifier().fit(support, drawn.labels)
    for same_query in (query, list(query), query.bfloat16()):
        np.testing.assert_array_equal(model.predict(same_query), expected)


def unit_length(features: np.ndarray) -> np.ndarray:
    return np.asarray(features / np.linalg.norm(features, axis=1, keepdims=True))


def test_neighbours_against_numpy() -> None:
    drawn = clouds(4, spread=0.8)
    model = FewShotClassifier().fit(drawn.support, drawn.labels)
    distances, indices = model.kneighbors(drawn.query, 25)
    differences = unit_length(drawn.query)[:, None] - unit_length(drawn.support)
    expected = np.linalg.norm(differences, axis=2)
    np.testing.assert_allclose(distances, np.sort(expected, axis=1), atol=1e-7)
    np.testing.assert_allclose(distances, np.take_along_axis(expected, indices, axis=1), atol=1e-7)
    with pytest.raises(InputError, match="n_neighbors"):
        model.kneighbors(drawn.query, 0)


@pytest.mark.parametrize("name", NAMES)
def test_explanations_agree_with_the_other_methods(name: Any) -> None:
    drawn = clouds(4, spread=0.8)
    model = FewShotClassifier(classifier=name, reject_rate=0.1).fit(drawn.support, drawn.labels)
    images = np.concatenate([drawn.query, drawn.strangers])
    distances, indices = model.kneighbors(images, 25)
    answers = model.predict(images)
    probabilities = model.predict_proba(images)
    explanations = model.explain(images, n_neighbors=25)
    assert {explanation.is_rejected for explanation in explanations} == {True, False}
    for row, explanation in enumerate(explanations):
        neighbours = explanation.neighbours
        assert explanation.label == answers[row]
        assert explanation.is_rejected == (answers[row] == "none of these")
        assert explanation.nearest == model.classes_[probabilities[row].argmax()]
        assert explanation.probability == pytest.approx(probabilities[row].max())
        assert [neighbour.index for neighbour in neighbours] == indices[row].tolist()
        assert [neighbour.distance for neighbour in neighbours] == distances[row].tolist()
        labels = drawn.labels[indices[row]].tolist()
        assert [neighbour.label for neighbour in neighbours] == labels
    assert explanations[0].neighbours[0].name == f"image {indices[0, 0]}"
    assert f"image {indices[0, 0]}" in str(explanations[0])


@pytest.mark.parametrize("name", ["soft", "knn"])
def test_weights_of_images_add_up_to_the_decision(name: str) -> None:
    drawn = clouds(4, spread=0.8)
    model = FewShotClassifier(classifier=name).fit(drawn.support, drawn.labels)
    for explanation in model.explain(drawn.query, n_neighbors=25):
        shares = dict.fromkeys(model.classes_.tolist(), 0.0)
        for neighbour in explanation.neighbours:
            assert neighbour.weight is not None
            shares[neighbour.label] += neighbour.weight
        assert sum(shares.values()) == pytest.approx(1)
        assert shares[explanation.nearest] == pytest.approx(max(shares.values()))


@pytest.mark.parametrize("name", ["centroid", "ridge"])
def test_where_no_single_image_decides_there_are_no_weights(name: str) -> None:
    drawn = clouds(4)
    model = FewShotClassifier(classifier=name).fit(drawn.support, drawn.labels)
    explanation = model.explain(drawn.query[:1])[0]
    assert [neighbour.weight for neighbour in explanation.neighbours] == [None] * 3


def draw_ties(seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return images, labels and queries of small integers, with many equal distances."""
    generator = np.random.default_rng(seed)
    images = generator.integers(0, 2, (40, 6))
    query = generator.integers(0, 2, (60, 6))
    images[:, 0] = 1
    query[:, 0] = 1
    return images.astype(float), np.tile(list("dbca"), 10), query.astype(float)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("normalise", [True, False])
def test_answers_do_not_depend_on_the_batch_even_where_images_tie(
    name: Any, normalise: bool
) -> None:
    """Rounding differs with the number of rows in a product; it alone would decide ties."""
    images, labels, query = draw_ties(0)
    model = FewShotClassifier(classifier=name, normalise=normalise).fit(images, labels)
    answers = model.predict(query)
    probabilities = model.predict_proba(query)
    _, indices = model.kneighbors(query, 7)
    explanations = model.explain(query)
    for row in range(len(query)):
        alone = query[row : row + 1]
        assert model.predict(alone)[0] == answers[row]
        assert explanations[row].label == explanations[row].nearest == answers[row]
        np.testing.assert_allclose(model.predict_proba(alone)[0], probabilities[row], atol=1e-9)
        assert model.kneighbors(alone, 7)[1].tolist() == [indices[row].tolist()]


def test_of_tied_neighbours_the_first_class_and_its_first_image_come_first() -> None:
    images, labels, query = draw_ties(0)
    model = FewShotClassifier(classifier="knn", normalise=False).fit(images, labels)
    _, indices = model.kneighbors(query, 7)
    squares = ((query[:, None] - images) ** 2).sum(2)
    for row, explanation in enumerate(model.explain(query, n_neighbors=40)):
        nearest = np.lexsort([labels, squares[row]]).tolist()
        assert indices[row].tolist() == nearest[:7]
        voters = [neighbour.index for neighbour in explanation.neighbours if neighbour.weight]
        assert voters == nearest[:10]


def test_images_of_every_kind(tmp_path: Path) -> None:
    Image.fromarray(tinted(0, 0)).save(tmp_path / "red.png")
    images = [tmp_path / "red.png", Image.fromarray(tinted(1, 0)), tinted(2, 2), tinted(3, 2)]
    model = FewShotClassifier(colours).fit(images, ["red", "red", "blue", "blue"])
    assert model.predict([tinted(4, 2), tinted(5, 0)]).tolist() == ["blue", "red"]
    assert model.predict(np.stack([tinted(6, 2), tinted(7, 0)])).tolist() == ["blue", "red"]
    assert model.n_features_in_ == 3
    assert model.partial_fit([tinted(8, 1)], ["green"]).explain([tinted(9, 1)])[0].label == "green"
    assert model.support_names_ == [
        str(tmp_path / "red.png"),
        "image 1",
        "image 2",
        "image 3",
        "image 4",
    ]
    with pytest.raises(InputError, match="must be a list"):
        model.predict(tmp_path / "red.png")
    with pytest.raises(ValueError, match="inconsistent numbers of samples"):
        FewShotClassifier(colours).fit(images, ["red"])


def test_the_centre_is_the_mean_of_the_backbones_training_set(tmp_path: Path) -> None:
    backbone = conv4()
    images = np.stack([tinted(seed, seed % 2) for seed in range(10)])
    labels = np.arange(10) % 2
    mean = torch.linspace(0, 1, backbone.embedding_dim)
    save_backbone(backbone, tmp_path / "weights.safetensors", training_mean=mean)
    model = FewShotClassifier(tmp_path / "weights.safetensors", device="cpu").fit(images, labels)
    np.testing.assert_array_equal(model.centre_, mean.numpy())
    assert FewShotClassifier(backbone).fit(images, labels).centre_ is None
    of_features = FewShotClassifier(centre=mean.numpy()).fit(model.support_features_, labels)
    np.testing.assert_array_equal(
        of_features.predict_proba(model.support_features_), model.predict_proba(images)
    )


@pytest.mark.parametrize("labels", [[1, "a"], ["a", 1.5], ("a", True), [np.int64(1), "a"]])
def test_labels_of_two_types_are_an_error(labels: Any) -> None:
    with pytest.raises(InputError, match="of one type"):
        FewShotClassifier().fit(np.eye(2), labels)


@pytest.fixture
def paths(tmp_path: Path) -> list[str]:
    """Eight files of two kinds of images."""
    paths = []
    for number in range(8):
        path = tmp_path / f"{number}.png"
        divisors = np.array([1, 5, 5] if number % 2 else [5, 1, 1], dtype=np.uint8)
        Image.fromarray(picture(number, 32) // divisors).save(path)
        paths.append(str(path))
    return paths


def test_images_that_cannot_be_read_can_be_skipped(paths: list[str], tmp_path: Path) -> None:
    model = FewShotClassifier(colours).fit(paths[:6], ["light", "dark"] * 3)
    bad = tmp_path / "bad.png"
    bad.write_bytes(b"x")
    mixed = [paths[6], str(bad), paths[7], "missing.png"]
    with pytest.raises(NearshotError):
        model.predict(mixed)
    with pytest.warns(UserWarning, match="2 of 4 images"):
        labels = model.predict(mixed, errors="skip")
    assert labels.tolist() == ["light", None, "dark", None]
    with pytest.warns(UserWarning, match="2 of 4 images"):
        probabilities = model.predict_proba(mixed, errors="skip")
    assert np.isnan(probabilities[[1, 3]]).all()
    np.testing.assert_array_equal(probabilities[[0, 2]], model.predict_proba([paths[6], paths[7]]))
    with pytest.warns(UserWarning, match="1 of 1 image"):
        assert model.predict([str(bad)], errors="skip").tolist() == [None]
    with pytest.raises(InputError, match="errors"):
        model.predict(mixed, errors="ignore")  # type: ignore[arg-type]


def test_any_head_works_behind_it_in_a_pipeline(paths: list[str]) -> None:
    labels = ["light", "dark"] * 3
    pipeline = make_pipeline(FewShotClassifier(colours), LogisticRegression(C=1e3))
    assert pipeline.fit(paths[:6], labels).predict(paths[6:]).tolist() == ["light", "dark"]
    embedding = FewShotClassifier(colours).fit(paths[:6], labels).transform(paths[6:])
    np.testing.assert_array_equal(embedding, Embedder(colours)(paths[6:]))


class Table:
    """What a table of pandas offers of its one column."""

    def __init__(self, column: list[str]) -> None:
        self.column = column
        self.shape = (len(column), 1)
        self.iloc = self

    def __getitem__(self, place: tuple[slice, int]) -> list[str]:
        assert place == (slice(None), 0)
        return self.column


@pytest.mark.parametrize(
    "table", [Table, lambda paths: np.array(paths)[:, None]], ids=["pandas", "array"]
)
def test_a_table_of_one_column_holds_images(table: Any, paths: list[str]) -> None:
    labels = ["light", "dark"] * 3
    expected = FewShotClassifier(colours).fit(paths[:6], labels).predict_proba(paths[6:])
    model = FewShotClassifier(colours).fit(table(paths[:6]), labels)
    np.testing.assert_array_equal(model.predict_proba(table(paths[6:])), expected)
    assert are_images(table(paths))


def test_embeddings_of_paths_are_cached_by_default(
    paths: list[str], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = tmp_path / "nearshot data" / "embeddings"
    pixels = [np.asarray(Image.open(path)) for path in paths]
    FewShotClassifier(conv4()).fit(pixels, ["light", "dark"] * 4)
    assert not folder.exists()
    with caplog.at_level("INFO", logger="nearshot"):
        model = FewShotClassifier(conv4()).fit(paths, ["light", "dark"] * 4)
    assert str(folder) in caplog.text
    assert len(list(folder.rglob("*.f*"))) == 8
    model.save(tmp_path / "model.safetensors")
    FewShotClassifier.load(tmp_path / "model.safetensors").predict(paths)
    assert len(list(folder.rglob("*.f*"))) == 8
    FewShotClassifier(conv4(), cache_dir=None).fit(paths, ["light", "dark"] * 4)
