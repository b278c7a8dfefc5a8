"""What `FewShotClassifier` answers, learns, forgets and refuses, on features and on pictures."""

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
from tests import reference
from tests.helpers.clouds import clouds, colours, conv4, tinted
from tests.helpers.layouts import picture

from nearshot import FewShotClassifier
from nearshot.errors import InputError
from nearshot.estimator.support import PAIRS_AT_ONCE
from nearshot.evaluation import CLASSIFIERS, prepare_features, sample_episodes
from nearshot.models import save_backbone

NAMES = tuple(CLASSIFIERS)


@pytest.mark.parametrize("n_shot", [1, 5])
@pytest.mark.parametrize("name", NAMES)
def test_answers_are_those_of_evaluation(name: Any, n_shot: int) -> None:
    """What is measured over episodes is what is used."""
    generator, labels = torch.Generator().manual_seed(0), torch.arange(12).repeat_interleave(25)
    features = torch.randn(12, 8, generator=generator)[labels] + torch.randn(
        300, 8, generator=generator
    )
    centre = features.mean(0)
    prepared = prepare_features(features.double(), centre=centre.double())
    episodes = sample_episodes(labels, n_shot=n_shot, n_episodes=20, seed=1)
    for support, query in zip(episodes.support, episodes.query.flatten(1), strict=True):
        scores = CLASSIFIERS[name](prepared[support][None], prepared[query][None])[0]
        model = FewShotClassifier(classifier=name, centre=centre.numpy())
        model.fit(features[support].flatten(0, 1).numpy(), np.repeat(np.arange(5), n_shot))
        np.testing.assert_array_equal(
            model.predict(features[query].numpy()), scores.argmax(1).numpy()
        )


@settings(max_examples=30, deadline=None)
@given(
    st.lists(st.integers(1, 6), min_size=1, max_size=4),
    st.integers(0, 10**6),
    st.sampled_from(NAMES),
)
def test_answers_against_loops_with_unequal_classes(sizes: list[int], seed: int, name: Any) -> None:
    generator = np.random.default_rng(seed)
    labels = np.repeat(np.arange(len(sizes)), sizes)
    support, query = generator.normal(size=(len(labels), 3)), generator.normal(size=(7, 3))
    answers = (
        FewShotClassifier(classifier=name, normalise=False).fit(support, labels).predict(query)
    )
    answer_of: dict[str, Any] = reference.ANSWERS | {
        "soft": lambda classes, q: max(
            range(len(classes)), key=lambda c: (-((classes[c] - q) ** 2)).sum(1).exp().mean()
        ),
        "knn": lambda classes, q: reference.knn_answer(classes, q, k=min(sizes)),
    }
    classes = [torch.from_numpy(support[labels == code]) for code in range(len(sizes))]
    assert answers.tolist() == [answer_of[name](classes, q) for q in torch.from_numpy(query)]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("centre", ["auto", "support"])
def test_learning_bit_by_bit_is_learning_at_once(name: Any, centre: Any) -> None:
    drawn = clouds(0)
    order = np.random.default_rng(0).permutation(len(drawn.labels))
    options: dict[str, Any] = {"classifier": name, "centre": centre, "unknown_rate": 0.1}
    at_once = FewShotClassifier(**options).fit(drawn.support[order], drawn.labels[order])
    bit_by_bit = FewShotClassifier(**options)
    for part in np.split(order, [3, 4, 11]):
        bit_by_bit.partial_fit(drawn.support[part], drawn.labels[part])
    np.testing.assert_array_equal(bit_by_bit.classes_, at_once.classes_)
    np.testing.assert_array_equal(bit_by_bit.predict(drawn.query), at_once.predict(drawn.query))
    np.testing.assert_array_equal(
        bit_by_bit.predict_proba(drawn.query), at_once.predict_proba(drawn.query)
    )
    assert (bit_by_bit.temperature_, bit_by_bit.threshold_) == (
        at_once.temperature_,
        at_once.threshold_,
    )


