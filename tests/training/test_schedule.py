from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nearshot.training.schedule import learning_rate_factor


@given(st.integers(1, 400), st.lists(st.floats(0.01, 0.99), max_size=3))
def test_steps_fall_at_their_fractions_and_never_rise(n_steps: int, milestones: list[float]) -> None:
    factors = [
        learning_rate_factor(step, n_steps, schedule="steps", milestones=milestones, decay=0.5)
        for step in range(n_steps)
    ]
    for step, factor in enumerate(factors):
        passed = [fraction for fraction in milestones if step >= round(fraction * n_steps)]
        assert factor == 0.5 ** len(passed)
    assert factors == sorted(factors, reverse=True)


def test_the_papers_schedule_drops_once_after_84_of_120_epochs() -> None:
    factors = [learning_rate_factor(epoch * 75, 120 * 75, schedule="steps", milestones=(0.7,)) for epoch in range(120)]
    assert factors == [1.0] * 84 + [0.1] * 36


@given(st.integers(2, 400), st.floats(0, 1))
def test_a_cosine_falls_from_one_to_nothing_after_the_warm_up(n_steps: int, share: float) -> None:
    warm_up = share * n_steps / 2
    factors = [learning_rate_factor(step, n_steps, schedule="cosine", warm_up_steps=warm_up) for step in range(n_steps)]
    after = factors[math.ceil(warm_up) :]
    assert after == sorted(after, reverse=True)
    assert all(0 <= factor <= 1 for factor in factors)
    assert factors[-1] == pytest.approx(
        0.5 * (1 + math.cos(math.pi * (n_steps - 1 - warm_up) / (n_steps - warm_up))), abs=1e-9
    )


@pytest.mark.parametrize("schedule", ["steps", "constant", "cosine"])
def test_a_warm_up_rises_in_equal_parts(schedule: str) -> None:
    factors = [
        learning_rate_factor(step, 100, schedule=schedule, warm_up_steps=10)  # type: ignore[arg-type]
        for step in range(12)
    ]
    assert factors[:10] == pytest.approx([(step + 1) / 10 for step in range(10)])
    assert factors[10:] == ([1.0, 0.5 * (1 + math.cos(math.pi / 90))] if schedule == "cosine" else [1.0, 1.0])


def test_a_cosine_is_half_way_down_in_the_middle() -> None:
    factors = [learning_rate_factor(step, 14, schedule="cosine", warm_up_steps=4) for step in (4, 9, 13)]
    assert factors == pytest.approx([1.0, 0.5, 0.5 * (1 + math.cos(0.9 * math.pi))])
    assert learning_rate_factor(0, 1, schedule="cosine", warm_up_steps=1) == 1  # a warm-up that is all there is
