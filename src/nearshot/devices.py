"""Devices and precisions by name."""

from typing import Literal, get_args

import torch

from nearshot.errors import InputError

Precision = Literal["auto", "float32", "bfloat16"]


def chosen_device(device: str | torch.device | None = "auto") -> torch.device:
    """Return a device by its name.

    "auto" or None is a GPU if one is available, and the CPU otherwise.
    """
    if device is None or device == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        chosen = torch.device(device)
        torch.empty(0, device=chosen)
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        usable = "'auto' or 'cpu' on this machine"
        if torch.cuda.is_available():
            usable = "'auto', 'cpu' or 'cuda'"
        raise InputError(f"device must be {usable} (got {str(device)!r}).") from error
    return chosen


def uses_bfloat16(precision: Precision, device_type: str) -> bool:
    """Whether a network computes in bfloat16 on a type of device; "auto" does on a GPU.

    >>> uses_bfloat16("auto", "cuda"), uses_bfloat16("auto", "cpu")
    (True, False)
    """
    if precision not in get_args(Precision):
        raise InputError(f"precision must be auto, float32 or bfloat16 (got {precision!r}).")
    if precision == "auto":
        # "gpu" is Fabric's name.
        return device_type in ("cuda", "gpu")
    return precision == "bfloat16"
