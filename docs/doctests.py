"""A griffe extension for the API pages: examples in docstrings become code blocks."""

import inspect
import re
from typing import Any

import griffe

EXAMPLE = re.compile(r"^(?P<indent> *)>>> .*\n?(?:^(?P=indent)(?!\s*$).*\n?)*", re.MULTILINE)


def fenced(docstring: str) -> str:
    r"""Return a docstring with a fence around each example, up to the next empty line.

    >>> fenced("Adds:\n\n>>> 1 + 1\n2\n\nText.").splitlines()
    ['Adds:', '', '```pycon', '>>> 1 + 1', '2', '```', '', 'Text.']
    """
    return EXAMPLE.sub(_fence, docstring)


def _fence(match: re.Match[str]) -> str:
    indent = match["indent"]
    return f"{indent}```pycon\n{match[0].rstrip()}\n{indent}```\n"


class Doctests(griffe.Extension):
    """Fences the examples of all documented objects."""

    def on_object(self, *, obj: griffe.Object, **kwargs: Any) -> None:  # noqa: D102
        if obj.docstring is not None:
            obj.docstring.value = fenced(inspect.cleandoc(obj.docstring.value))
