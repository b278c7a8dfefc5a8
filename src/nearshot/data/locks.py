"""What two processes must not do at once, such as packing the same pictures into the same files."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from nearshot.errors import NearshotError
from nearshot.io import FileLock
from nearshot.text import print_message

__all__ = ["own"]


@contextmanager
def own(lock_file: Path, doing: str, *, show: bool | None = None) -> Iterator[None]:
    """Do something that two processes must not do at once; wait for another that does it, and say so.

    Args:
        lock_file: what one process owns at a time, however it ends.
        doing: what the other is doing then, such as "preparing 'zoo'".
        show: False says nothing.
    """
    lock = FileLock(lock_file)
    try:
        lock_file.parent.mkdir(parents=True, exist_ok=True)
        if not lock.acquire():
            print_message(f"Another process is {doing}; waiting for it.", show=show)
            lock.acquire(wait=True)
    except (OSError, NearshotError):
        pass  # a folder that cannot be written to needs no lock; if it has to be written to, that says what is wrong
    try:
        yield
    finally:
        lock.release(remove=True)
