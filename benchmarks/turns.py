"""Time several ways of doing something in turns, so that a busy moment affects all of them."""

import time
from collections.abc import Callable, Mapping


def times_in_turns(
    ways: Mapping[str, Callable[[], object]], n_rounds: int
) -> dict[str, tuple[float, float]]:
    """Return the shortest wall-clock and the shortest processor time of each way, in seconds."""
    wall: dict[str, list[float]] = {name: [] for name in ways}
    processor: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(n_rounds):
        for name, way in ways.items():
            start = time.perf_counter()
            busy = time.process_time()
            way()
            wall[name].append(time.perf_counter() - start)
            processor[name].append(time.process_time() - busy)
    return {name: (min(wall[name]), min(processor[name])) for name in ways}
