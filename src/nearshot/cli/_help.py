"""What `--help` says about a command above its options: paragraphs in the terminal's width, and examples to copy."""

from __future__ import annotations

import inspect
import shutil
import textwrap

__all__ = ["about", "first_sentence"]

EXAMPLES = ("Examples: ", "For instance: ")
WIDEST = 100


def about(text: str) -> str:
    r"""Return documentation for a terminal: examples, parted by semicolons, each have a line of their own.

    Lines that are indented stay as they are.

    >>> print(about("Sing.\n\nExamples: sing loudly; sing in tune"))
    Sing.
    <BLANKLINE>
    Examples:
      sing loudly
      sing in tune
    """
    width = min(WIDEST, shutil.get_terminal_size().columns) - 1
    return "\n\n".join(_paragraph(one, width) for one in inspect.cleandoc(text).split("\n\n"))


def first_sentence(text: str) -> str:
    """Return the first sentence of documentation.

    >>> first_sentence("Sing a song. It is not a long one.")
    'Sing a song.'
    """
    return " ".join(text.partition("\n\n")[0].split()).partition(". ")[0].rstrip(".") + "."


def _paragraph(text: str, width: int) -> str:
    if any(line.startswith(" ") for line in text.splitlines()):
        return text
    for heading in EXAMPLES:
        if text.startswith(heading):
            examples = " ".join(text.removeprefix(heading).split()).split("; ")
            return "\n".join([heading.strip(), *(f"  {example}" for example in examples)])
    return textwrap.fill(text, width, break_long_words=False, break_on_hyphens=False)
