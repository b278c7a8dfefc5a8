"""What a batch can be at its worst: each case is right, or one clear error."""

import contextlib
import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from nearshot.distances import cosine
from nearshot.episode_shape import EpisodeShape
from nearshot.errors import InputError
from nearshot.losses import (
    cross_entropy_loss,
    episode_loss,
    matching_loss,
    mixed_loss,
    nca_loss,
    neighbour_loss,
    prototypical_loss,
    supervised_contrastive_loss,
)

SHAPE = EpisodeShape(4, 2, 2)
LABELS = torch.cat([torch.arange(4).repeat_interleave(2)] * 2)


def _episodic(prototypes: bool, separate: bool) -> Callable[[Tensor, Tensor], Tensor]:
    return lambda z, y: episode_loss(
        z, y, SHAPE, prototypes=prototypes, separate=separate, background=1e-10
    )


LOSSES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "nca": nca_loss,
    "nca published": lambda z, y: nca_loss(z, y, background=1e-10),
    "nca some pairs": lambda z, y: nca_loss(
        z, y, keep_negatives=0.5, generator=torch.Generator().manual_seed(0)
    ),
    "nca cosine": lambda z, y: nca_loss(z, y, distance="cosine"),
    "prototypical": _episodic(True, True),
    "matching": _episodic(False, True),
    "row 7": _episodic(True, False),
    "row 3": _episodic(False, False),
    "supcon": supervised_contrastive_loss,
    "supcon published": lambda z, y: supervised_contrastive_loss(
        z, y, variant="published", temperature=1.0
    ),
    "mixed": lambda z, y: mixed_loss(z, z[..., :4], y, cross_entropy_weight=0.5),
    "cross-entropy": cross_entropy_loss,
    "candidates": lambda z, y: neighbour_loss(embeddings(), LABELS, z, y),
    "support of prototypes": lambda z, y: prototypical_loss(z, y, embeddings(), LABELS),
    "support": lambda z, y: matching_loss(z, y, embeddings(), LABELS),
    "query": lambda z, y: matching_loss(embeddings(), LABELS, z, y),
}
BOTH_WAYS = pytest.mark.usefixtures("in_blocks")
every_loss = pytest.mark.parametrize("loss", LOSSES.values(), ids=LOSSES)


def embeddings(scale: float = 1.0, dtype: torch.dtype = torch.float32) -> Tensor:
    return (scale * torch.randn(16, 8, generator=torch.Generator().manual_seed(0))).to(dtype)


def finite_gradient(loss: Callable[[Tensor, Tensor], Tensor], z: Tensor, y: Tensor) -> Tensor:
    z = z.clone().requires_grad_()
    value = loss(z, y)
    value.backward()
    assert value.isfinite()
    assert z.grad is not None
    assert z.grad.isfinite().all()
    return value.detach()


@BOTH_WAYS
@every_loss
@pytest.mark.parametrize("scale", [0.0, 1e-20, 1.0, 30.0, 1000.0], ids=lambda s: f"scale {s:g}")
def test_value_and_gradient_are_finite_at_any_distance(
    loss: Callable[[Tensor, Tensor], Tensor], scale: float
) -> None:
    """From identical embeddings (0) to squared distances over a million (1000)."""
    finite_gradient(loss, embeddings(scale), LABELS)


@BOTH_WAYS
@every_loss
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_computed_in_float32(
    loss: Callable[[Tensor, Tensor], Tensor], dtype: torch.dtype
) -> None:
    z = embeddings(3.0, dtype)
    value = finite_gradient(loss, z, LABELS)
    assert value.dtype == torch.float32
    torch.testing.assert_close(value, loss(z.float(), LABELS))


@BOTH_WAYS
@every_loss
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_autocast_does_not_touch_the_distances(
    loss: Callable[[Tensor, Tensor], Tensor], dtype: torch.dtype
) -> None:
    z = embeddings(10.0, dtype)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        mixed = loss(z, LABELS)
    torch.testing.assert_close(mixed, loss(z, LABELS), rtol=0, atol=0)


