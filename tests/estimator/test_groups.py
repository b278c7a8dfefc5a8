"""Images that show the same thing: which they are, and how they are held out together."""

import math
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests import reference
from tests.helpers.clouds import clouds, colours, conv4
from tests.helpers.grouped import bursts, random_groups
from tests.helpers.layouts import picture

from nearshot import FewShotClassifier
from nearshot.errors import InputError
from nearshot.estimator import groups as groups_module
from nearshot.estimator import ridge as ridge_module
from nearshot.estimator.calibration import weigh_temperatures
from nearshot.estimator.groups import Groups, are_chained, find_groups, find_look_alikes
from nearshot.estimator.leave_one_out import MAX_ROUNDS, held_out_scores, leave_one_out_rounds
from nearshot.estimator.novelty import held_out_novelties
from nearshot.estimator.ridge import ReweightedRidge
from nearshot.estimator.support import Support
from nearshot.evaluation import CLASSIFIERS

SIZES = st.lists(st.integers(1, 30), min_size=1, max_size=4)
SEEDS = st.integers(0, 1000)


def as_partition(numbers: Any) -> set[frozenset[int]]:
    """Return groups as sets of images, whatever their numbers."""
    members: dict[int, set[int]] = {}
    for image, number in enumerate(np.asarray(numbers).tolist()):
        members.setdefault(number, set()).add(image)
    return {frozenset(images) for images in members.values()}


@pytest.mark.parametrize("pairs_at_once", [1, 1 << 22])
@given(sizes=SIZES, seed=SEEDS)
def test_look_alikes_against_a_loop_over_all_pairs(
    pairs_at_once: int, sizes: list[int], seed: int
) -> None:
    generator = np.random.default_rng(seed)
    codes = generator.permutation(np.repeat(np.arange(len(sizes)), sizes))
    features = generator.normal(size=(len(codes), 4)) * generator.uniform(0.1, 9, (len(codes), 1))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(groups_module, "PAIRS_AT_ONCE", pairs_at_once)
        numbers = find_look_alikes(features, codes, 0.9)
    expected = reference.look_alike_groups(features.tolist(), codes.tolist(), 0.9)
    assert as_partition(numbers) == {frozenset(group) for group in expected}


def test_without_a_cosine_only_equal_features_of_a_class_are_a_group() -> None:
    features = np.array([[1.0, 2.0], [1.0, 2.0], [1.0, 2.0], [2.0, 4.0], [1.0, 2.001]])
    codes = np.array([0, 1, 0, 0, 0])
    numbers = find_look_alikes(features, codes)
    assert as_partition(numbers) == {frozenset(group) for group in ([0, 2], [1], [3], [4])}


def test_names_join_images_and_found_groups_of_any_class() -> None:
    features = np.eye(6)[[0, 0, 1, 2, 3, 4]]
    codes = np.array([0, 0, 0, 1, 1, 1])
    names = [None, "a", "b", "a", None, "b"]
    groups, is_chained = find_groups(features, codes, names=names)
    assert not is_chained
    assert groups.numbers.tolist() == [0, 0, 1, 0, 2, 1]
    assert groups.counts.tolist() == [2, 3]
    assert groups.n_copies == 1


def test_images_that_are_chained_together_are_no_groups() -> None:
    angles = np.arange(8) / 3  # each is near the next one
    chain = np.stack([np.cos(angles), np.sin(angles)], axis=1)
    features = np.concatenate([chain, chain + 0.01])
    codes = np.repeat([0, 1], 8)
    numbers = find_look_alikes(features, codes, 0.9)
    assert len(set(numbers.tolist())) == 2
    assert are_chained(numbers, codes)
    groups, is_chained = find_groups(features, codes, look_alike_cosine=0.9)
    assert is_chained
    assert groups.are_single


def test_a_single_class_of_copies_is_no_chain() -> None:
    numbers = np.array([0, 0, 0, 0, 0, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14])
    assert not are_chained(numbers, np.repeat([0, 1, 2], 5))


@given(sizes=SIZES, seed=SEEDS, n_names=st.integers(0, 4))
def test_no_group_is_split_between_kept_and_tested(
    sizes: list[int], seed: int, n_names: int
) -> None:
    groups = random_groups(sizes, seed, n_names=n_names)
    all_tested: list[int] = []
    for kept, tested in leave_one_out_rounds(groups):
        numbers_of_kept = set(groups.numbers[kept].tolist())
        assert not numbers_of_kept & set(groups.numbers[tested].tolist())
        assert set(groups.codes[kept].tolist()) == set(groups.codes.tolist())
        all_tested += tested.tolist()
    # A group can be tested if each of its classes has another one.
    is_only_group = groups.counts[groups.codes] == 1
    blocked = set(groups.numbers[is_only_group].tolist())
    testable = [
        image for image, number in enumerate(groups.numbers.tolist()) if number not in blocked
    ]
    assert sorted(all_tested) == testable


