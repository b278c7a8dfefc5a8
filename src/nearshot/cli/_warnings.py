"""Warnings as sentences on standard error."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from nearshot.text import print_message


@contextmanager
def print_warnings(kind: type[Warning] = UserWarning, *, others: bool = False) -> Iterator[None]:
    """Print each warning of a kind once, as a sentence; ignore other kinds, or show them as Python does (`others`)."""
    printed: set[str] = set()
    default = warnings.showwarning

    def show(message: Warning | str, category: type[Warning], *where: Any) -> None:
        if not issubclass(category, kind):
            default(message, category, *where)
        elif str(message) not in printed:
            printed.add(str(message))
            print_message(f"warning: {message}")

    with warnings.catch_warnings():
        if not others:
            warnings.simplefilter("ignore")
        warnings.simplefilter("always", kind)
        warnings.showwarning = show  # type: ignore[assignment]
        yield
