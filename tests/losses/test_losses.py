"""Every loss against loops written from the paper; and the blocks of very large batches."""

import math
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import HealthCheck, example, given, settings
from tests import reference
from torch import Tensor

from nearshot.distances import DISTANCES, Distance, DistanceName, squared_euclidean
from nearshot.episode_shape import EpisodeShape
from nearshot.errors import InputError
from nearshot.losses import blocks as blocks_module
from nearshot.losses import (
    cross_entropy_loss,
    distillation_loss,
    episode_loss,
    matching_loss,
    mixed_loss,
    nca_loss,
    neighbour_distillation_loss,
    neighbour_loss,
    prototypical_loss,
    supervised_contrastive_loss,
)
from nearshot.losses import neighbours as neighbours_module
from nearshot.losses.nca import keep_exactly

few = settings(
    max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
BOTH_WAYS = pytest.mark.usefixtures("in_blocks")
BENCHMARKS = Path(__file__).parent.parent.parent / "benchmarks"
# A child process, since the peak of this one is that of whatever ran before; and `memory` resets
# what it inherits.
LARGE_BATCH = """
import sys, time, torch
sys.path.insert(0, sys.argv[1])
from memory import peak_mib_since_reset, reset_peak
from nearshot.losses import nca_loss

generator = torch.Generator().manual_seed(0)
embeddings = (0.3 * torch.randn(32_768, 128, generator=generator)).requires_grad_()
labels = torch.randint(1000, (32_768,), generator=generator)
nca_loss(embeddings[:512], labels[:512]).backward()
before = reset_peak()
start = time.perf_counter()
loss = nca_loss(embeddings, labels)
loss.backward()
print(time.perf_counter() - start, peak_mib_since_reset() - before)
"""


def random_batch(
    seed: int, n: int, dim: int, n_classes: int, scale: float = 0.7
) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    embeddings = scale * torch.randn(n, dim, dtype=torch.float64, generator=generator)
    return embeddings, torch.randint(n_classes, (n,), generator=generator)


def random_episode(
    seed: int, shape: EpisodeShape, dim: int, scale: float = 0.7
) -> tuple[Tensor, Tensor]:
    embeddings, _ = random_batch(seed, shape.batch_size, dim, 1, scale)
    classes = torch.randperm(50, generator=torch.Generator().manual_seed(seed))[: shape.n_way]
    labels = torch.cat(
        [classes.repeat_interleave(shape.n_shot), classes.repeat_interleave(shape.n_query)]
    )
    return embeddings, labels


def value_and_gradient(
    loss: Callable[[Tensor], Tensor], embeddings: Tensor
) -> tuple[Tensor, Tensor]:
    embeddings = embeddings.clone().requires_grad_()
    value = loss(embeddings)
    if not value.requires_grad:
        return value, torch.zeros_like(embeddings)
    (gradient,) = torch.autograd.grad(value, embeddings)
    return value.detach(), gradient


def assert_same(
    ours: Callable[[Tensor], Tensor], theirs: Callable[[Tensor], Tensor], embeddings: Tensor
) -> None:
    value, gradient = value_and_gradient(ours, embeddings)
    expected_value, expected_gradient = value_and_gradient(theirs, embeddings)
    torch.testing.assert_close(value, expected_value, rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(gradient, expected_gradient, rtol=1e-8, atol=1e-12)


seeds = st.integers(0, 2**31)
shapes = st.builds(EpisodeShape, st.integers(2, 4), st.integers(1, 3), st.integers(1, 3))


def of_support(loss: Callable[..., Tensor]) -> Callable[[Tensor, Tensor], Tensor]:
    """Return a loss of support and query as one of a batch whose first 8 images are the support."""
    return lambda z, y: loss(z[:8], y[:8], z[8:], y[8:])


# Losses of a batch of three classes and its labels, and their loops.
BATCH_LOSSES: dict[
    str, tuple[Callable[[Tensor, Tensor], Tensor], Callable[[Tensor, Tensor], Tensor]]
] = {
    "NCA": (nca_loss, reference.nca),
    "prototypical": (of_support(prototypical_loss), of_support(reference.prototypical)),
    "matching": (of_support(matching_loss), of_support(reference.matching)),
    "original matching": (
        of_support(partial(matching_loss, distance="cosine")),
        of_support(reference.matching_cosine),
    ),
    "supervised contrastive": (
        partial(supervised_contrastive_loss, temperature=0.5),
        partial(reference.supervised_contrastive, temperature=0.5),
    ),
    "supervised contrastive as published": (
        partial(supervised_contrastive_loss, temperature=1.0, variant="published"),
        partial(reference.supervised_contrastive_published, temperature=1.0),
    ),
    "cross-entropy": (cross_entropy_loss, partial(reference.cross_entropy, smoothing=0.0)),
    "smoothed cross-entropy": (
        partial(cross_entropy_loss, label_smoothing=0.1),
        partial(reference.cross_entropy, smoothing=0.1),
    ),
    "distillation": (
        lambda z, y: distillation_loss(z, z.flip(0), temperature=0.7),
        lambda z, y: reference.distillation(z, z.detach().flip(0), 0.7),
    ),
}


@BOTH_WAYS
@pytest.mark.parametrize("name", BATCH_LOSSES)
@few
@given(seed=seeds)
def test_each_loss_is_its_loop(name: str, seed: int) -> None:
    """Value and gradient; some images are alone of their class."""
    z, y = random_batch(seed, 13, 4, 3)
    y[:3] = torch.arange(3)  # each class has support
    ours, loop = BATCH_LOSSES[name]
    assert_same(lambda z: ours(z, y), lambda z: loop(z, y), z)


EPISODE_REFERENCES: dict[tuple[bool, bool], Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]] = {
    (True, True): reference.prototypical,
    (False, True): reference.matching,
    (True, False): reference.queries_and_prototypes,
    (False, False): lambda s, sy, q, qy: reference.nca(torch.cat([s, q]), torch.cat([sy, qy])),
}


@BOTH_WAYS
@pytest.mark.parametrize(("prototypes", "separate"), EPISODE_REFERENCES)
@few
@given(seed=seeds, shape=shapes)
def test_each_ablation_is_the_papers_loop(
    prototypes: bool, separate: bool, seed: int, shape: EpisodeShape
) -> None:
    embeddings, labels = random_episode(seed, shape, dim=3)

    def loop(z: Tensor) -> Tensor:
        support, query = shape.split(z)
        support_labels, query_labels = shape.split(labels)
        return EPISODE_REFERENCES[prototypes, separate](
            support, support_labels, query, query_labels
        )

    assert_same(
        lambda z: episode_loss(z, labels, shape, prototypes=prototypes, separate=separate),
        loop,
        embeddings,
    )


@BOTH_WAYS
@few
@given(seeds, st.floats(0.1, 4.0), st.booleans(), st.sampled_from([1e-10, 1e-4, 0.05]))
def test_background_is_the_published_arithmetic(
    seed: int, scale: float, same_set: bool, floor: float
) -> None:
    """Value and gradient equal the literal formula, with floors and dropped anchors."""
    anchors, anchor_labels = random_batch(seed, 7, 3, 3, scale)
    candidates, labels = random_batch(seed + 1, 6, 3, 3, scale)
    if same_set:
        labels = anchor_labels

    def ours(z: Tensor) -> Tensor:
        others = z if same_set else candidates
        return neighbour_loss(z, anchor_labels, others, labels, same_set=same_set, background=floor)

    def loop(z: Tensor) -> Tensor:
        others = z if same_set else candidates
        return reference.published(z, anchor_labels, others, labels, same_set=same_set, floor=floor)

    assert_same(ours, loop, anchors)


@pytest.mark.parametrize(
    "loss",
    [
        lambda z, y, **settings: neighbour_loss(z, y, z, y, same_set=True, **settings),
        nca_loss,
        lambda z, y, **settings: mixed_loss(z, z, y, cross_entropy_weight=0.5, **settings),
        lambda z, y, **settings: prototypical_loss(z[:8], y[:8], z[8:], y[8:], **settings),
        lambda z, y, **settings: matching_loss(z[:8], y[:8], z[8:], y[8:], **settings),
        lambda z, y, **settings: episode_loss(
            z, y, EpisodeShape(4, 2, 2), prototypes=True, separate=True, **settings
        ),
    ],
    ids=["neighbour", "nca", "mixed", "prototypical", "matching", "episode"],
)
def test_by_default_a_loss_is_exact(loss: Callable[..., Tensor]) -> None:
    embeddings, _ = random_batch(0, 16, 4, 1, 4.0)
    labels = torch.arange(4).repeat_interleave(2).repeat(2)
    settings = {"temperature": 1.0, "background": 0.0, "distance": "euclidean"}
    exact = loss(embeddings, labels, **settings)
    assert loss(embeddings, labels) == exact
    for other in ({"temperature": 1.1}, {"background": 1e-3}, {"distance": "cosine"}):
        assert loss(embeddings, labels, **settings | other) != exact


@BOTH_WAYS
@few
@given(seeds, st.floats(0.2, 5.0))
def test_temperature_divides_the_distances_and_can_be_learnt(seed: int, temperature: float) -> None:
    embeddings, labels = random_batch(seed, 6, 2, 2)

    assert_same(
        lambda t: nca_loss(embeddings, labels, temperature=t[0], background=1e-10),
        lambda t: reference.published(
            embeddings, labels, embeddings, labels, same_set=True, temperature=t[0]
        ),
        torch.tensor([temperature], dtype=torch.float64),
    )


def test_a_callable_is_a_distance_and_is_given_float32_of_half_precision() -> None:
    embeddings, labels = random_batch(0, 8, 3, 2)

    def manhattan(a: Tensor, b: Tensor) -> Tensor:
        return (a[:, None] - b).abs().sum(2)

    euclidean = nca_loss(embeddings, labels, distance=lambda a, b: torch.cdist(a, b) ** 2)
    torch.testing.assert_close(euclidean, nca_loss(embeddings, labels))
    assert nca_loss(embeddings, labels, distance=manhattan) != euclidean
    coarse = nca_loss(embeddings.bfloat16(), labels, distance=manhattan)
    torch.testing.assert_close(
        coarse, nca_loss(embeddings.bfloat16().float(), labels, distance=manhattan)
    )
    # In turn: it would be stretched to all pairs.
    with pytest.raises(InputError, match=r"distance .*\(8, 8\).*\(8,\)"):
        nca_loss(embeddings, labels, distance=lambda a, b: (a - b).abs().sum(1))


def test_a_second_derivative_needs_a_callable_where_the_loss_is_in_blocks(in_blocks: bool) -> None:
    embeddings, labels = random_batch(0, 6, 2, 2)
    embeddings.requires_grad_()
    assert torch.autograd.gradgradcheck(
        lambda z: nca_loss(z, labels, distance=squared_euclidean), embeddings
    )
    if in_blocks:
        with pytest.raises(InputError, match="squared_euclidean"):
            torch.autograd.grad(nca_loss(embeddings, labels), embeddings, create_graph=True)


@BOTH_WAYS
@pytest.mark.parametrize("temperature", [1.0, 0.9])
def test_a_large_common_offset_costs_no_digits(temperature: float) -> None:
    embeddings, labels = random_batch(0, 64, 16, 4)
    shifted = (embeddings + 100).float()
    value, gradient = value_and_gradient(
        lambda z: nca_loss(z, labels, temperature=temperature), shifted
    )
    exact, exact_gradient = value_and_gradient(
        lambda z: nca_loss(z, labels, temperature=temperature, distance=squared_euclidean),
        shifted.double(),
    )
    torch.testing.assert_close(value.double(), exact, rtol=1e-6, atol=0)
    assert (gradient - exact_gradient).norm() < 1e-5 * exact_gradient.norm()


@BOTH_WAYS
@few
@given(seeds, st.sampled_from([0.0, 0.05, 0.3, 0.8, 1.0]), st.sampled_from([0.0, 0.1, 0.5, 1.0]))
def test_subsampling_uses_exactly_the_kept_pairs(
    seed: int, positives: float, negatives: float
) -> None:
    embeddings, labels = random_batch(seed, 8, 3, 3)
    generator = torch.Generator().manual_seed(seed)
    same = labels[:, None] == labels
    kept = keep_exactly(same & ~torch.eye(8, dtype=torch.bool), positives, generator)
    kept = kept | keep_exactly(~same, negatives, generator)

    def ours(z: Tensor) -> Tensor:
        return nca_loss(
            z,
            labels,
            background=1e-10,
            keep_positives=positives,
            keep_negatives=negatives,
            generator=torch.Generator().manual_seed(seed),
        )

    kept_pairs = None if positives == negatives == 1 else kept
    assert_same(
        ours,
        lambda z: reference.published(z, labels, z, labels, same_set=True, kept_pairs=kept_pairs),
        embeddings,
    )


@few
@given(seeds, st.integers(1, 30), st.floats(0, 1))
@example(0, 10, 1 - 1e-9)
def test_the_number_of_kept_pairs_is_exact(seed: int, n: int, fraction: float) -> None:
    pairs = torch.rand(n, n, generator=torch.Generator().manual_seed(seed)) < 0.5
    kept = keep_exactly(pairs, fraction, torch.Generator().manual_seed(seed))
    assert int(kept.sum()) == math.floor(int(pairs.sum()) * fraction)
    assert not (kept & ~pairs).any()


def test_every_pair_is_kept_equally_often() -> None:
    pairs = ~torch.eye(5, dtype=torch.bool)
    generator = torch.Generator().manual_seed(0)
    n_draws = 4000
    times_kept = sum(keep_exactly(pairs, 0.4, generator).double() for _ in range(n_draws))
    frequencies = times_kept[pairs] / n_draws  # type: ignore[index]
    five_sigma = 5 * math.sqrt(0.4 * 0.6 / n_draws)
    assert (frequencies - 0.4).abs().max() < five_sigma


@settings(max_examples=60, deadline=None)
@given(
    seeds,
    st.integers(1, 40),
    st.integers(1, 40),
    st.integers(1, 12),
    st.integers(1, 300),
    st.booleans(),
    st.booleans(),
    st.sampled_from([0.0, 1e-10]),
    st.sampled_from([1.0, 0.3]),
    st.sampled_from(["euclidean", "cosine"]),
)
def test_blocks_of_any_size_equal_the_dense_loss(
    seed: int,
    n_anchors: int,
    n_candidates: int,
    n_classes: int,
    pairs_per_block: int,
    same_set: bool,
    with_mask: bool,
    background: float,
    temperature: float,
    distance: DistanceName,
) -> None:
    anchors, anchor_labels = random_batch(seed, n_anchors, 3, n_classes, 2.0)
    if same_set:
        candidates = anchors
        labels = anchor_labels
    else:
        candidates, labels = random_batch(seed + 1, n_candidates, 3, n_classes, 2.0)
    kept = None
    if with_mask:
        generator = torch.Generator().manual_seed(seed)
        kept = torch.rand(len(anchors), len(candidates), generator=generator) < 0.7

    def loss(z: Tensor, how: DistanceName | Distance) -> Tensor:
        return neighbour_loss(
            z,
            anchor_labels,
            z if same_set else candidates.requires_grad_(),
            labels,
            same_set=same_set,
            temperature=temperature,
            background=background,
            distance=how,
            kept_pairs=kept,
        )

    dense = DISTANCES[distance]  # a callable is not split up
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(neighbours_module, "PAIRS_BEFORE_BLOCKS_CPU", 0)
        patch.setattr(blocks_module, "PAIRS_PER_BLOCK_CPU", pairs_per_block)
        assert_same(lambda z: loss(z, distance), lambda z: loss(z, dense), anchors)
        # There is a shorter way where no gradient is needed.
        with torch.no_grad():
            torch.testing.assert_close(
                loss(anchors, distance), loss(anchors, dense), rtol=1e-10, atol=1e-12
            )
        if not same_set:
            (in_blocks,) = torch.autograd.grad(loss(anchors, distance), candidates)
            (at_once,) = torch.autograd.grad(loss(anchors, dense), candidates)
            torch.testing.assert_close(in_blocks, at_once, rtol=1e-8, atol=1e-12)


@BOTH_WAYS
def test_both_sides_get_their_gradient_when_one_is_detached() -> None:
    """With same_set the candidates may be another tensor: a frozen copy must get no gradient."""
    embeddings, labels = random_batch(3, 20, 3, 4)

    def loss(z: Tensor, how: DistanceName | Distance) -> Tensor:
        return neighbour_loss(z, labels, z.detach().clone(), labels, same_set=True, distance=how)

    assert_same(lambda z: loss(z, "euclidean"), lambda z: loss(z, squared_euclidean), embeddings)


def test_a_large_batch_is_computed_in_blocks() -> None:
    embeddings, labels = random_batch(0, 400, 8, 20)
    embeddings.requires_grad_()

    def is_in_blocks(loss: Tensor) -> bool:
        return "BlockwiseLoss" in type(loss.grad_fn).__name__

    assert is_in_blocks(nca_loss(embeddings, labels))
    assert not is_in_blocks(nca_loss(embeddings[:300], labels[:300]))
    assert not is_in_blocks(nca_loss(embeddings, labels, distance=squared_euclidean))


@pytest.mark.slow
def test_32768_embeddings_in_under_two_gib_and_90_seconds() -> None:
    command = [sys.executable, "-c", LARGE_BATCH, str(BENCHMARKS)]
    output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    seconds, extra_mib = map(float, output.split())
    assert seconds < 90
    assert 10 < extra_mib < 2048


@BOTH_WAYS
@pytest.mark.parametrize(
    "loss",
    [
        nca_loss,
        lambda z, y: episode_loss(z, y, EpisodeShape(2, 3, 1), prototypes=True, separate=False),
        lambda z, y: matching_loss(z[:6], y[:6], z[6:], y[6:]),
    ],
    ids=["nca", "episode", "matching"],
)
def test_gradients_of_many_batches_with_labels_of_their_own(
    loss: Callable[[Tensor, Tensor], Tensor],
) -> None:
    """By `torch.func`, as support-set adaptation needs them."""
    episodes = [random_episode(seed, EpisodeShape(2, 3, 1), dim=3) for seed in range(4)]
    gradients, values = torch.func.vmap(torch.func.grad_and_value(loss))(
        *map(torch.stack, zip(*episodes, strict=True))
    )
    for (batch, labels), gradient, value in zip(episodes, gradients, values, strict=True):
        expected = value_and_gradient(lambda z: loss(z, labels), batch)  # noqa: B023 (called at once)
        torch.testing.assert_close((value, gradient), expected)


@pytest.mark.parametrize("distance", ["euclidean", "cosine"])
def test_distillation_of_neighbours_compares_what_each_image_picks(distance: DistanceName) -> None:
    """The teacher's embeddings may have another dimension; an image is not its own neighbour."""
    student, _ = random_batch(1, 6, 4, 3)
    teacher, _ = random_batch(2, 6, 9, 3)

    def logits(embeddings: Tensor) -> Tensor:
        others = ~torch.eye(6, dtype=torch.bool)
        return -DISTANCES[distance](embeddings, embeddings)[others].view(6, 5) / 1.3

    def ours(z: Tensor) -> Tensor:
        return neighbour_distillation_loss(
            z, teacher, temperature=1.3, distance=distance, distillation_temperature=2.0
        )

    def loop(z: Tensor) -> Tensor:
        return reference.distillation(logits(z), logits(teacher), 2.0)

    assert_same(ours, loop, student)


@given(st.floats(0, 1))
def test_the_mixture_is_weighted(weight: float) -> None:
    z, y = random_batch(2, 7, 4, 3)
    logits, _ = random_batch(3, 7, 4, 3)
    nca = nca_loss(z, y, background=1e-10)
    expected = weight * cross_entropy_loss(logits, y) + (1 - weight) * nca
    torch.testing.assert_close(
        mixed_loss(z, logits, y, cross_entropy_weight=weight, background=1e-10), expected
    )
