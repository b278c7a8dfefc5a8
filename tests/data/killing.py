"""Simulate a killed process: from a chosen change of the file system on, no change happens any more."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

__all__ = ["KilledError", "killed_before"]

CHANGES = {"os.rename": 2, "os.remove": 1, "os.rmdir": 1, "os.mkdir": 1, "os.truncate": 1}
WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT


class KilledError(BaseException):
    """The simulated process is dead."""


class _Killer:
    """An audit hook that counts the changes below a folder, and prevents all from a certain one on."""

    folder: Path | None = None
    before: int | str = 0
    n_changes = 0
    is_dead = False

    def __call__(self, event: str, arguments: tuple[Any, ...]) -> None:
        if self.folder is None:
            return
        is_change = event in CHANGES or (event == "open" and isinstance(arguments[2], int) and arguments[2] & WRITING)
        paths = arguments[: CHANGES.get(event, 1)] if is_change else ()
        # shutil.rmtree uses relative paths.
        places = [Path(os.fsdecode(path)) for path in paths if isinstance(path, str | bytes | os.PathLike)]
        if any(place.is_relative_to(self.folder) or not place.is_absolute() for place in places):
            self.n_changes += 1
            self.is_dead |= self.before in (self.n_changes - 1, places[-1].name)
            if self.is_dead:
                raise KilledError


_killer: list[_Killer] = []


@contextmanager
def killed_before(what: int | str, folder: Path) -> Iterator[list[bool]]:
    """Kill before the change number `what` below a folder, or before the first change of a file of that name.

    Yields a list that is not empty in the end if this happened.
    """
    if not _killer:  # audit hooks cannot be removed
        _killer.append(_Killer())
        sys.addaudithook(_killer[0])
    killer = _killer[0]
    was_killed: list[bool] = []
    killer.folder, killer.before, killer.n_changes, killer.is_dead = folder, what, 0, False
    try:
        yield was_killed
    except KilledError:
        was_killed.append(True)
    finally:
        killer.folder = None