@given(
    group_sizes=st.lists(st.integers(1, 4), min_size=2, max_size=MAX_ROUNDS),
    n_classes=st.integers(1, 4),
)
def test_equal_classes_stay_equal(group_sizes: list[int], n_classes: int) -> None:
    of_class = torch.arange(len(group_sizes)).repeat_interleave(torch.tensor(group_sizes))
    codes = torch.arange(n_classes).repeat_interleave(len(of_class))
    numbers = of_class.repeat(n_classes) + len(group_sizes) * codes
    rounds = list(leave_one_out_rounds(Groups(numbers, codes, n_classes)))
    assert len(rounds) == len(group_sizes)
    for kept, tested in rounds:
        for images in (kept, tested):
            counts = torch.bincount(codes[images], minlength=n_classes)
            assert len(set(counts.tolist())) == 1


def test_a_group_that_spans_classes_is_tested_in_one_round() -> None:
    """As three cameras that took photos of ten classes."""
    codes = torch.arange(10).repeat_interleave(6)
    cameras = torch.arange(3).repeat(20)
    rounds = list(leave_one_out_rounds(Groups(cameras, codes, 10)))
    tested = [set(cameras[number.tested].tolist()) for number in rounds]
    assert sorted(camera for (camera,) in tested) == [0, 1, 2]


def test_votes_of_copies_are_one_vote() -> None:
    generator = torch.Generator().manual_seed(0)
    scores = torch.randn(8, 3, generator=generator, dtype=torch.float64)
    codes = torch.arange(8) % 3
    copies = torch.arange(8).repeat_interleave(torch.arange(1, 9))
    votes = 1 / torch.bincount(copies)[copies].double()
    expected = weigh_temperatures(scores, codes)
    temperatures = weigh_temperatures(scores[copies], codes[copies], votes)
    assert temperatures.values == expected.values
    assert temperatures.weights == pytest.approx(expected.weights)


@pytest.mark.parametrize("n_copies", [2, 3])
def test_an_estimate_counts_copies_once(n_copies: int) -> None:
    """Nearest centroids do not depend on how often each image is there."""
    drawn = clouds(3, spread=1.3)
    model = FewShotClassifier(classifier="centroid").fit(drawn.support, drawn.labels)
    expected = model.estimate_accuracy()
    model.fit(np.repeat(drawn.support, n_copies, axis=0), np.repeat(drawn.labels, n_copies))
    estimate = model.estimate_accuracy()
    assert (estimate.n, estimate.n_known) == (25, 4)
    assert estimate.recognised == pytest.approx(expected.recognised)
    assert estimate.mean == pytest.approx(expected.mean)
    assert estimate.interval == pytest.approx(expected.interval)
    assert (estimate.n_images, estimate.n_copies) == (25 * n_copies, 25 * (n_copies - 1))
    assert f"{25 * (n_copies - 1)} of {25 * n_copies} photos" in str(estimate)
    assert not expected.notes


def test_a_class_of_one_group_is_not_tested() -> None:
    drawn = clouds(3)
    groups = np.arange(25).astype(object)
    groups[:5] = "tern"
    model = FewShotClassifier().fit(drawn.support, drawn.labels, groups=groups)
    estimate = model.estimate_accuracy()
    assert estimate.n == 20
    assert estimate.look_alike_classes == ("class 0",)
    assert "class 0" in str(estimate)
    model.fit(drawn.support, drawn.labels, groups=drawn.labels)
    with pytest.raises(InputError, match="'class 4'"):
        model.estimate_accuracy()


