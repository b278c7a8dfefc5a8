"""Settings that come from NumPy: its numbers are accepted and become Python's, which JSON can hold."""

from __future__ import annotations

import dataclasses
import numbers
from typing import Any

import numpy as np


def is_integer(value: object) -> bool:
    """Whether a value is an integer of Python or NumPy.

    >>> is_integer(5), is_integer(np.int64(5)), is_integer(5.0), is_integer(True)
    (True, True, False, False)
    """
    return isinstance(value, numbers.Integral) and not isinstance(value, bool)


def to_python(value: Any) -> Any:
    """Return a value with NumPy's numbers as Python's; lists and arrays become tuples."""
    if isinstance(value, np.generic | np.ndarray):
        value = value.tolist()
    return tuple(map(to_python, value)) if isinstance(value, list | tuple) else value


def convert_numpy_fields(settings: Any) -> None:
    """Apply `to_python` to the fields of a dataclass, in its `__post_init__`; it may be frozen."""
    for one in dataclasses.fields(settings):
        object.__setattr__(settings, one.name, to_python(getattr(settings, one.name)))
