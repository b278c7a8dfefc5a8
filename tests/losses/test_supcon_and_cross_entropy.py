"""The two losses that are not made of neighbours, and the mixture."""

from __future__ import annotations

import math
from typing import Any

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given, settings
from torch import Tensor

import reference
from nearshot.losses import cross_entropy_loss, mixed_loss, nca_loss, supervised_contrastive_loss

few = settings(max_examples=25, deadline=None)


def batch(seed: int, n: int = 7) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(n, 4, dtype=torch.float64, generator=generator), torch.randint(3, (n,), generator=generator)


@few
@given(st.integers(0, 2**31), st.sampled_from([0.1, 0.5, 1.0]), st.sampled_from(["khosla", "published"]))
def test_both_variants_are_their_literal_loops(seed: int, temperature: float, variant: Any) -> None:
    z, y = batch(seed)
    if seed % 5 == 0:
        y = torch.zeros_like(y)  # nothing below the line of the published one
    z.requires_grad_()
    ours = supervised_contrastive_loss(z, y, temperature=temperature, variant=variant)
    loops = {"khosla": reference.supervised_contrastive, "published": reference.supervised_contrastive_published}
    loop = loops[variant](z, y, temperature)
    torch.testing.assert_close(ours, loop)
    if loop.requires_grad:
        torch.testing.assert_close(torch.autograd.grad(ours, z), torch.autograd.grad(loop, z), rtol=1e-7, atol=1e-10)


def test_the_defaults_are_those_of_khosla() -> None:
    z, y = batch(0, 20)
    assert supervised_contrastive_loss(z, y) == supervised_contrastive_loss(z, y, temperature=0.1, variant="khosla")


@pytest.mark.parametrize("temperature", [0.1, 0.02, 0.01])
def test_supcon_of_images_as_far_apart_as_can_be(temperature: float) -> None:
    """A small batch of one class at a low temperature: exp(−1 / 0.01) is under any floor, and still all there is."""
    opposite = torch.tensor([[1.0, 0.0], [-1.0, 0.0]])
    assert float(supervised_contrastive_loss(opposite, torch.zeros(2).long(), temperature=temperature)) == 0
    angles = torch.arange(3) * 2 * math.pi / 3
    triangle = torch.stack([angles.cos(), angles.sin()], 1)
    loss = supervised_contrastive_loss(triangle, torch.zeros(3).long(), temperature=temperature)
    assert float(loss) == pytest.approx(math.log(2), abs=1e-4)


@pytest.mark.parametrize("variant", ["khosla", "published"])
def test_supcon_gradcheck(variant: str) -> None:
    z, y = batch(5)
    temperature = torch.tensor(0.5, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(
        lambda a, t: supervised_contrastive_loss(a, y, temperature=t, variant=variant),  # type: ignore[arg-type]
        (z.requires_grad_(), temperature),
    )


def test_cross_entropy_is_the_formula() -> None:
    logits, labels = batch(1)
    expected = 0.0
    for row, label in zip(logits.tolist(), labels.tolist(), strict=True):
        expected -= math.log(math.exp(row[label]) / sum(math.exp(value) for value in row))
    assert cross_entropy_loss(logits, labels).item() == pytest.approx(expected / len(labels))


@given(st.floats(0, 1))
def test_the_mixture_is_weighted(weight: float) -> None:
    (z, y), (logits, _) = batch(2), batch(3)
    expected = weight * cross_entropy_loss(logits, y) + (1 - weight) * nca_loss(z, y, background=1e-10)
    torch.testing.assert_close(mixed_loss(z, logits, y, cross_entropy_weight=weight, background=1e-10), expected)
