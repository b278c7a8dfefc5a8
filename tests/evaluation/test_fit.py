"""Episodes that fit a split: they can be drawn, and settings that are given never change."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.helpers.settings import labels_of

from nearshot.episode_shape import ImagesByClass
from nearshot.evaluation import EvaluationSpec
from nearshot.evaluation.episodes import EpisodeSource
from nearshot.evaluation.fit import fit_episodes, fit_validation_episodes

sizes_of_classes = st.lists(st.integers(1, 30), min_size=2, max_size=8).filter(
    lambda sizes: sum(size >= 2 for size in sizes) >= 2
)


@given(sizes=sizes_of_classes)
def test_fitting_episodes_can_be_drawn(sizes: list[int]) -> None:
    labels = labels_of(*sizes)
    fitted = fit_episodes(ImagesByClass(labels), "test")
    assert 2 <= fitted.n_way <= 5
    assert 1 <= fitted.n_query <= 15
    assert max(fitted.n_shot) <= 5
    for n_shot in fitted.n_shot:
        spec = EvaluationSpec(
            n_way=fitted.n_way,
            n_shot=n_shot,
            n_query=fitted.n_query,
            least_images=fitted.least_images,
        )
        source = EpisodeSource(labels, spec)
        assert source.n_skipped_classes <= sizes.count(1) + len(sizes) // 5
    changed = (fitted.n_way, fitted.n_shot, fitted.n_query, fitted.least_images) != (
        5,
        (1, 5),
        15,
        1,
    )
    assert bool(fitted.messages) == changed


@given(
    sizes=sizes_of_classes,
    n_way=st.integers(2, 8),
    n_shot=st.lists(st.integers(1, 12), min_size=1, max_size=3, unique=True),
    n_query=st.integers(1, 20),
)
def test_fitting_validation_episodes_can_be_drawn(
    sizes: list[int], n_way: int, n_shot: list[int], n_query: int
) -> None:
    labels = labels_of(*sizes)
    fitted = fit_validation_episodes(
        ImagesByClass(labels),
        n_way=n_way,
        n_shot=n_shot,
        n_query=n_query,
        auto=("n_way", "n_shot", "n_query"),
    )
    assert 2 <= fitted.n_way <= n_way
    assert 1 <= fitted.n_query <= n_query
    assert max(fitted.n_shot) <= max(n_shot)
    spec = EvaluationSpec(
        n_way=fitted.n_way,
        n_shot=max(fitted.n_shot),
        n_query=fitted.n_query,
        least_images=fitted.least_images,
    )
    EpisodeSource(labels, spec)
    changed = (fitted.n_way, fitted.n_shot, fitted.n_query) != (n_way, tuple(n_shot), n_query)
    assert bool(fitted.messages) == changed


def test_given_settings_stay() -> None:
    """Those that a split does not allow are refused when the episodes are drawn."""
    by_class = ImagesByClass(labels_of(12, 12, 3))
    fitted = fit_episodes(by_class, "test", n_way=4, n_shot=(20,), n_query=30, least_images=2)
    assert (fitted.n_way, fitted.n_shot, fitted.n_query, fitted.least_images) == (4, (20,), 30, 2)
    assert fitted.messages == ()
    part = fit_episodes(by_class, "test", n_query=2)
    assert (part.n_way, part.n_shot, part.n_query, part.least_images) == (3, (1,), 2, 1)


@pytest.mark.parametrize(
    ("sizes", "expected", "n_skipped"),
    [
        ([30] * 7 + [2], (5, (1, 5), 15), 1),
        # Rather fewer ways than fewer shots.
        ([30] * 4 + [2], (4, (1, 5), 15), 1),
        # Over half of what an episode has: fewer queries.
        ([30] * 7 + [11], (5, (1, 5), 6), 0),
        # Most are small: these are the data.
        ([30, 30, 2, 2, 2, 2], (5, (1,), 1), 0),
        # There is no episode of a single image.
        ([2, 1] * 3 + [3] * 3, (5, (1,), 1), 3),
        ([4, 4, 4], (3, (1,), 3), 0),
    ],
)
def test_a_tiny_class_does_not_ruin_a_measurement(
    sizes: list[int], expected: tuple[int, tuple[int, ...], int], n_skipped: int
) -> None:
    names = [f"kind {number}" for number in range(len(sizes))]
    fitted = fit_episodes(ImagesByClass(labels_of(*sizes), names), "test")
    assert (fitted.n_way, fitted.n_shot, fitted.n_query) == expected
    tiny = [number for number, size in enumerate(sizes) if size < fitted.least_images]
    assert len(tiny) == n_skipped
    for number in tiny:
        assert f"'kind {number}' ({sizes[number]} image" in fitted.messages[0]