def test_odd_batches_have_the_right_value() -> None:
    assert finite_gradient(nca_loss, torch.ones(1, 3), torch.tensor([0])) == 0  # one image alone
    identical = nca_loss(torch.ones(16, 3), LABELS)
    assert identical.item() == pytest.approx(-math.log(3 / 15), rel=1e-6)  # a random choice
    huge = torch.tensor([[3e38], [3e38]])  # finite, but not their sum
    assert nca_loss(huge, torch.tensor([0, 1])) == 0
    expected = nca_loss(embeddings(), LABELS)
    torch.testing.assert_close(nca_loss(embeddings(), LABELS, temperature=torch.ones(1)), expected)
    torch.testing.assert_close(nca_loss(embeddings(), LABELS.to(torch.uint8)), expected)


@BOTH_WAYS
def test_distances_up_to_a_million_give_the_right_value() -> None:
    z = torch.tensor([[0.0], [1000.0], [1001.0]], dtype=torch.float32)
    labels = torch.tensor([0, 0, 1])
    # Anchor 0: d² = 1e6 to its positive, 1002001 to its negative. Anchor 1: 1e6 and 1. Anchor 2 has
    # no positive.
    assert nca_loss(z, labels).item() == pytest.approx((0 + (1e6 - 1) + 0) / 3, rel=1e-6)


@BOTH_WAYS
def test_an_anchor_without_a_positive_adds_nothing_and_counts() -> None:
    with_lonely = torch.cat([embeddings(), torch.full((1, 8), 50.0)])
    labels = torch.cat([LABELS, torch.tensor([99])])
    without = nca_loss(embeddings(), LABELS)
    torch.testing.assert_close(finite_gradient(nca_loss, with_lonely, labels), without * 16 / 17)


@BOTH_WAYS
@pytest.mark.parametrize("background", [0.0, 1e-10])
@pytest.mark.parametrize(
    "labels", [torch.zeros(16), torch.arange(16)], ids=["one class only", "no two alike"]
)
def test_batches_without_negatives_or_without_positives_cost_nothing(
    labels: Tensor, background: float
) -> None:
    value = finite_gradient(
        lambda z, y: nca_loss(z, y, background=background), embeddings(0.1), labels.long()
    )
    assert value.item() == pytest.approx(0, abs=1e-9)


@BOTH_WAYS
@every_loss
@pytest.mark.parametrize(
    ("z", "y", "message"),
    [
        (embeddings()[:, 0], LABELS, r"\(16,\)"),
        (embeddings().long(), LABELS, "torch.int64"),
        (embeddings(), LABELS[:5], r"\(16,\).*\(5,\)"),
        (embeddings(), LABELS[:, None], r"\(16, 1\)"),
        (embeddings(), LABELS.float(), "torch.float32"),
        (embeddings().index_fill(0, torch.tensor([3]), torch.nan), LABELS, "row 3"),
        (torch.empty(0, 8), torch.empty(0, dtype=torch.int64), r"\(0, 8\)"),
    ],
    ids=["1-D", "integer", "too few labels", "2-D labels", "float labels", "NaN", "no image"],
)
def test_bad_input_is_one_clear_error(
    loss: Callable[[Tensor, Tensor], Tensor], z: Tensor, y: Tensor, message: str
) -> None:
    with pytest.raises(InputError, match=message):
        loss(z, y)


