"""What a user can get wrong, as exceptions that say what was expected, what came, and what to do."""

import difflib
from collections.abc import Iterable, Mapping
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


def did_you_mean(name: object, known: Iterable[object]) -> str:
    """Return a question after what is nearly the name of something known, or nothing.

    >>> did_you_mean("glyhps", ["cifar-fs", "glyphs"])
    " Did you mean 'glyphs'?"
    """
    names = list(map(str, known))
    folded = {one.casefold(): one for one in names}
    near = [] if str(name) in names else difflib.get_close_matches(str(name).casefold(), folded, n=1, cutoff=0.75)
    return f" Did you mean {folded[near[0]]!r}?" if near else ""


def look_up(registry: Mapping[Key, Entry], name: Key, what: str) -> Entry:
    """Return a registry's entry, or say which entries there are.

    >>> look_up({"conv4": 1, "resnet12": 2}, "resnet11", "net")
    Traceback (most recent call last):
    nearshot.errors.InputError: There is no net 'resnet11'; choose one of 'conv4', 'resnet12'. Did you mean 'resnet12'?
    """
    if name not in registry:
        names = ", ".join(map(repr, registry))
        raise InputError(f"There is no {what} {name!r}; choose one of {names}.{did_you_mean(name, registry)}")
    return registry[name]
