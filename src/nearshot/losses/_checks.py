"""Checks of the arguments of all losses.

Shapes and types are always checked. Values (NaN, a negative temperature) are checked on the CPU
only: reading a value from an accelerator makes the host wait for it in every step. There, NaN in
gives NaN out.
"""

import math

import torch
from torch import Tensor

from nearshot.errors import InputError


def checked_labels(labels: Tensor, embeddings: Tensor, name: str = "embeddings") -> Tensor:
    """Return labels (image,) as int64; raise an error if they or their embeddings are unusable.

    `name` is the parameter that holds the embeddings, for the message.
    """
    if embeddings.ndim != 2 or not embeddings.is_floating_point() or embeddings.numel() == 0:
        raise InputError(
            f"{name} must be a floating-point matrix (image, feature) with at least one of each, "
            f"not {embeddings.dtype} of shape {tuple(embeddings.shape)}."
        )
    if labels.shape != (len(embeddings),) or labels.is_floating_point():
        raise InputError(
            f"The labels of {name} must be one whole number per image: expected shape "
            f"({len(embeddings)},), not {labels.dtype} of shape {tuple(labels.shape)}."
        )
    # The sum is quick to compute, and finite if all values are, unless they are huge.
    if values_can_be_read(embeddings) and not embeddings.detach().sum().isfinite():
        bad_rows = (~embeddings.detach().isfinite()).any(1).nonzero()
        if len(bad_rows):
            raise InputError(
                f"{name} has NaN or infinity, first in row {int(bad_rows[0])}. "
                "Did training diverge?"
            )
    return labels.long()


def check_temperature(temperature: float | Tensor) -> None:
    """Raise an error unless a temperature is one positive number."""
    if isinstance(temperature, Tensor):
        if not values_can_be_read(temperature):
            return
        temperature = float(temperature.detach())
    if not 0 < temperature < math.inf:
        raise InputError(f"temperature must be a positive number, not {temperature}.")


def check_fraction(value: float, name: str) -> None:
    """Raise an error unless a value is in [0, 1]."""
    if not 0 <= value <= 1:
        raise InputError(f"{name} must be between 0 and 1, not {value}.")


def values_can_be_read(tensor: Tensor) -> bool:
    """Whether reading a value is free: on the CPU, outside `torch.compile` and `torch.func`."""
    if tensor.device.type != "cpu" or torch.compiler.is_compiling():
        return False
    return not is_transformed(tensor)


def is_transformed(tensor: Tensor) -> bool:
    """Whether a tensor is inside `torch.func`; False while compiling, where asking would fail."""
    if torch.compiler.is_compiling():
        return False
    return bool(torch._C._functorch.is_functorch_wrapped_tensor(tensor))
