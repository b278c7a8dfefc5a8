"""The shape of an episode."""

from collections.abc import Callable

import pytest
import torch

from nearshot.episode_shape import EpisodeShape
from nearshot.errors import InputError


def test_from_batch_and_split() -> None:
    for batch_size, n_shot, images_per_class, expected in (
        (256, 5, 8, EpisodeShape(32, 5, 3)),  # the example of Section 3.2
        (128, 1, 32, EpisodeShape(4, 1, 31)),
    ):
        shape = EpisodeShape.from_batch(
            batch_size, n_shot=n_shot, images_per_class=images_per_class
        )
        assert shape == expected
        assert shape.batch_size == batch_size
        assert shape.images_per_class == images_per_class
    support, query = EpisodeShape(2, 3, 1).split(torch.arange(8))
    assert (support.tolist(), query.tolist()) == ([0, 1, 2, 3, 4, 5], [6, 7])


@pytest.mark.parametrize(
    ("make", "given", "message"),
    [
        (EpisodeShape.from_batch, (100, 5, 16), "batch_size .*16.*100.*96"),
        (EpisodeShape.from_batch, (8, 5, 8), "batch_size .*8.*16"),
        (EpisodeShape.from_batch, (512, 8, 8), "images_per_class .*n_shot.*8 and 8"),
        (EpisodeShape, (1, 1, 1), "n_way must be .*at least 2"),
        (EpisodeShape, (5, 1, 0), "n_query must be .*at least 1"),
        (EpisodeShape, (5, 1.5, 1), "n_shot must be .*1.5"),
    ],
)
def test_impossible_shapes(
    make: Callable[..., EpisodeShape], given: tuple[float, ...], message: str
) -> None:
    with pytest.raises(InputError, match=message):
        make(*given)
