"""Devices and precisions by name."""

from typing import Literal, get_args

import torch

from nearshot.errors import InputError

Precision = Literal["auto", "float32", "bfloat16"]


def chosen_device(device: str | torch.device | None = "auto") -> torch.device:
    """Return a device by its name; "auto" or None is a GPU if one is available, and the CPU otherwise."""
    if device is None or device == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        chosen = torch.device(device)
        torch.empty(0, device=chosen)
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        usable = (
            "'auto', 'cpu' or 'cuda'"
            if torch.cuda.is_available()
            else "'auto' or 'cpu' on this machine"
        )
        raise InputError(f"device must be {usable}, not {str(device)!r}.") from error
    return chosen


def uses_bfloat16(precision: Precision, device_type: str) -> bool:
    """Whether a network computes in bfloat16 on a type of device; "auto" does on a GPU.

    >>> uses_bfloat16("auto", "cuda"), uses_bfloat16("auto", "cpu"), uses_bfloat16("bfloat16", "cpu")
    (True, False, True)
    """
    if precision not in get_args(Precision):
        raise InputError(f"precision must be auto, float32 or bfloat16, not {precision!r}.")
    return precision == "bfloat16" or (
        precision == "auto" and device_type in ("cuda", "gpu")
    )  # "gpu" is Fabric's name
