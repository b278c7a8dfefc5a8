"""Checks of single settings, for `__post_init__`."""

from collections.abc import Collection

from nearshot.checks import is_integer
from nearshot.errors import InputError, look_up


def check_integer(name: str, value: object, *, at_least: int) -> None:
    """Raise an error unless a value is a Python integer of at least `at_least`; 12.0 is not."""
    if not isinstance(value, int) or not is_integer(value) or value < at_least:
        raise InputError(f"{name} must be an integer of at least {at_least} (got {value!r}).")


def check_number(
    name: str,
    value: object,
    *,
    at_least: float | None = None,
    above: float | None = None,
    at_most: float | None = None,
    below: float | None = None,
) -> None:
    """Raise an error unless a value is a number within the bounds that are given."""
    bounds = []
    is_valid = isinstance(value, int | float) and not isinstance(value, bool)
    number = float(value) if isinstance(value, int | float) else 0.0
    if at_least is not None:
        bounds.append(f"at least {at_least:g}")
        is_valid = is_valid and number >= at_least
    if above is not None:
        bounds.append(f"over {above:g}")
        is_valid = is_valid and number > above
    if at_most is not None:
        bounds.append(f"at most {at_most:g}")
        is_valid = is_valid and number <= at_most
    if below is not None:
        bounds.append(f"under {below:g}")
        is_valid = is_valid and number < below
    if not is_valid:
        raise InputError(f"{name} must be a number, {' and '.join(bounds)} (got {value!r}).")


def check_choice(name: str, value: str, choices: Collection[str]) -> None:
    """Raise an error unless a value is one of the choices."""
    look_up(dict.fromkeys(choices), value, name)
