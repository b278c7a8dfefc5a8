"""What a user can get wrong, as exceptions that say what was expected, what came, and what to do."""

from collections.abc import Mapping
from typing import TypeVar

__all__ = ["FileFormatError", "InputError", "LeakError", "MissingExtraError", "NearshotError", "look_up"]

Key = TypeVar("Key", bound=str)
Entry = TypeVar("Entry")


class NearshotError(Exception):
    """The base of every error that nearshot raises on purpose. Its text is one clear sentence or two."""


class InputError(NearshotError, ValueError):
    """An argument has the wrong shape, type or value."""


class FileFormatError(NearshotError, ValueError):
    """A file is not what it should be: another format, damaged, or of another version."""


class LeakError(NearshotError, ValueError):
    """What is measured would know what it must not: training classes, test data, or the answers themselves."""


class MissingExtraError(NearshotError, ImportError):
    """An optional dependency is not installed; the text names the extra."""


def look_up(registry: Mapping[Key, Entry], name: Key, what: str) -> Entry:
    """Return a registry's entry, or say which entries there are.

    >>> look_up({"conv4": 1, "resnet12": 2}, "resnet11", "backbone")
    Traceback (most recent call last):
    nearshot.errors.InputError: There is no backbone 'resnet11'; choose one of 'conv4', 'resnet12'.
    """
    if name not in registry:
        raise InputError(f"There is no {what} {name!r}; choose one of {', '.join(map(repr, registry))}.")
    return registry[name]
