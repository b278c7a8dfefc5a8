"""Text for people: messages and progress on standard error, and numbers and names in them."""

import sys
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, TypeVar

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from nearshot.io import readable

SHOWN = 5
Step = TypeVar("Step")


def printable(text: object) -> str:
    r"""Return text in one line, with control characters and undecodable bytes escaped.

    >>> print(printable("two\nlines \x1b[31m日本"))
    two\nlines \x1b[31m日本
    """
    line = readable(str(text))
    if line.isprintable():
        return line
    return "".join(
        one.encode("unicode_escape").decode()
        if unicodedata.category(one) in ("Cc", "Zl", "Zp")
        else one
        for one in line
    )


def print_message(text: object, *, show: bool | None = None) -> None:
    """Print a message to standard error, unless `show` is False, as for progress bars."""
    print_line(Console(stderr=True, quiet=show is False), f"nearshot: {printable(text)}")


def print_line(console: Console, sentence: str) -> None:
    """Print a sentence in one line, without markup: a terminal wraps it, and a log file does not."""
    console.print(sentence, markup=False, highlight=False, soft_wrap=True)


def with_progress(
    steps: Sequence[Step], description: str, *, show: bool | None = None
) -> Iterator[Step]:
    """Yield the steps, with a transient progress bar on standard error; None shows it only on a terminal."""
    if not (sys.stderr.isatty() if show is None else show):
        yield from steps
        return
    columns = (
        TextColumn(description),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        yield from progress.track(steps)


def counted(number: int, one: str, many: str | None = None) -> str:
    """Return a number with its noun.

    >>> counted(1, "class", "classes"), counted(1200, "image")
    ('1 class', '1,200 images')
    """
    return f"{number:,} {one if number == 1 else many or one + 's'}"


def format_list(values: Iterable[Any], formatted: Callable[[Any], str] = repr) -> str:
    """Return values separated by commas, and only the first few of many.

    >>> format_list(["ant", 3]), format_list("abcdefg")
    ("'ant', 3", "'a', 'b', 'c', 'd', 'e' and 2 more")
    """
    values = list(values)
    more = f" and {len(values) - SHOWN:,} more" if len(values) > SHOWN else ""
    return ", ".join(map(formatted, values[:SHOWN])) + more
