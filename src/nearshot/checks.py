"""NumPy's numbers as Python's: what was computed with arrays is welcome as a setting, and JSON knows no others."""

from __future__ import annotations

import dataclasses
import numbers
from typing import Any

import numpy as np

__all__ = ["is_whole", "plain", "with_plain_fields"]


def is_whole(value: object) -> bool:
    """Whether something is a whole number, Python's or NumPy's.

    >>> is_whole(5), is_whole(np.int64(5)), is_whole(5.0), is_whole(True)
    (True, True, False, False)
    """
    return isinstance(value, numbers.Integral) and not isinstance(value, bool)


def plain(value: Any) -> Any:
    """Return a value with NumPy's numbers as Python's, also within a tuple; lists and arrays in a row become tuples.

    >>> plain(np.int64(5)), plain([np.float32(0.5), 2]), plain(np.array([1, 5])), plain("text")
    (5, (0.5, 2), (1, 5), 'text')
    """
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, list | tuple) or (isinstance(value, np.ndarray) and value.ndim == 1):
        return tuple(map(plain, value))
    return value


def with_plain_fields(settings: Any) -> None:
    """Make a dataclass's fields plain as it is made, also if it is frozen."""
    for one in dataclasses.fields(settings):
        value = getattr(settings, one.name)
        changed = plain(value)
        if changed is not value:
            object.__setattr__(settings, one.name, changed)
