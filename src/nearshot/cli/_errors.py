"""Errors in the words of the command line: Python's names of settings become the options that one types."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass
from typing import Annotated, Any, get_args, get_origin, get_type_hints

import tyro

__all__ = ["in_options"]

# What functions call otherwise than the options that give it, by the command's class; and what no option gives alone.
OTHERWISE: dict[str, dict[str, str]] = {
    "Evaluate": {
        "n_way": "--way",
        "n_shot": "--shots",
        "n_shots": "--shots",
        "n_query": "--queries",
        "n_episodes": "--episodes",
        "classifiers": "--classifier",
    },
    **{name: {"n_neighbors": "--neighbours"} for name in ("Predict", "Export", "Show")},
}
IN_WORDS = {"n_way": "ways", "n_shot": "shots", "n_query": "queries", "n_episodes": "episodes"}


def in_options(text: str, command: type | None, given: Sequence[str] = ()) -> str:
    """Return an error's text with the options of a command where Python's names were.

    A name with an underscore is one wherever it stands by itself; a word such as "epochs" only where it begins the
    text and something is said that it must be. What was given, such as the path of a folder, stays as it is.
    """
    options = IN_WORDS | ({} if command is None else _options(command) | OTHERWISE.get(command.__name__, {}))
    values = [value for one in given for value in (one, one.partition("=")[2]) if value and not value.startswith("-")]
    kept = "|".join(re.escape(value) for value in sorted(values, key=len, reverse=True))
    parts = re.split(f"({kept})", text) if kept else [text]
    return "".join(part if place % 2 else _translated(part, options) for place, part in enumerate(parts))


def _translated(text: str, options: Mapping[str, str]) -> str:
    for name, option in options.items():
        if "_" in name:
            text = re.sub(rf"(?<![\w./\\'\"=-]){name}(?![\w/\\'\"=-]|\.\w)", option, text)
        else:
            text = re.sub(rf"^{name}(?= must )", option, text)
    return text


def _options(command: Any) -> dict[str, str]:
    """Return the options of a dataclass, and of those in it, by the names of their fields."""
    found: dict[str, str] = {}
    hints = get_type_hints(command, include_extras=True)
    for one in fields(command):
        hint, *notes = get_args(hints[one.name]) if get_origin(hints[one.name]) is Annotated else [hints[one.name]]
        inner = [_bare(part) for part in (hint, *get_args(hint)) if is_dataclass(_bare(part))]
        if not inner and tyro.conf.Positional not in notes and tyro.conf.Suppress not in notes:
            named = next((note.name for note in notes if getattr(note, "name", None)), one.name)
            found[one.name] = f"--{named.replace('_', '-')}"
        for part in inner:
            found |= _options(part)
    return found


def _bare(hint: Any) -> Any:
    return get_args(hint)[0] if get_origin(hint) is Annotated else hint
