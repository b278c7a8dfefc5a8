"""Where to compute, by name."""

from __future__ import annotations

import torch

from nearshot.errors import InputError

__all__ = ["chosen_device"]


def chosen_device(device: str | torch.device | None = "auto") -> torch.device:
    """Return a device by its name; "auto", or None, is a GPU if there is one.

    >>> chosen_device("gpu")  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    nearshot.errors.InputError: There is no device 'gpu' here; choose 'auto'...
    """
    if device is None or device == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        chosen = torch.device(device)
        torch.empty(0, device=chosen)
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        usable = "'auto', 'cpu' or 'cuda'" if torch.cuda.is_available() else "'auto' or 'cpu'"
        raise InputError(f"There is no device {str(device)!r} here; choose {usable}.") from error
    return chosen
