"""The samplers: what a batch may contain, reproducibility, state, ranks and speed."""

import math
from collections.abc import Callable
from functools import partial
from itertools import islice
from typing import Any

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given, settings
from torch import Tensor

from nearshot.data import EpisodeBatches, EpisodeShape, IndependentBatches, ShuffledBatches
from nearshot.data.samplers import Batches, distinct_integers
from nearshot.errors import InputError

few = settings(max_examples=40, deadline=None)
seeds = st.integers(0, 2**31)

SHUFFLED = torch.randperm(240, generator=torch.Generator().manual_seed(0))
LABELS = torch.arange(12).repeat_interleave(20)[SHUFFLED]
SHAPE = EpisodeShape(n_way=4, n_shot=2, n_query=3)

# Every sampler, on 240 images in 12 classes, in batches of 20.
SAMPLERS: dict[str, Callable[..., Batches]] = {
    "shuffled": partial(ShuffledBatches, 240, 20),
    "independent": partial(IndependentBatches, 240, 20),
    "episodes": partial(EpisodeBatches, LABELS, SHAPE),
}
every_sampler = pytest.mark.parametrize("sampler", SAMPLERS.values(), ids=SAMPLERS)


def stacked(batches: Batches) -> Tensor:
    return torch.stack(list(batches))


@every_sampler
def test_same_seed_same_batches_and_another_seed_other_batches(
    sampler: Callable[..., Batches],
) -> None:
    first = sampler(seed=3)
    second = sampler(seed=3)
    other = sampler(seed=4)
    epochs = [stacked(first) for _ in range(2)]
    for epoch in epochs:
        assert torch.equal(epoch, stacked(second))
        assert not torch.equal(epoch, stacked(other))
        for batch in epoch:
            assert len(batch.unique()) == len(batch) == 20
            assert 0 <= int(batch.min()) <= int(batch.max()) < 240
    assert not torch.equal(*epochs)
    assert (first.epoch, len(first), len(epochs[0])) == (2, 12, 12)
    assert torch.equal(stacked(sampler()), stacked(sampler(seed=0)))


@every_sampler
def test_a_generator_gives_each_sampler_a_stream_of_its_own(
    sampler: Callable[..., Batches],
) -> None:
    generator = torch.Generator().manual_seed(3)
    epoch = stacked(sampler(seed=generator))
    assert torch.equal(epoch, stacked(sampler(seed=torch.Generator().manual_seed(3))))
    assert not torch.equal(epoch, stacked(sampler(seed=generator)))


@every_sampler
@settings(max_examples=20, deadline=None)
@given(n_taken=st.integers(0, 30))
def test_a_restored_sampler_resumes_exactly(sampler: Callable[..., Batches], n_taken: int) -> None:
    """Stopped after any number of batches, and restored into a sampler of another seed."""
    original = sampler(seed=1)
    n_epochs, within = divmod(n_taken, len(original))
    for _ in range(n_epochs):
        list(original)
    iterator = iter(original)
    for _ in range(within):
        next(iterator)
    restored = sampler(seed=99)
    next(iter(restored))  # it may even have been in use
    restored.load_state_dict(original.state_dict())
    for _ in range(2):
        assert [b.tolist() for b in restored] == [b.tolist() for b in original]
    assert restored.epoch == original.epoch


@every_sampler
def test_taking_exactly_an_epoch_leaves_the_next_one(sampler: Callable[..., Batches]) -> None:
    """However the batches are taken: a full epoch by islice() is followed by a full epoch."""
    batches = sampler(seed=1)
    first = list(islice(batches, len(batches)))
    assert batches.epoch == 1
    assert torch.equal(torch.stack(first), stacked(sampler(seed=1)))
    next(iter(batches))
    assert torch.equal(batches.epoch_indices(), torch.cat(list(batches)))


@every_sampler
def test_ranks_share_every_batch_and_may_resume_another_number_of_ranks(
    sampler: Callable[..., Batches],
) -> None:
    alone = sampler(seed=5)
    shares = [sampler(seed=rank, rank=rank, n_ranks=4) for rank in range(4)]
    next(iter(alone))
    for share in shares:
        share.load_state_dict(alone.state_dict())
    assert torch.equal(torch.cat([stacked(share) for share in shares], dim=1), stacked(alone))


def test_a_state_of_another_sampler_is_refused() -> None:
    state = SAMPLERS["shuffled"]().state_dict()
    with pytest.raises(
        InputError, match="sampler = 'ShuffledBatches'; this one has 'IndependentBatches'"
    ):
        SAMPLERS["independent"]().load_state_dict(state)
    with pytest.raises(InputError, match="n_shot = 2; this one has 1"):
        EpisodeBatches(LABELS, EpisodeShape(4, 1, 4)).load_state_dict(
            SAMPLERS["episodes"]().state_dict()
        )
    with pytest.raises(InputError, match="with labels = "):
        EpisodeBatches(LABELS.flip(0), SHAPE).load_state_dict(SAMPLERS["episodes"]().state_dict())


@few
@given(seeds, st.integers(1, 60), st.integers(1, 70))
def test_shuffled_visits_every_image_once(seed: int, n_images: int, batch_size: int) -> None:
    batches = ShuffledBatches(n_images, batch_size, seed=seed)
    for _ in range(2):
        epoch = list(batches)
        assert len(epoch) == len(batches)
        assert sorted(torch.cat(epoch).tolist()) == list(range(n_images))
        assert all(len(batch) == batch_size for batch in epoch[:-1])


