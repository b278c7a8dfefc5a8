"""Checks of parameters that accept numbers from NumPy, and their conversion for JSON."""

import numbers
from typing import Any

import numpy as np

from nearshot.errors import InputError


def is_integer(value: object) -> bool:
    """Whether a value is an integer of Python or NumPy.

    >>> is_integer(5), is_integer(np.int64(5)), is_integer(5.0), is_integer(True)
    (True, True, False, False)
    """
    return isinstance(value, numbers.Integral) and not isinstance(value, bool)


def check_count(value: Any, name: str) -> None:
    """Raise an error unless a value is an integer of at least 1."""
    if not is_integer(value) or value < 1:
        raise InputError(f"{name} must be an integer of at least 1 (got {value!r}).")


def check_seed(value: Any) -> None:
    """Raise an error unless a value is an integer of 64 bits, as generators of PyTorch take."""
    if not is_integer(value) or not 0 <= value < 1 << 64:
        raise InputError(f"seed must be an integer from 0 to 2⁶⁴ − 1 (got {value!r}).")


def to_python(value: Any) -> Any:
    """Return a value with NumPy's numbers as Python's; lists and arrays become tuples."""
    if isinstance(value, np.generic | np.ndarray):
        value = value.tolist()
    if isinstance(value, list | tuple):
        return tuple(to_python(item) for item in value)
    return value
