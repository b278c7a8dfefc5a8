"""The definitions of the classifiers against loops over single queries; ties; added classifiers."""

from typing import Any

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given, settings
from tests import reference
from tests.helpers.clusters import LABELS, features_for
from torch import Tensor

from nearshot.errors import InputError
from nearshot.evaluation import (
    CLASSIFIERS,
    Classifier,
    EvaluationSpec,
    evaluate_classes,
    evaluate_features,
    evaluate_many,
    knn,
    sample_episodes,
)
from nearshot.evaluation.classifiers import (
    RIDGE,
    TIE,
    best_of_class,
    first_best,
    n_behind,
    nearest_in_order,
    similarities,
    tied_nearest,
)

few = settings(max_examples=30, deadline=None)
OVERLAPPING = features_for(LABELS, noise=2.0).float()


def of_sizes(sizes: list[int], seed: int) -> tuple[list[Tensor], Tensor]:
    """Classes of any sizes, each (image, dim), and queries."""
    generator = torch.Generator().manual_seed(seed)
    classes = [torch.randn(size, 4, generator=generator, dtype=torch.float64) for size in sizes]
    return classes, torch.randn(7, 4, generator=generator, dtype=torch.float64)


@pytest.mark.parametrize("name", CLASSIFIERS)
@few
@given(st.integers(0, 2**31), st.integers(2, 5), st.integers(1, 5))
def test_each_classifier_is_its_loop(name: str, seed: int, n_way: int, n_shot: int) -> None:
    classes, query = of_sizes([n_shot] * n_way, seed)
    support = torch.stack(classes)
    answers = CLASSIFIERS[name](support, query).argmax(1)
    assert answers.tolist() == [reference.ANSWERS[name](support, image) for image in query]
    batched = CLASSIFIERS[name](
        torch.stack([support, support + 1]), torch.stack([query, query + 1])
    )
    assert batched.argmax(2).tolist() == [answers.tolist()] * 2


@few
@given(st.integers(0, 2**31), st.lists(st.integers(1, 5), min_size=2, max_size=5))
def test_classes_of_any_sizes(seed: int, sizes: list[int]) -> None:
    classes, query = of_sizes(sizes, seed)
    near = similarities(torch.cat(classes), query)
    scored = [CLASSIFIERS[name].scores(near, torch.tensor(sizes)) for name in ("soft", "knn")]
    for image, soft, votes in zip(query, *scored, strict=True):
        squares = [(images - image).square().sum(1) for images in classes]
        means = torch.stack([(-d2).exp().mean().log() for d2 in squares])
        torch.testing.assert_close(soft, means)
        neighbours = []
        for label, of_class in enumerate(squares):
            neighbours += [(d2, label) for d2 in of_class.tolist()]
        voters = [label for _, label in sorted(neighbours)[: min(sizes)]]
        assert votes.floor().tolist() == [voters.count(label) for label in range(len(sizes))]


@few
@given(st.integers(0, 2**31), st.lists(st.integers(1, 5), min_size=1, max_size=5), st.booleans())
def test_ridge_regression_on_classes_of_any_sizes(seed: int, sizes: list[int], wide: bool) -> None:
    """With more images than dimensions, and with fewer."""
    classes, query = of_sizes(sizes, seed)
    if wide:
        generator = torch.Generator().manual_seed(seed)
        stretch = torch.randn(4, 30, generator=generator, dtype=torch.float64)
        classes = [images @ stretch for images in classes]
        query = query @ stretch
    points, offsets = RIDGE.fit(torch.cat(classes), torch.tensor(sizes))  # type: ignore[misc]
    scores = RIDGE.scores(similarities(points, query), offsets)
    loop = [reference.ridge_scores(classes, image) for image in query]
    expected = torch.tensor(loop, dtype=torch.float64)
    if len(sizes) > 1 or sizes[0] > 1:  # one image has no distance to scale the penalty with
        torch.testing.assert_close(scores, expected, atol=1e-8, rtol=0)


def test_ridge_regression_on_equal_images_and_zeros() -> None:
    """Nothing is left to learn from: all classes have the same score."""
    for image in (torch.zeros(3), torch.tensor([0.1, 1 / 3, 2e5])):
        for dtype in (torch.float32, torch.float64):
            support = image.to(dtype).expand(4, 2, 3)
            scores = CLASSIFIERS["ridge"](support, support[0, :1])
            assert scores.isfinite().all()
            assert first_best(scores).tolist() == [0]


def test_a_tie_of_votes_goes_to_the_class_of_the_nearest_neighbour() -> None:
    support = torch.tensor([[[1.0], [3.0]], [[-1.5], [-2.0]], [[50.0], [60.0]]])
    query = torch.tensor([[0.0], [-0.5]])
    # k = 4: two votes each for the first two classes; the nearest to 0 is 1.0, to −0.5 it is −1.5.
    assert knn(k=4)(support, query).argmax(1).tolist() == [0, 1]
    assert knn(k=4, ties="first")(support, query).argmax(1).tolist() == [0, 0]
    assert knn(k=3, ties="first")(support, query).argmax(1).tolist() == [1, 1]  # two votes of three


