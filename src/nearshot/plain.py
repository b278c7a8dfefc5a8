"""NumPy's numbers as Python's: what was computed with arrays is welcome as a setting, and JSON knows no others."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

__all__ = ["plain", "with_plain_fields"]


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
