"""Exceptions for mistakes of a user: what was expected, what came, and what to do."""

import difflib
from collections.abc import Iterable, Mapping
from typing import TypeVar

__all__ = [
    "FileFormatError",
    "InputError",
    "LeakError",
    "MissingExtraError",
    "NearshotError",
    "look_up",
]

Key = TypeVar("Key", bound=str)
Entry = TypeVar("Entry")


class NearshotError(Exception):
    """The base class of all errors of nearshot. Its text is one or two sentences."""


class InputError(NearshotError, ValueError):
    """An argument has the wrong shape, type or value."""


class FileFormatError(NearshotError, ValueError):
    """A file is damaged, or has another format or version."""


class LeakError(NearshotError, ValueError):
    """An evaluation would use training classes, test data, or the labels of its queries."""


class MissingExtraError(NearshotError, ImportError):
    """An optional dependency is not installed; the text names the extra."""


def did_you_mean(name: object, known: Iterable[object]) -> str:
    """Return a question that suggests the known name that is most similar, or an empty text.

    >>> did_you_mean("glyhps", ["cifar-fs", "glyphs"])
    " Did you mean 'glyphs'?"
    """
    names = {str(entry).casefold(): str(entry) for entry in known}
    if str(name) in names.values():
        return ""
    near = difflib.get_close_matches(str(name).casefold(), names, n=1, cutoff=0.75)
    return f" Did you mean {names[near[0]]!r}?" if near else ""


def look_up(registry: Mapping[Key, Entry], name: Key, what: str) -> Entry:
    """Return a registry's entry, or raise an error that lists its entries.

    >>> look_up({"conv4": 1, "resnet12": 2}, "resnet11", "net")
    Traceback (most recent call last):
    nearshot.errors.InputError: There is no net 'resnet11'; choose one of 'conv4', 'resnet12'. Did
    you mean 'resnet12'?
    """
    if name not in registry:
        names = ", ".join(map(repr, registry))
        raise InputError(
            f"There is no {what} {name!r}; choose one of {names}.{did_you_mean(name, registry)}"
        )
    return registry[name]
