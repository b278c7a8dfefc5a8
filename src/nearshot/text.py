"""Text for people: messages and progress on standard error, numbers and names."""

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

# The values of a long list that are shown.
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
    return "".join(map(_escaped, line))


def _escaped(character: str) -> str:
    """Return a character, or the escape sequence of one that controls a terminal."""
    if unicodedata.category(character) in ("Cc", "Zl", "Zp"):
        return character.encode("unicode_escape").decode()
    return character


def print_message(text: object, *, progress: bool | None = None) -> None:
    """Print a message to standard error, unless `progress` is False, as for progress bars."""
    print_line(Console(stderr=True, quiet=progress is False), f"nearshot: {printable(text)}")


def print_line(console: Console, sentence: str) -> None:
    """Print a sentence in one line, without markup; a terminal wraps it, a log file does not."""
    console.print(sentence, markup=False, highlight=False, soft_wrap=True)


def with_progress(
    steps: Sequence[Step],
    description: str,
    *,
    progress: bool | None = None,
) -> Iterator[Step]:
    """Yield the steps, with a transient progress bar on standard error.

    If `progress` is None, the bar is only shown on a terminal.
    """
    if progress is None:
        progress = sys.stderr.isatty()
    if not progress:
        yield from steps
        return
    columns = (
        TextColumn(description),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        yield from bar.track(steps)


def counted(number: int, singular: str, plural: str | None = None) -> str:
    """Return a number with its noun.

    >>> counted(1, "class", "classes"), counted(1200, "image")
    ('1 class', '1,200 images')
    """
    if number == 1:
        return f"{number:,} {singular}"
    return f"{number:,} {plural or singular + 's'}"


def upper_first(text: str) -> str:
    """Return a text that begins with an upper-case letter.

    >>> upper_first("all photos of DINOv2")
    'All photos of DINOv2'
    """
    return text[:1].upper() + text[1:]


def format_list(values: Iterable[Any], formatted: Callable[[Any], str] = repr) -> str:
    """Return values separated by commas, and only the first few of many.

    >>> format_list(["ant", 3]), format_list("abcdefg")
    ("'ant', 3", "'a', 'b', 'c', 'd', 'e' and 2 more")
    """
    values = list(values)
    more = f" and {len(values) - SHOWN:,} more" if len(values) > SHOWN else ""
    return ", ".join(map(formatted, values[:SHOWN])) + more
