"""What is ahead of jobs, against a clock that ticks."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from nearshot.experiments.budget import look_ahead

SECONDS = st.lists(st.integers(1, 6), max_size=8)


def ticked(waiting: list[int], running: list[int], n_at_once: int, seconds_left: int) -> tuple[int, int]:
    """Begin, second by second, what there is room and time for."""
    waiting, n_to_begin, now, last = list(waiting), 0, 0, max(running, default=0)
    ends = list(running)
    while ends or (waiting and now <= seconds_left):
        ends = [end for end in ends if end > now]
        for job in list(waiting):
            if len(ends) < n_at_once and now + job <= seconds_left:
                waiting.remove(job)
                ends.append(now + job)
                n_to_begin, last = n_to_begin + 1, max(last, now + job)
        now += 1
    return n_to_begin, last


@given(SECONDS, SECONDS, st.integers(1, 4), st.integers(0, 20))
def test_jobs_begin_where_there_is_room_and_time(
    waiting: list[int], running: list[int], n_at_once: int, seconds_left: int
) -> None:
    assert look_ahead(waiting, running, n_at_once, seconds_left) == ticked(waiting, running, n_at_once, seconds_left)


def test_without_a_limit_all_are_begun() -> None:
    assert look_ahead([60.0] * 5, [30.0], n_at_once=2) == (5, 180.0)
    assert look_ahead([], [], n_at_once=1) == (0, 0.0)
