"""Torch's tensors where NumPy's arrays are expected: of any device and type, also those that want gradients."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

__all__ = ["without_tensors"]


def without_tensors(values: Any) -> Any:
    """Return a tensor, or a list of some, as arrays; anything else as it is.

    >>> without_tensors(torch.ones(2, requires_grad=True))
    array([1., 1.], dtype=float32)
    """
    if isinstance(values, Tensor):
        plain = values.detach().cpu()
        return (plain.float() if plain.dtype == torch.bfloat16 else plain).numpy()  # NumPy has no such type
    if isinstance(values, list | tuple) and any(isinstance(one, Tensor) for one in values):
        return [without_tensors(one) for one in values]
    return values
