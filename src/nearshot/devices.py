"""Where to compute, and in which precision, by name."""

from __future__ import annotations

from typing import Literal, get_args

import torch

from nearshot.errors import InputError

__all__ = ["Precision", "chosen_device", "uses_bfloat16"]

Precision = Literal["auto", "float32", "bfloat16"]


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


def uses_bfloat16(precision: Precision, device_type: str) -> bool:
    """Whether a network computes in bfloat16 on a kind of device; "auto" does on a GPU.

    >>> uses_bfloat16("auto", "cuda"), uses_bfloat16("auto", "cpu"), uses_bfloat16("bfloat16", "cpu")
    (True, False, True)
    >>> uses_bfloat16("float16", "cuda")
    Traceback (most recent call last):
    nearshot.errors.InputError: There is no precision 'float16'; choose auto, float32 or bfloat16.
    """
    if precision not in get_args(Precision):
        raise InputError(f"There is no precision {precision!r}; choose auto, float32 or bfloat16.")
    return precision == "bfloat16" or (precision == "auto" and device_type in ("cuda", "gpu"))  # as Fabric has it