def test_forgetting_is_as_if_it_had_never_been() -> None:
    drawn = clouds(1)
    model = FewShotClassifier(unknown_rate=0.05).fit(drawn.support, drawn.labels).forget("class 2")
    stays = drawn.labels != "class 2"
    never = FewShotClassifier(unknown_rate=0.05).fit(drawn.support[stays], drawn.labels[stays])
    np.testing.assert_array_equal(
        model.predict_proba(drawn.query), never.predict_proba(drawn.query)
    )
    assert model.threshold_ == never.threshold_
    assert len(model.support_names_) == len(model.support_features_) == 20
    model.partial_fit(drawn.support[~stays], drawn.labels[~stays])
    assert model.score(drawn.query, drawn.query_labels) > 0.9
    for wrong, last in (("fish", "cat"), ("cat", None)):
        few = FewShotClassifier().fit(np.eye(2), ["cat", "dog"])
        with pytest.raises(InputError, match=f"got '{wrong}'"):
            (few if last else few.forget("dog")).forget(wrong)


def test_a_failed_fit_or_addition_changes_nothing() -> None:
    drawn = clouds(2)
    model = FewShotClassifier(unknown_rate=0.1).fit(drawn.support, drawn.labels)
    before = model.predict_proba(drawn.query)
    for features, labels, words in (
        (np.zeros((1, 16)), ["new"], "zero"),
        (np.full((1, 16), np.nan), ["new"], "NaN"),
        (drawn.support[:1], [3], "one type"),
        (drawn.support[:1, :4], ["new"], "expecting 16 features"),
    ):
        with pytest.raises(ValueError, match=words):
            model.partial_fit(features, labels)
    with pytest.raises(InputError, match="unknown_label .*'unknown'"):
        model.fit(
            drawn.support[:, :3], np.where(drawn.labels == "class 0", "unknown", drawn.labels)
        )
    assert model.n_features_in_ == 16
    np.testing.assert_array_equal(model.predict_proba(drawn.query), before)


@pytest.mark.parametrize("missing", [None, float("nan")])
def test_a_missing_label_is_refused_before_anything_is_embedded(missing: Any) -> None:
    for model, images in (
        (FewShotClassifier(), np.eye(3)),
        (FewShotClassifier(colours), ["a.png", "b.png", "c.png"]),
    ):
        with pytest.raises(InputError, match=f"needs a label .*{missing}"):
            model.fit(images, ["cat", missing, "dog"])


