"""Pillow's warnings, unheard in threads that read a picture and left alone everywhere else.

Oddities of a file's metadata do not concern whoever wants its picture. But the warnings' filters are the whole
process's, and `warnings.catch_warnings` is for one thread: of two that overlap, the one that leaves last puts the
other's filters back for good. So there is one filter that is there from the import on, is never taken away, and fits
only Pillow's warnings in a thread that says that it is reading.
"""

from __future__ import annotations

import re
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, cast

__all__ = ["pillow_unheard"]


class _Reading(threading.local):
    """How deep this thread is in reading pictures; in a filter it stands where a pattern of the message does."""

    depth = 0

    def match(self, _: str) -> bool:
        """Whether a warning that comes now is to be unheard, whatever it says."""
        return self.depth > 0


_READING = _Reading()
_FILTER = ("ignore", _READING, Warning, re.compile(r"PIL\."), 0)


@contextmanager
def pillow_unheard() -> Iterator[None]:
    """Keep Pillow's warnings in this thread from being heard, or from being errors where warnings are."""
    _put_before_errors()
    _READING.depth += 1
    try:
        yield
    finally:
        _READING.depth -= 1


def _put_before_errors() -> None:
    """Put the filter in front if another one would make an error of a warning first; else leave it where it is."""
    filters = cast("list[tuple[Any, ...]]", warnings.filters)
    for one in filters:
        if one is _FILTER:
            return
        if one[0] == "error":
            break
    else:
        return  # it was taken away by somebody who put older filters back, and a warning that is heard does no harm
    filters.insert(0, _FILTER)


cast("list[tuple[Any, ...]]", warnings.filters).insert(0, _FILTER)