@pytest.mark.parametrize(("dim", "limit"), [(3, 0), (3, 1000), (80, 0)])
def test_both_paths_of_held_out_ridge_against_a_loop(
    dim: int, limit: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ridge_module, "MAX_CLASS_PRODUCTS", limit)
    generator = torch.Generator().manual_seed(1)
    groups = random_groups([5, 11, 17, 3], 4, n_names=2)
    codes = groups.codes
    features = torch.randn(len(codes), dim, generator=generator, dtype=torch.float64)
    support = Support(features + codes[:, None], codes, 4)
    ridge = ReweightedRidge(support)
    held_out = held_out_scores(support, "ridge", groups=groups)  # fits in each round
    expected = dict(zip(held_out.images.tolist(), 0.06 * held_out.scores, strict=True))
    n_tested = 0
    for kept, tested in leave_one_out_rounds(groups):
        if len(tested) == 0:
            continue
        scores = ridge.held_out_scores(tested, kept)
        classes = [support.features[kept[codes[kept] == code]] for code in range(4)]
        for row, image in enumerate(tested.tolist()):
            torch.testing.assert_close(scores[row], expected[image], atol=1e-9, rtol=0)
            slow = reference.ridge_scores(classes, support.features[image])
            torch.testing.assert_close(
                scores[row], torch.tensor(slow, dtype=torch.float64), atol=1e-9, rtol=0
            )
            n_tested += 1
    assert n_tested == len(held_out.images) > 10


@pytest.mark.parametrize("dim", [4, 300])
def test_far_outliers_among_nearly_equal_images(dim: int) -> None:
    """While they are held out, hardly more than rounding is left of the products."""
    features = 1 + 1e-3 * np.random.default_rng(0).normal(size=(150, dim))
    features[:6] = 1e6
    groups = np.arange(150) // 6
    model = FewShotClassifier(normalise=False).fit(features, np.arange(150) % 3, groups=groups)
    assert 0 <= model.estimate_accuracy().mean <= 1
    assert np.isfinite(model.predict_proba(features)).all()


@given(st.lists(st.integers(1, 8), min_size=1, max_size=4), SEEDS, st.integers(0, 3))
def test_held_out_novelties_against_a_loop(sizes: list[int], seed: int, n_names: int) -> None:
    groups = random_groups(sizes, seed, n_names=n_names)
    codes = groups.codes
    generator = torch.Generator().manual_seed(seed)
    features = torch.randn(len(codes), 3, generator=generator, dtype=torch.float64)
    support = Support(features + codes[:, None], codes, len(sizes))
    between = support.between
    weight = 0 if between is None else 2  # a class alone has no distances to others
    expected = []
    for image in range(len(codes)):
        is_kept = groups.numbers != groups.numbers[image]
        classes = [support.features[is_kept & (codes == code)] for code in range(len(sizes))]
        freedom = sum(len(rows) - 1 for rows in classes)
        if any(len(rows) == 0 for rows in classes) or weight + freedom == 0:
            continue
        squares = [float((rows - rows.mean(0)).square().sum()) for rows in classes]
        shared = (weight * 0.225 * (between or 0) + sum(squares)) / (weight + freedom)
        ratios = []
        for rows, own in zip(classes, squares, strict=True):
            variance = (24 * shared + own) / (24 + len(rows) - 1) * (1 + 1 / len(rows))
            distance = float((support.features[image] - rows.mean(0)).square().sum())
            ratios.append(distance / variance)
        expected.append(min(ratios))
    novelties = held_out_novelties(support, groups=groups)
    np.testing.assert_allclose(novelties, expected, rtol=1e-6)


@pytest.mark.parametrize("classifier", CLASSIFIERS)
def test_bursts_are_not_taken_for_accuracy(classifier: Any) -> None:
    """Three things of each class, four photos each: photos are recognised by their copies."""
    differences = []
    too_high = []
    for seed in range(30):
        drawn = clouds(seed, n_shot=3, spread=1.4, n_query=40)
        features = bursts(drawn.support, 4, 0.2, seed)
        labels = np.repeat(drawn.labels, 4)
        model = FewShotClassifier(classifier=classifier)
        model.fit(features, labels)
        truth = model.score(drawn.query, drawn.query_labels)
        too_high.append(model.estimate_accuracy().mean - truth)
        model.fit(features, labels, groups=np.repeat(np.arange(15), 4))
        differences.append(model.estimate_accuracy().mean - truth)
    assert np.mean(too_high) > 0.1
    assert -0.1 < np.mean(differences) < 0.05


