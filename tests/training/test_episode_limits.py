"""Episodes that splits of few classes or images allow, and the classes that are left out of them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from settings import labels_of

from nearshot.episode_shape import EpisodeShape
from nearshot.errors import InputError
from nearshot.evaluation.episodes import EpisodeSource
from nearshot.evaluation.spec import EvaluationSpec, SmallClasses
from nearshot.training.episode_limits import EVALUATION, check_classes, episodes_that_fit


@given(
    sizes=st.lists(st.integers(1, 30), min_size=2, max_size=8).filter(lambda s: sum(one >= 2 for one in s) >= 2),
    n_way=st.integers(2, 8),
    shots=st.lists(st.integers(1, 12), min_size=1, max_size=3, unique=True),
    n_query=st.integers(1, 20),
    leave_out=st.booleans(),
)
def test_what_fits_can_be_drawn(sizes: list[int], n_way: int, shots: list[int], n_query: int, leave_out: bool) -> None:
    labels = labels_of(*sizes)
    small = episodes_that_fit(
        labels, "test", n_way=n_way, shots=shots, n_query=n_query, free=EVALUATION, leave_out=leave_out
    )
    assert 2 <= small.n_way <= n_way
    assert 1 <= small.n_query <= n_query
    assert max(small.shots) <= max(shots)
    for n_shot in small.shots:
        shape = EpisodeShape(small.n_way, n_shot, small.n_query)
        small_classes: SmallClasses = "leave out" if leave_out else small.least_images
        source = EpisodeSource(
            labels,
            EvaluationSpec(shape.n_way, shape.n_shot, shape.n_query, n_episodes=1, small_classes=small_classes),
        )
        assert leave_out or source.n_classes_left_out <= sizes.count(1) + len(sizes) // 5
    changed = (small.n_way, small.shots, small.n_query, small.least_images) != (n_way, tuple(shots), n_query, 1)
    assert bool(small.said) == changed


@pytest.mark.parametrize(
    ("sizes", "expected", "left_out"),
    [
        ([30] * 7 + [2], (5, (1, 5), 15), 1),
        ([30] * 7 + [1], (5, (1, 5), 15), 1),
        ([30] * 4 + [2], (4, (1, 5), 15), 1),  # rather fewer ways than fewer shots
        ([30] * 7 + [11], (5, (1, 5), 6), 0),  # over half of what an episode has: fewer queries
        ([2, 1, *[30] * 10], (5, (1, 5), 15), 2),
        ([30, 30, 2, 2, 2, 2], (5, (1,), 1), 0),  # most are small: these are the data
        ([12] * 9 + [5], (5, (1, 5), 7), 1),
        ([2, 1] * 3 + [3] * 3, (5, (1,), 1), 3),  # there is no episode of a single image
    ],
)
def test_a_tiny_class_does_not_ruin_a_measurement(
    sizes: list[int], expected: tuple[int, tuple[int, ...], int], left_out: int
) -> None:
    names = [f"kind {number}" for number in range(len(sizes))]
    small = episodes_that_fit(labels_of(*sizes), "test", n_way=5, shots=(1, 5), n_query=15, class_names=names)
    assert (small.n_way, small.shots, small.n_query) == expected
    tiny = [number for number, size in enumerate(sizes) if size < small.least_images]
    assert len(tiny) == left_out
    for number in tiny:
        assert f"'kind {number}' ({sizes[number]} image" in small.said[0]


def test_where_given_ways_are_too_many_nothing_is_lowered_in_vain() -> None:
    free = ["shots", "n_query"]
    small = episodes_that_fit(labels_of(3, 3, 3), "test", n_way=5, shots=(1, 5), n_query=15, free=free)
    assert (small.shots, small.n_query, small.said) == ((1, 5), 15, [])


def test_ways_that_were_given_keep_a_tiny_class() -> None:
    small = episodes_that_fit(labels_of(*[30] * 4, 2), "test", n_way=5, shots=(1, 5), n_query=15, free=["least_images"])
    assert (small.least_images, small.said) == (1, [])  # which is refused, and the class named


def test_classes_that_are_left_out_are_called_what_they_are() -> None:
    tiny = episodes_that_fit(labels_of(*[30] * 7, 2, 1), "test", n_way=5, shots=(5,), n_query=15)
    assert tiny.said == [
        "Far smaller than the other classes of the test split, and so left out of episodes: 7 (2 images), 8 (1 image)."
    ]
    single = episodes_that_fit(labels_of(3, 1, 3, 1), "test", n_way=2, shots=(1,), n_query=2)
    assert single.said == [
        "Classes of a single image in the test split, and so left out of episodes: 1 (1 image), 3 (1 image)."
    ]


def test_fewer_shots_are_said_with_the_images_that_more_would_have_needed() -> None:
    small = episodes_that_fit(labels_of(4, 4, 4), "test", n_way=3, shots=(1, 5, 10), n_query=2)
    assert (small.shots, small.n_query) == ((1,), 2)
    assert small.said == [
        "5 and 10-shot episodes need 6 images of a class; the test split has classes of 4: 1-shot.",
    ]
    fewest = episodes_that_fit(labels_of(4, 4, 4), "test", n_way=3, shots=(5,), n_query=1)
    assert fewest.said == ["5-shot episodes need 6 images of a class; the test split has classes of 4: 3-shot."]


def test_splits_that_are_too_small_for_anything_are_refused_together() -> None:
    check_classes({"training": labels_of(1, 1), "validation": labels_of(2, 2), "test": labels_of(2, 1, 2)})
    with pytest.raises(
        InputError,
        match=r"^The training split has 1 class, and to tell classes apart takes 2; the validation split has 1 class "
        r"of two images or more, and an episode needs 2\. .* Without a validation split the last epoch is kept\.$",
    ):
        check_classes({"training": labels_of(5), "validation": labels_of(3, 1)})
    with pytest.raises(
        InputError, match=r"^The test split has 0 classes of two images or more, and an episode needs 2\. "
    ) as refused:
        check_classes({"test": labels_of(1, 1, 1)})
    assert "validation" not in str(refused.value)
