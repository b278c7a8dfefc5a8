"""What is ahead of jobs that wait: which of them there is time for, and how long they will take together."""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from nearshot.experiments.jobs import Job

__all__ = ["Ahead", "TimeLimit", "look_ahead"]


@dataclass
class TimeLimit:
    """How long jobs may take together, and how long each of some is expected to.

    Attributes:
        seconds: for all of them.
        seconds_of: says how long each of some jobs will take.
        expected: what it said last, by the jobs' identities.
    """

    seconds: float
    seconds_of: Callable[[Sequence[Job]], Sequence[float]]
    expected: dict[str, float] = field(default_factory=dict)

    def allowed(self, jobs: Sequence[Job], elapsed: float) -> Sequence[Job]:
        """Return the jobs that would probably be done in time if they were begun now."""
        self.expected |= {job.id: seconds for job, seconds in zip(jobs, self.seconds_of(jobs), strict=True)}
        return [job for job in jobs if elapsed + self.expected[job.id] <= self.seconds]


class Ahead(NamedTuple):
    """What is ahead of some jobs.

    Attributes:
        n_to_begin: how many of those that wait will be begun.
        seconds: until the last one is done.
    """

    n_to_begin: int
    seconds: float


def look_ahead(
    waiting: Sequence[float], running: Sequence[float], n_at_once: int, seconds_left: float = math.inf
) -> Ahead:
    """Return how many jobs will be begun, and how long it is until all of them are done.

    Wherever there is room, the first of those that wait is begun that would be done in time.

    Args:
        waiting: the seconds that each job will take, in the order in which to begin them.
        running: the seconds that each running one still takes.
        n_at_once: how many jobs there is room for.
        seconds_left: jobs that would not be done by then are not begun.

    >>> look_ahead([10, 100, 10], [5], n_at_once=1, seconds_left=40)
    Ahead(n_to_begin=2, seconds=25)
    """
    rooms = [0.0] * (n_at_once - len(running)) + sorted(running)[-n_at_once:]  # when each is free; a heap, as sorted
    left, last = list(waiting), max(running, default=0.0)
    while left:
        begun = next((place for place, seconds in enumerate(left) if rooms[0] + seconds <= seconds_left), None)
        if begun is None:  # and later there is less time still
            break
        done = rooms[0] + left.pop(begun)
        heapq.heapreplace(rooms, done)
        last = max(last, done)
    return Ahead(len(waiting) - len(left), last)
