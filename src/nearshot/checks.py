"""NumPy's numbers as Python's: what was computed with arrays is welcome as a setting, and JSON knows no others."""

from __future__ import annotations

import dataclasses
import numbers
from typing import Any

import numpy as np

__all__ = ["convert_numpy_fields", "is_integer", "to_python"]


def is_integer(value: object) -> bool:
    """Whether something is a whole number, Python's or NumPy's.

    >>> is_integer(5), is_integer(np.int64(5)), is_integer(5.0), is_integer(True)
    (True, True, False, False)
    """
    return isinstance(value, numbers.Integral) and not isinstance(value, bool)


def to_python(value: Any) -> Any:
    """Return a value with NumPy's numbers as Python's, also within a tuple; lists and arrays in a row become tuples.

    >>> to_python(np.int64(5)), to_python([np.float32(0.5), 2]), to_python(np.array([1, 5])), to_python("text")
    (5, (0.5, 2), (1, 5), 'text')
    """
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, list | tuple) or (isinstance(value, np.ndarray) and value.ndim == 1):
        return tuple(map(to_python, value))
    return value


def convert_numpy_fields(settings: Any) -> None:
    """Make a dataclass's fields plain as it is made, also if it is frozen."""
    for one in dataclasses.fields(settings):
        value = getattr(settings, one.name)
        changed = to_python(value)
        if changed is not value:
            object.__setattr__(settings, one.name, changed)