def test_ranks_share_a_smaller_last_batch_where_there_is_one() -> None:
    shares = [list(ShuffledBatches(44, 20, rank=rank, n_ranks=4)) for rank in range(4)]
    assert [[len(batch) for batch in share] for share in shares] == [[5, 5, 1]] * 4
    together = [torch.cat(parts) for parts in zip(*shares, strict=True)]
    assert [batch.tolist() for batch in together] == [
        batch.tolist() for batch in ShuffledBatches(44, 20)
    ]
    short_epoch = ShuffledBatches(41, 20, n_batches=2, n_ranks=4)  # it ends before the 41st image
    epochs = [list(short_epoch) for _ in range(2)]
    assert [len(batch) for batch in epochs[0]] == [5, 5]
    assert not torch.equal(torch.cat(epochs[0]), torch.cat(epochs[1]))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: ShuffledBatches(40, 20, n_ranks=3), "n_ranks, not 20 by 3"),
        (lambda: IndependentBatches(10, 11, n_batches=1), "batch_size .* 10, not 11"),
        (lambda: ShuffledBatches(10, 11, drop_last=True), "batch_size .* 10, not 11"),
        (lambda: ShuffledBatches(41, 20, n_ranks=4), "1 images, .* 4 ranks .* drop_last=True"),
        (lambda: IndependentBatches(10, 2, n_batches=0), "n_batches .* not 0"),
        (lambda: ShuffledBatches(20, batch_size=4, n_batches=6), "n_batches .* 5, .* not 6"),
    ],
)
def test_impossible_batches(make: Callable[[], Batches], message: str) -> None:
    with pytest.raises(InputError, match=message):
        make()


@few
@given(
    seeds,
    st.lists(st.integers(4, 17), min_size=3, max_size=8),
    st.integers(1, 2),
    st.integers(1, 2),
)
def test_an_episode_is_laid_out_as_its_shape_says(
    seed: int, sizes: list[int], n_shot: int, n_query: int
) -> None:
    labels = torch.cat([torch.full((size,), 7 * k) for k, size in enumerate(sizes)])
    labels = labels[torch.randperm(len(labels), generator=torch.Generator().manual_seed(seed))]
    shape = EpisodeShape(3, n_shot, n_query)
    for episode in EpisodeBatches(labels, shape, seed=seed):
        support, query = shape.split(labels[episode])
        support = support.view(3, n_shot)
        query = query.view(3, n_query)
        assert (support == support[:, :1]).all()
        assert (query == support[:, :1]).all()
        assert len(support[:, 0].unique()) == 3
        assert len(episode.unique()) == shape.batch_size


def test_small_classes_are_skipped_where_they_may_be() -> None:
    labels = torch.tensor([0, *[1] * 10, *[2] * 3, *[3] * 10, *[4] * 10])
    shape = EpisodeShape(2, 1, 3)
    drawn = EpisodeBatches(labels, shape, least_images=4, n_batches=3).epoch_indices()
    assert set(labels[drawn].tolist()) == {1, 3, 4}
    # Of the images that take part.
    assert len(EpisodeBatches(labels, shape, least_images=4)) == 30 // 8
    with pytest.raises(InputError, match="Class 2 has 3 images"):
        EpisodeBatches(labels, shape, least_images=2)


EACH_12 = torch.tensor([0] * 25 + [1] * 12 + [2] * 25)


@pytest.mark.parametrize(
    ("labels", "shape", "options", "message"),
    [
        (
            EACH_12,
            (2, 5, 15),
            {"class_names": ["seal", "otter", "whale"]},
            "'otter' has 12 .* 20.*least_images 20",
        ),
        (
            torch.tensor([7] * 12 + [9] * 30),
            (2, 5, 15),
            {"class_names": ["seal"]},
            "Class 7 has 12 images",
        ),
        (
            torch.tensor([0] * 40 + [1] * 12 + [2] * 3 + [5]),
            (2, 5, 15),
            {},
            "Class 1 has 12 .* 3 classes",
        ),
        (EACH_12, (3, 1, 1), {"least_images": 20}, "2 classes of 20 .* 3"),
        (torch.zeros(9, dtype=torch.long), (2, 1, 1), {}, "1 class.* 2"),
        (EACH_12.float(), (2, 1, 1), {}, "labels .* torch.float32"),
    ],
)
def test_impossible_episodes_name_the_class(
    labels: Tensor, shape: tuple[int, int, int], options: dict[str, Any], message: str
) -> None:
    with pytest.raises(InputError, match=message):
        EpisodeBatches(labels, EpisodeShape(*shape), **options)


@pytest.mark.parametrize("upper", [5, 6], ids=["dense: Floyd", "sparse: drawn again"])
def test_every_ordered_draw_is_equally_likely(upper: int) -> None:
    n_rows = 60_000
    n_outcomes = upper * (upper - 1) * (upper - 2)
    drawn = distinct_integers(3, torch.full((n_rows,), upper), torch.Generator().manual_seed(0))
    codes = (drawn * torch.tensor([upper**2, upper, 1])).sum(1).bincount()
    counts = codes[codes > 0].double()
    assert len(counts) == n_outcomes
    expected = n_rows / n_outcomes
    chi_square = ((counts - expected) ** 2 / expected).sum()
    assert chi_square < n_outcomes - 1 + 5 * math.sqrt(2 * (n_outcomes - 1))


@pytest.mark.parametrize("kind", [ShuffledBatches, IndependentBatches])
def test_batches_of_nothing_and_seeds_over_64_bits_are_errors(kind: type[Batches]) -> None:
    for batch_size in (0, -1, 1.5):
        with pytest.raises(InputError, match="batch_size"):
            kind(10, batch_size)  # type: ignore[call-arg, arg-type]
    with pytest.raises(InputError, match="n_ranks"):
        kind(10, 2, n_ranks=0)  # type: ignore[call-arg]
    for seed in (1 << 70, -1):
        with pytest.raises(InputError, match="seed"):
            kind(10, 2, seed=seed)  # type: ignore[call-arg]