@pytest.mark.parametrize("classifier", ["ridge", "centroid"])
def test_bursts_do_not_make_new_photos_novel(classifier: str) -> None:
    """Held out alone, a photo is close to its copies, and photos of other things seem novel."""
    rejected_alone = []
    rejected = []
    for seed in range(30):
        drawn = clouds(seed, n_shot=3, spread=1.1, n_query=40)
        features = bursts(drawn.support, 4, 0.2, seed)
        labels = np.repeat(drawn.labels, 4)
        model = FewShotClassifier(classifier=classifier, reject_rate=0.05).fit(features, labels)
        rejected_alone.append((model.predict(drawn.query) == "none of these").mean())
        model.fit(features, labels, groups=np.repeat(np.arange(15), 4))
        rejected.append((model.predict(drawn.query) == "none of these").mean())
    assert np.mean(rejected_alone) > 0.2
    assert np.mean(rejected) < 0.1


def photographs(n_things: int, n_copies: int) -> tuple[Any, Any]:
    """Return images of things of two classes, each in several brightnesses, and their labels."""
    images = []
    labels = []
    for thing in range(n_things):
        for copy in range(n_copies):
            images.append(picture(thing, 24) // 2 + 4 * copy)
            labels.append(thing % 2)
    return images, labels


def test_copies_are_found_with_a_backbone_that_tells_what_looks_alike() -> None:
    images, labels = photographs(6, 2)
    backbone = conv4()
    assert FewShotClassifier(backbone).fit(images, labels).fitted_state().groups.are_single
    backbone.spec = replace(backbone.spec, look_alike_cosine=0.999)
    groups = FewShotClassifier(backbone).fit(images, labels).fitted_state().groups
    assert groups.numbers.tolist() == np.repeat(np.arange(6), 2).tolist()


def test_groups_are_in_a_file(tmp_path: Path) -> None:
    images, labels = photographs(6, 2)
    backbone = conv4()
    backbone.spec = replace(backbone.spec, look_alike_cosine=0.999)
    names = [None] * 8 + ["a"] * 4
    model = FewShotClassifier(backbone).fit(images, labels, groups=names)
    model.save(tmp_path / "model.safetensors")
    loaded = FewShotClassifier.load(tmp_path / "model.safetensors")
    expected = np.array([0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 4, 4])
    for state in (model.fitted_state(), loaded.fitted_state()):
        assert state.groups.numbers.tolist() == expected.tolist()
    assert loaded.estimate_accuracy() == model.estimate_accuracy()
    loaded.partial_fit(images[:1], [1], groups=["a"])
    assert loaded.fitted_state().groups.numbers.tolist() == [*expected, 4]


def test_a_warning_where_all_images_look_alike() -> None:
    images, labels = photographs(12, 1)
    backbone = conv4()
    backbone.spec = replace(backbone.spec, look_alike_cosine=-1.0)
    with pytest.warns(UserWarning, match="look alike"):
        model = FewShotClassifier(backbone).fit(images, labels)
    assert model.fitted_state().groups.are_single
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        FewShotClassifier(colours).fit(images, labels)


def test_given_groups_are_kept() -> None:
    drawn = clouds(0, n_shot=2, n_way=3)
    model = FewShotClassifier().fit(
        drawn.support, drawn.labels, groups=["a", "a", 7, None, "b", math.nan]
    )
    assert model.fitted_state().given_groups == ["a", "a", "7", None, "b", None]
    more = clouds(1, n_shot=2, n_way=3)
    model.partial_fit(more.support, more.labels, groups=["b", "c", "7", "c", "d", "d"])
    assert model.fitted_state().groups.numbers.tolist() == [0, 0, 1, 2, 3, 4, 3, 5, 1, 5, 6, 6]
    model.partial_fit(more.support + 1, more.labels)
    model.forget("class 0")
    assert model.fitted_state().given_groups == [
        *("7", None, "b", None),
        *("7", "c", "d", "d"),
        *[None] * 4,
    ]


@pytest.mark.parametrize("groups", [["a"], ["a"] * 26])
def test_groups_are_one_name_per_image(groups: list[str]) -> None:
    drawn = clouds(0)
    with pytest.raises(InputError, match=f"groups .*25.* {len(groups)}"):
        FewShotClassifier().fit(drawn.support, drawn.labels, groups=groups)


def test_groups_change_no_score() -> None:
    drawn = clouds(0)
    alone = FewShotClassifier().fit(drawn.support, drawn.labels)
    grouped = FewShotClassifier().fit(
        drawn.support, drawn.labels, groups=np.tile([0, 0, 1, 1, 2], 5)
    )
    np.testing.assert_array_equal(grouped.predict(drawn.query), alone.predict(drawn.query))
    np.testing.assert_array_equal(grouped.novelty(drawn.query), alone.novelty(drawn.query))
    assert grouped.temperature_ != alone.temperature_
