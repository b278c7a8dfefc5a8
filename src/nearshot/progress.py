"""A progress bar."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from typing import TypeVar

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

Step = TypeVar("Step")


def with_progress(steps: Sequence[Step], description: str, *, show: bool | None = None) -> Iterator[Step]:
    """Yield the steps, with a transient progress bar on standard error; None shows it only on a terminal."""
    if not (sys.stderr.isatty() if show is None else show):
        yield from steps
        return
    columns = (TextColumn(description), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        yield from progress.track(steps)
