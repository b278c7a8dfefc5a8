"""Stop signals: SIGTERM and Ctrl-C are noted, and acted upon between two steps."""

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType


@contextmanager
def handling(
    handler: Callable[[int, FrameType | None], None], *numbers: signal.Signals
) -> Iterator[None]:
    """Install a signal handler for a while; a no-op in a thread, where Python allows none."""
    in_main = threading.current_thread() is threading.main_thread()
    before = {number: signal.signal(number, handler) for number in numbers if in_main}
    try:
        yield
    finally:
        for number, earlier_handler in before.items():
            signal.signal(number, earlier_handler)


@contextmanager
def stop_signal() -> Iterator[Callable[[], bool]]:
    """Yield a function that returns whether to stop; in a thread it never does.

    A second Ctrl-C interrupts at once.
    """
    received: list[int] = []

    def note(number: int, frame: FrameType | None) -> None:
        if number == signal.SIGINT and received:
            raise KeyboardInterrupt
        received.append(number)

    with handling(note, signal.SIGTERM, signal.SIGINT):
        yield lambda: bool(received)
