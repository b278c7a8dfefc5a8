"""Being asked to stop: SIGTERM and Ctrl-C are noted, and acted upon between two steps."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

__all__ = ["stop_signal"]


@contextmanager
def stop_signal() -> Iterator[Callable[[], bool]]:
    """Yield a function that says whether to stop; in a thread never, since signals are not ours to catch there.

    A second Ctrl-C does not wait.
    """
    received: list[int] = []

    def note(number: int, frame: FrameType | None) -> None:
        if number == signal.SIGINT and received:
            raise KeyboardInterrupt
        received.append(number)

    before = {}
    try:
        for number in (signal.SIGTERM, signal.SIGINT):
            before[number] = signal.signal(number, note)
    except ValueError:
        yield lambda: False
        return
    try:
        yield lambda: bool(received)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