@BOTH_WAYS
@pytest.mark.parametrize(
    "name", sorted(LOSSES.keys() - {"candidates", "support of prototypes", "support", "query"})
)
def test_values_of_another_device_are_not_read(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The device "meta" has no values: reading one, or making a tensor on the CPU, would fail."""
    # It has no autocast.
    monkeypatch.setattr(torch, "autocast", lambda *_, **__: contextlib.nullcontext())
    z = embeddings().to("meta")
    y = LABELS.to("meta")
    assert LOSSES[name](z, y).is_meta
    for loss in (nca_loss, supervised_contrastive_loss):
        assert loss(z, y, temperature=torch.tensor(0.5, device="meta")).is_meta


@pytest.mark.parametrize(
    "name", ["nca", "nca published", "prototypical", "row 3", "supcon", "mixed"]
)
def test_compiles_in_one_piece(name: str) -> None:
    compiled = torch.compile(LOSSES[name], fullgraph=True, backend="eager")
    torch.testing.assert_close(compiled(embeddings(), LABELS), LOSSES[name](embeddings(), LABELS))


@BOTH_WAYS
def test_two_precisions_meet_in_the_higher() -> None:
    z = embeddings()
    mixed = neighbour_loss(z.double(), LABELS, z, LABELS)
    assert mixed.dtype == torch.float64
    torch.testing.assert_close(mixed, neighbour_loss(z.double(), LABELS, z.double(), LABELS))


def test_a_zero_vector_is_as_far_from_every_direction_and_gets_no_gradient() -> None:
    torch.testing.assert_close(cosine(torch.zeros(1, 8), embeddings()), torch.full((1, 16), 0.5))
    for name in ("nca cosine", "supcon", "supcon published"):
        z = embeddings().index_fill(0, torch.tensor([2]), 0.0).requires_grad_()
        LOSSES[name](z, LABELS).backward()
        assert z.grad is not None
        assert z.grad[2].abs().max() == 0
        assert z.grad.abs().max() < 100


def test_a_weight_of_one_or_zero_does_not_look_at_the_other_loss() -> None:
    z = embeddings()
    nothing = torch.full((16, 8), torch.nan)
    assert mixed_loss(nothing, z, LABELS, cross_entropy_weight=1.0) == cross_entropy_loss(z, LABELS)
    assert mixed_loss(z, nothing, LABELS, cross_entropy_weight=0.0) == nca_loss(z, LABELS)


def mistakes() -> dict[str, Callable[[], Tensor]]:
    """Calls that must fail, by the error that they give."""
    z = embeddings()
    y = LABELS
    reversed_queries = torch.cat([y[:8], y[8:].flip(0)])
    stranger = torch.tensor([0, 0, 1, 1, 2, 2, 3, 7])
    prototypes = _episodic(True, True)
    all_but_one = torch.ones(16, 15, dtype=torch.bool)
    return {
        "kept_pairs .*15": lambda: neighbour_loss(z, y, z, y, kept_pairs=all_but_one),
        "^same_set ": lambda: neighbour_loss(z, y, z[:5], y[:5], same_set=True),
        "^same_set": lambda: neighbour_loss(z, y, z, y.flip(0), same_set=True),
        "label 7, ": lambda: matching_loss(z[:8], y[:8], z[8:], stranger),
        "2 support images of each of 4 different": lambda: prototypes(z, y.flip(0).roll(1)),
        "2 support images of each of ": lambda: prototypes(z, reversed_queries),
        "16.*12": lambda: prototypes(z[:12], y[:12]),
        "of each of 4 different classes": lambda: prototypes(z, y % 2),
        "cross_entropy_weight": lambda: mixed_loss(z, z, y, cross_entropy_weight=2.0),
        "simclr": lambda: supervised_contrastive_loss(z, y, variant="simclr"),  # type: ignore[arg-type]
        "temperature .*0.0": lambda: supervised_contrastive_loss(z, y, temperature=0.0),
        "temperature .*nan": lambda: nca_loss(z, y, temperature=float("nan")),
        "temperature .*-1": lambda: nca_loss(z, y, temperature=torch.tensor(-1.0)),
        "distance .*manhattan": lambda: nca_loss(z, y, distance="manhattan"),  # type: ignore[arg-type]
        "keep_positives .*1.5": lambda: nca_loss(z, y, keep_positives=1.5),
        "generator": lambda: nca_loss(z, y, keep_negatives=0.5),
    }


@pytest.mark.parametrize("message", mistakes())
def test_a_mistake_is_one_error_that_names_it(message: str) -> None:
    with pytest.raises(InputError, match=message):
        mistakes()[message]()
