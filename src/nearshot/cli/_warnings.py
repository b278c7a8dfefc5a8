"""Warnings as sentences on standard error."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from nearshot.text import print_message


@contextmanager
def print_warnings() -> Iterator[None]:
    """Print each UserWarning once, as a sentence; other kinds are shown as Python does."""
    printed: set[str] = set()
    default = warnings.showwarning

    def show(message: Warning | str, category: type[Warning], *where: Any) -> None:
        if not issubclass(category, UserWarning):
            default(message, category, *where)
        elif str(message) not in printed:
            printed.add(str(message))
            print_message(f"warning: {message}")

    with warnings.catch_warnings():
        warnings.simplefilter("always", UserWarning)
        warnings.filterwarnings("ignore", module=r"PIL\.")  # about odd metadata
        warnings.showwarning = show  # type: ignore[assignment]
        yield
