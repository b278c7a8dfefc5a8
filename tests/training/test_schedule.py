from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nearshot.training import PRESETS, TrainConfig
from nearshot.training.step import learning_rate_factor


def factors(n_steps: int, *, warm_up: float = 0.0, **settings: Any) -> list[float]:
    config = TrainConfig(epochs=n_steps, warm_up=warm_up, **settings)  # an epoch is a step
    return [learning_rate_factor(step, n_steps, config) for step in range(n_steps)]


@given(st.integers(1, 400), st.lists(st.floats(0.01, 0.99), max_size=3))
def test_steps_fall_at_their_fractions_and_never_rise(n_steps: int, milestones: list[float]) -> None:
    found = factors(n_steps, milestones=tuple(milestones), decay=0.5)
    assert found == [0.5 ** sum(step >= round(one * n_steps) for one in milestones) for step in range(n_steps)]
    assert found == sorted(found, reverse=True)


def test_the_papers_schedule_drops_once_after_84_of_120_epochs() -> None:
    config = PRESETS["mini-imagenet-nca"]
    assert [learning_rate_factor(epoch * 75, 120 * 75, config) for epoch in range(120)] == [1.0] * 84 + [0.1] * 36


@given(st.integers(2, 400), st.floats(0, 1))
def test_a_cosine_falls_from_one_to_nothing_after_the_warm_up(n_steps: int, share: float) -> None:
    warm_up = share * n_steps / 2
    found = factors(n_steps, schedule="cosine", warm_up=warm_up)
    after = found[math.ceil(warm_up) :]
    assert after == sorted(after, reverse=True)
    assert all(0 <= factor <= 1 for factor in found)
    last = 0.5 * (1 + math.cos(math.pi * (n_steps - 1 - warm_up) / (n_steps - warm_up)))
    assert found[-1] == pytest.approx(last, abs=1e-9)


@pytest.mark.parametrize("schedule", ["steps", "constant", "cosine"])
def test_a_warm_up_rises_in_equal_parts(schedule: str) -> None:
    found = factors(100, schedule=schedule, warm_up=10)
    assert found[:10] == pytest.approx([(step + 1) / 10 for step in range(10)])
    assert found[10:12] == ([1.0, 0.5 * (1 + math.cos(math.pi / 90))] if schedule == "cosine" else [1.0, 1.0])
    assert factors(1, schedule=schedule, warm_up=1) == [1.0]  # a warm-up that is all there is