@pytest.mark.parametrize("k", [1, 2, 12])
def test_other_k(k: int) -> None:
    support = torch.randn(3, 4, 5)
    query = torch.randn(6, 5)
    expected = [reference.knn_answer(support, image, k) for image in query]
    assert knn(k=k)(support, query).argmax(1).tolist() == expected
    with pytest.raises(InputError, match="12"):
        knn(k=13)(support, query)
    with pytest.raises(InputError, match="ties"):
        knn(ties="last")  # type: ignore[arg-type]
    with pytest.raises(InputError, match="k must"):
        knn(k=0)


def test_an_added_classifier_gives_its_own_answers_everywhere(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(CLASSIFIERS, "nearest", Classifier("nearest", best_of_class))
    features = OVERLAPPING
    settings: dict[str, Any] = {"n_way": 4, "n_query": 5, "n_episodes": 40, "normalise": False}
    episodes = sample_episodes(LABELS, n_way=4, n_query=5, n_episodes=40)
    support = features.double()[episodes.support].flatten(1, 2)
    query = features.double()[episodes.query].flatten(1, 2)
    nearest_images = torch.cdist(query, support).argmin(2)
    answers = nearest_images // 5  # five support images a class
    expected = 100 * (answers == torch.arange(4).repeat_interleave(5)).double().mean(1)
    accuracy = evaluate_features(features, LABELS, classifier="nearest", **settings)
    torch.testing.assert_close(accuracy.per_episode, expected)
    assert accuracy.protocol.classifier == "nearest"
    assert accuracy.protocol.inductive
    specs = [EvaluationSpec(classifier=classifier, **settings) for classifier in CLASSIFIERS]
    *others, own = evaluate_many(features, LABELS, specs=specs)
    assert torch.equal(own.per_episode, accuracy.per_episode)
    assert all(not torch.equal(other.per_episode, accuracy.per_episode) for other in others)
    by_class = evaluate_classes(features, LABELS, classifier="nearest", **settings).values()
    total = sum(of_class.mean * of_class.n_episodes for of_class in by_class)
    assert total / 160 == pytest.approx(accuracy.mean)


def test_a_name_that_is_taken_over_is_not_answered_by_the_fast_path(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    before = evaluate_features(OVERLAPPING, LABELS, classifier="knn", n_episodes=40)
    monkeypatch.setitem(CLASSIFIERS, "knn", Classifier("knn", best_of_class))
    after = evaluate_features(OVERLAPPING, LABELS, classifier="knn", n_episodes=40)
    assert not torch.equal(before.per_episode, after.per_episode)


whole_distances = st.lists(st.integers(0, 5), min_size=1, max_size=12)


def rounded(values: list[int], seed: int) -> tuple[Tensor, Tensor]:
    """Distances (1, image) with an error that is less than a tie's tolerance, and the tolerance."""
    noise = (
        torch.rand(len(values), generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
        - 0.5
    )
    tolerance = torch.tensor([[TIE * max(1, *values, 1)]], dtype=torch.float64)
    return torch.tensor([values], dtype=torch.float64) + 0.9 * tolerance * noise, tolerance


@settings(deadline=None)
@given(whole_distances, st.integers(1, 12), st.integers(0, 99))
def test_neighbours_go_by_exact_distance_and_then_by_place(
    values: list[int], k: int, seed: int
) -> None:
    k = min(k, len(values))
    distances, tolerance = rounded(values, seed)
    expected = sorted(range(len(values)), key=lambda image: (values[image], image))[:k]
    assert nearest_in_order(distances, k, tolerance).tolist() == [expected]
    assert tied_nearest(distances, k, tolerance)[0].nonzero()[:, 0].tolist() == sorted(expected)


@settings(deadline=None)
@given(whole_distances, st.integers(0, 99))
def test_classes_behind_and_the_first_of_the_best(values: list[int], seed: int) -> None:
    distances, tolerance = rounded(values, seed)
    assert n_behind(distances, tolerance).tolist() == [
        [sum(other > one for other in values) for one in values]
    ]
    # A tie of scores is a share of the scores, which are to be larger here than the distances that
    # the error is of.
    for highest in (20, -20):
        assert first_best(highest - distances).tolist() == [values.index(min(values))]
    excluded = torch.cat([distances.new_full((1, 1), -torch.inf), 20 - distances], 1)
    assert first_best(excluded).tolist() == [1 + values.index(min(values))]


def test_a_classifier_of_class_means_cannot_learn_from_images() -> None:
    with pytest.raises(InputError, match="'mine'"):
        Classifier(
            "mine",
            scores=lambda similarities, class_sizes: similarities,
            prototypes=True,
            fit=lambda points, class_sizes: (points, class_sizes),
        )
