"""How sentences about trainings are said."""

from __future__ import annotations

from rich.console import Console

__all__ = ["plural", "tell"]


def tell(console: Console, sentence: str) -> None:
    """Print a sentence in one line, which a terminal wraps and a log keeps whole; brackets in it are no markup."""
    console.print(sentence, markup=False, highlight=False, soft_wrap=True)


def plural(number: int, what: str) -> str:
    """Return how many of something.

    >>> plural(1, "training"), plural(1200, "training")
    ('1 training', '1,200 trainings')
    """
    return f"{number:,} {what}{'' if number == 1 else 's'}"
