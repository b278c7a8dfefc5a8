"""Warnings as sentences on the error output, as soon as there are any."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TextIO

from nearshot.text import print_message

__all__ = ["saying_warnings"]


@contextmanager
def saying_warnings(kind: type[Warning] = UserWarning, *, others: bool = False) -> Iterator[None]:
    """Say warnings of a kind when they come, and each once; others are for programmers: shown as ever, or not."""
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
            print_message(f"warning: {message}")

    with warnings.catch_warnings():
        if not others:
            warnings.simplefilter("ignore")
        warnings.simplefilter("always", kind)
        warnings.showwarning = show
        yield
