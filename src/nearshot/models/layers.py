"""Layers in float32 for any `torch.set_default_dtype`: images, weights files and optimisers have that type."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

import torch
from torch import nn

__all__ = ["batch_norm", "convolution", "float32_by_default"]

convolution = partial(nn.Conv2d, dtype=torch.float32)
batch_norm = partial(nn.BatchNorm2d, dtype=torch.float32)


@contextmanager
def float32_by_default() -> Iterator[None]:
    """Make float32 the default type within the context, for networks of other libraries.

    The default belongs to the whole process, so it is not touched if it is float32 already.
    """
    before = torch.get_default_dtype()
    if before == torch.float32:
        yield
        return
    torch.set_default_dtype(torch.float32)
    try:
        yield
    finally:
        torch.set_default_dtype(before)
