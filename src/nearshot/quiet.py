"""Pillow's warnings, unheard in threads that read a picture and left alone everywhere else.

Oddities of a file's metadata do not concern whoever wants its picture. But the warnings' filters are the whole
process's, and `warnings.catch_warnings` is for one thread: of two that overlap, the one that leaves last puts the
other's filters back for good. So there is one filter that is there from the import on, is never taken away, and fits
only Pillow's warnings in a thread that says that it is reading.

It is a filter like all others, since other libraries copy them, and send them to other processes: its category, a class
of warnings, says by itself what is a subclass of it. (This module imports next to nothing, for such a process.)
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
    """How deep this thread is in reading pictures."""

    depth = 0


_READING = _Reading()


class _AnyWhileReading(type):
    """The kind of a class that all others are subclasses of while this thread reads, and none else."""

    def __subclasscheck__(cls, _: type) -> bool:
        return _READING.depth > 0


class UnheardWarning(Warning, metaclass=_AnyWhileReading):
    """Any warning while this thread reads a picture."""


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
    for action, _, category, *_ in warnings.filters:
        if category is UnheardWarning:
            return
        if action == "error":
            _put_in_front()
            return
    # It was taken away by somebody who put older filters back, and a warning that is heard does no harm.


def _put_in_front() -> None:
    filters = cast("list[tuple[Any, ...]]", warnings.filters)
    filters.insert(0, ("ignore", None, UnheardWarning, re.compile(r"PIL\."), 0))


_put_in_front()
