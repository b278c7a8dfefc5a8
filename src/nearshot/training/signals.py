"""Being asked to stop: SIGTERM and Ctrl-C are noted, and acted upon between two steps."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

__all__ = ["handling", "stop_signal"]

Handler = Callable[[int, FrameType | None], None]


@contextmanager
def handling(handler: Handler, *numbers: signal.Signals) -> Iterator[None]:
    """Let a function handle signals for a while; not in a thread, where they are not ours to catch."""
    before = {}
    try:
        for number in numbers:
            before[number] = signal.signal(number, handler)
    except ValueError:
        yield
        return
    try:
        yield
    finally:
        for number, one in before.items():
            signal.signal(number, one)


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

    with handling(note, signal.SIGTERM, signal.SIGINT):
        yield lambda: bool(received)
