"""Warnings as sentences on the error output, as soon as there are any."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TextIO

from nearshot.telling import say

__all__ = ["saying_at_once"]


@contextmanager
def saying_at_once(kind: type[Warning]) -> Iterator[None]:
    """Say warnings of a kind when they come, and each once; others are shown as ever."""
    said: set[str] = set()
    usual = warnings.showwarning

    def show(
        message: Warning | str,
        category: type[Warning],
        filename: str,
        lineno: int,
        file: TextIO | None = None,
        line: str | None = None,
    ) -> None:
        if not issubclass(category, kind):
            usual(message, category, filename, lineno, file, line)
        elif str(message) not in said:
            said.add(str(message))
            say(f"warning: {message}")

    with warnings.catch_warnings():
        warnings.simplefilter("always", kind)
        warnings.showwarning = show
        yield
