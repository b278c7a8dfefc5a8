"""What the tests of the kernels share."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

DEVICE = torch.device("cuda:0" if torch.cuda.is_available() else "cpu")


def exact_convolutions(monkeypatch: pytest.MonkeyPatch) -> None:
    """Convolutions in float32 instead of TF32, and the same ones every time."""
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)
    monkeypatch.setattr(torch.backends.cudnn, "deterministic", True)


def tensor(shape: tuple[int, ...], seed: int, dtype: torch.dtype = torch.float32) -> Tensor:
    values = torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return values.to(DEVICE, dtype, memory_format=torch.channels_last)


def distance(got: Tensor, expected: Tensor) -> float:
    """Relative to the expected values' length."""
    got, expected = got.detach().double(), expected.detach().double()
    return float(torch.linalg.vector_norm(got - expected) / torch.linalg.vector_norm(expected))


def a_norm(width: int, seed: int = 1) -> nn.BatchNorm2d:
    norm = nn.BatchNorm2d(width).to(DEVICE)
    with torch.no_grad():
        norm.weight.copy_(tensor((width, 1, 1, 1), seed).flatten())  # negative ones too
        norm.bias.copy_(tensor((width, 1, 1, 1), seed + 1).flatten())
        norm.running_var.copy_(tensor((width, 1, 1, 1), seed + 2).flatten() ** 2 + 0.1)  # type: ignore[union-attr]
    return norm


def watched(monkeypatch: pytest.MonkeyPatch, module_name: str) -> list[str]:
    """Return a list that grows with the names of the kernels' functions that are called."""
    called: list[str] = []
    module = importlib.import_module(f"nearshot.models.kernels.{module_name}")

    def noted(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*given: Any) -> Any:
            called.append(name)
            return function(*given)

        return call

    for name in ("_line_of", "_backward", f"evaluate_{module_name.removeprefix('triton_')}"):
        monkeypatch.setattr(module, name, noted(name, getattr(module, name)))
    return called
