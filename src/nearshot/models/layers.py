"""Layers in float32, whatever `torch.set_default_dtype` says: images, weights files and optimisers are of that type."""

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
    """Make float32 the default meanwhile, where it is not, for other libraries' networks, which cannot be told.

    The default is the whole process's, so it is left alone where it is float32 already.
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