@pytest.mark.parametrize(
    "room", [PAIRS_AT_ONCE, 1]
)  # whatever the blocks in which they are compared
def test_the_same_picture_in_two_classes_or_twice_in_one_is_named(
    room: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By its pixels, whatever the file: embeddings that are equal accuse nobody."""
    monkeypatch.setattr("nearshot.estimator.support.PAIRS_AT_ONCE", room)
    for seed in range(14):
        Image.fromarray(picture(seed % 7, 224)).save(
            tmp_path / f"{seed}.png", compress_level=seed // 7
        )
    paths, labels = [str(tmp_path / f"{seed}.png") for seed in range(14)], ["ant"] * 7 + ["bee"] * 7
    pairs = [f"{paths[i]} in 'ant' and {paths[i + 7]} in 'bee'" for i in range(7)]
    with pytest.warns(UserWarning, match="in two classes") as caught:
        FewShotClassifier(colours).fit(paths, labels)
    assert f": {', '.join(pairs[:5])} and 2 more. " in str(caught[0].message)
    assert caught[0].filename == __file__
    with pytest.warns(
        UserWarning, match=f"twice in one class: {paths[0]} in 'ant' and {paths[7]} in 'ant'. "
    ):
        FewShotClassifier(colours).fit(paths[:8], [*labels[:7], "ant"])
    model = FewShotClassifier(colours).fit(paths[:7], labels[:7])
    with pytest.warns(UserWarning, match="in two classes") as caught:
        model.partial_fit(paths[13:], ["bee"])
    assert f": {pairs[6]}. " in str(caught[0].message)
    FewShotClassifier(lambda images: np.ones((len(images), 3), np.float32)).fit(
        paths[:7], ["ant"] * 3 + ["bee"] * 4
    )


def test_one_class_and_one_image() -> None:
    model = FewShotClassifier().fit([[1.0, 2.0]], ["cat"])
    assert model.predict([[3.0, 1.0]]).tolist() == ["cat"]
    assert model.predict_proba([[3.0, 1.0]]).tolist() == [[1.0]]
    with pytest.raises(InputError, match="unknown_rate needs at least 2"):
        FewShotClassifier(unknown_rate=0.05).fit([[1.0, 2.0]], ["cat"])


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"classifier": "svm"}, "no classifier 'svm'"),
        ({"n_neighbors": 0}, "n_neighbors .*got 0"),
        ({"temperature": 0}, "temperature .*got 0"),
        ({"unknown_rate": 1}, "unknown_rate .*got 1"),
        ({"unknown_rate": 0.1, "unknown_label": "dog"}, "unknown_label .*got 'dog'"),
        ({"centre": "mean"}, "centre .*got 'mean'"),
        ({"centre": np.zeros(3)}, r"centre .*\(2,\)"),
    ],
)
def test_settings_that_mean_nothing(settings: dict[str, Any], words: str) -> None:
    model = FewShotClassifier(**settings)  # says nothing yet, as scikit-learn wants it
    with pytest.raises(InputError, match=words):
        model.fit([[1.0, 0.0], [0.0, 1.0]], ["cat", "dog"])
    with pytest.raises(NotFittedError):
        model.predict([[1.0, 0.0]])


@pytest.mark.parametrize("changed", [{"unknown_rate": 0.2}, {"centre": np.ones(16)}], ids=str)
def test_settings_changed_after_fit_want_another_fit(changed: dict[str, Any]) -> None:
    drawn = clouds(0)
    model = FewShotClassifier(classifier="knn", centre=np.zeros(16)).fit(
        drawn.support, drawn.labels
    )
    before, settings = model.predict(drawn.query), model.get_params()
    with pytest.raises(InputError, match=rf"(?s)^{next(iter(changed))} was .* is .* now"):
        model.set_params(**changed).predict(drawn.query)
    np.testing.assert_array_equal(model.set_params(**settings).predict(drawn.query), before)
    np.testing.assert_array_equal(
        model.set_params(centre=np.zeros(16), verbose=True).predict(drawn.query), before
    )


def test_one_thread_learns_and_forgets_while_others_ask() -> None:
    """Every answer is by one support set; labels of one with features of another would be wrong, or none."""
    directions = np.eye(8)
    images, labels = np.repeat(directions[:3], 10, axis=0), np.repeat(["a", "b", "c"], 10)
    model = FewShotClassifier().fit(images, labels)
    done, seen = threading.Event(), set()

    def ask() -> None:
        while not done.is_set():
            try:
                seen.add(str(model.predict(directions[2:3])[0]))
                one = model.explain(directions[2:3], n_neighbors=1)[0]
                seen.update({str(one.label), str(one.neighbours[0].label)})
            except Exception as error:  # whatever it is, it is to be seen
                seen.add(repr(error))

    threads = [threading.Thread(target=ask) for _ in range(3)]
    switch = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        for thread in threads:
            thread.start()
        for _ in range(20):
            model.forget("a").partial_fit(images[:10], ["a"] * 10)
    finally:
        sys.setswitchinterval(switch)
        done.set()
        for thread in threads:
            thread.join()
    assert seen == {"c"}


def test_tensors_that_want_gradients() -> None:
    drawn = clouds(0)
    support, query = (
        torch.tensor(values, requires_grad=True) for values in (drawn.support, drawn.query)
    )
    expected = FewShotClassifier().fit(drawn.support, drawn.labels).predict(drawn.query)
    model = FewShotClassifier().fit(support, drawn.labels)
    for same in (query, list(query), query.bfloat16()):
        np.testing.assert_array_equal(model.predict(same), expected)


@pytest.mark.parametrize("name", NAMES)
def test_explanations(name: Any) -> None:
    drawn = clouds(4, spread=0.8)
    has_weights = name in ("soft", "knn")
    model = FewShotClassifier(classifier=name, unknown_rate=0.1).fit(drawn.support, drawn.labels)
    pictures = np.concatenate([drawn.query, drawn.strangers])
    distances, indices = model.kneighbors(pictures, 25)
    unit = drawn.support / np.linalg.norm(drawn.support, axis=1, keepdims=True)
    asked = pictures / np.linalg.norm(pictures, axis=1, keepdims=True)
    np.testing.assert_allclose(
        distances, np.sort(np.linalg.norm(asked[:, None] - unit, axis=2), axis=1), atol=1e-7
    )
    answers, probabilities = model.predict(pictures), model.predict_proba(pictures)
    told = model.explain(pictures, n_neighbors=25)
    assert {one.is_unknown for one in told} == {True, False}
    for row, one in enumerate(told):
        assert one.label == answers[row]
        assert one.is_unknown == (answers[row] == "unknown")
        assert one.nearest == model.classes_[probabilities[row].argmax()]
        assert one.probability == pytest.approx(probabilities[row].max())
        assert [n.index for n in one.neighbours] == indices[row].tolist()
        assert [n.distance for n in one.neighbours] == distances[row].tolist()
        assert [n.label for n in one.neighbours] == drawn.labels[indices[row]].tolist()
        shares = dict.fromkeys(model.classes_.tolist(), 0.0)
        for n in one.neighbours:
            assert (n.weight is not None) == has_weights
            shares[n.label] += n.weight or 0.0
        assert sum(shares.values()) == pytest.approx(float(has_weights))
        assert shares[one.nearest] == pytest.approx(max(shares.values()))
    assert told[0].neighbours[0].name == f"image {indices[0, 0]}"
    assert told[0].neighbours[0].name in str(told[0])
    with pytest.raises(InputError, match="n_neighbors"):
        model.kneighbors(pictures, 0)


def with_ties(seed: int) -> tuple[Any, Any, Any]:
    """Support, labels and queries of small whole numbers, among which many distances are equal."""
    generator = np.random.default_rng(seed)
    images, query = generator.integers(0, 2, (40, 6)), generator.integers(0, 2, (60, 6))
    images[:, 0] = query[:, 0] = 1
    return images.astype(float), np.tile(list("dbca"), 10), query.astype(float)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("normalise", [True, False])
def test_ties_are_decided_alike_whatever_else_is_asked(name: Any, normalise: bool) -> None:
    """Rounding differs with the number of rows in a product; at a tie it alone would choose the neighbours."""
    images, labels, query = with_ties(0)
    model = FewShotClassifier(classifier=name, normalise=normalise).fit(images, labels)
    answers, probabilities, (_, indices) = (
        model.predict(query),
        model.predict_proba(query),
        model.kneighbors(query, 7),
    )
    told = model.explain(query, n_neighbors=40)
    for row in range(len(query)):
        alone = query[row : row + 1]
        assert model.predict(alone)[0] == answers[row] == told[row].label == told[row].nearest
        np.testing.assert_allclose(model.predict_proba(alone)[0], probabilities[row], atol=1e-9)
        assert model.kneighbors(alone, 7)[1].tolist() == [indices[row].tolist()]
    if name == "knn" and not normalise:
        squares = ((query[:, None] - images) ** 2).sum(2)
        for row, one in enumerate(told):
            nearest = np.lexsort(
                [labels, squares[row]]
            ).tolist()  # of ties, the first class, and of it the first image
            assert indices[row].tolist() == nearest[:7]
            assert [neighbour.index for neighbour in one.neighbours if neighbour.weight] == nearest[
                :10
            ]


def test_pictures_of_every_kind(tmp_path: Path) -> None:
    Image.fromarray(tinted(0, 0)).save(tmp_path / "red.png")
    pictures = [tmp_path / "red.png", Image.fromarray(tinted(1, 0)), tinted(2, 2), tinted(3, 2)]
    model = FewShotClassifier(colours).fit(pictures, ["red", "red", "blue", "blue"])
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
        FewShotClassifier(colours).fit(pictures, ["red"])


def test_a_backbone_centres_by_its_training_set(tmp_path: Path) -> None:
    backbone = conv4()
    pictures = np.stack([tinted(seed, seed % 2) for seed in range(10)])
    labels = np.arange(10) % 2
    mean = torch.linspace(0, 1, backbone.embedding_dim)
    save_backbone(backbone, tmp_path / "weights.safetensors", training_mean=mean)
    model = FewShotClassifier(tmp_path / "weights.safetensors", device="cpu").fit(pictures, labels)
    np.testing.assert_array_equal(model.centre_, mean.numpy())
    assert FewShotClassifier(backbone).fit(pictures, labels).centre_ is None
    with_features = FewShotClassifier(centre=mean.numpy()).fit(model.support_features_, labels)
    np.testing.assert_array_equal(
        with_features.predict_proba(model.support_features_), model.predict_proba(pictures)
    )
