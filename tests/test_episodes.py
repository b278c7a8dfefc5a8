"""The shape of an episode."""

from __future__ import annotations

import pytest
import torch

from nearshot.episode_shape import EpisodeShape
from nearshot.errors import InputError


@pytest.mark.parametrize(
    ("batch_size", "n_shot", "images_per_class", "expected"),
    [
        (256, 5, 8, EpisodeShape(32, 5, 3)),  # the example of Section 3.2
        (512, 5, 16, EpisodeShape(32, 5, 11)),  # the paper's best
        (128, 1, 32, EpisodeShape(4, 1, 31)),
    ],
)
def test_from_batch(batch_size: int, n_shot: int, images_per_class: int, expected: EpisodeShape) -> None:
    shape = EpisodeShape.from_batch(batch_size, n_shot=n_shot, images_per_class=images_per_class)
    assert shape == expected
    assert shape.batch_size == batch_size
    assert shape.images_per_class == images_per_class


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ((100, 5, 16), "100 .* 16 .* of 96"),
        ((8, 5, 8), "A batch of 8 .* of 16"),
        ((512, 8, 8), "8 images per class .* 8 shots.*images_per_class"),
    ],
)
def test_from_batch_says_what_to_do(given: tuple[int, int, int], message: str) -> None:
    with pytest.raises(InputError, match=message):
        EpisodeShape.from_batch(*given)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ((1, 1, 1), "n_way must be at least 2"),
        ((5, 1, 0), "n_query must be at least 1"),
        ((5, 1.5, 1), "n_shot must be a whole number, not 1.5"),
    ],
)
def test_impossible_shapes(given: tuple[int, int, int], message: str) -> None:
    with pytest.raises(InputError, match=message):
        EpisodeShape(*given)


def test_split() -> None:
    support, query = EpisodeShape(2, 3, 1).split(torch.arange(8))
    assert support.tolist() == [0, 1, 2, 3, 4, 5]
    assert query.tolist() == [6, 7]
