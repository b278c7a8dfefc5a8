"""Kernels that compute something else than PyTorch are found out before they are used."""

from __future__ import annotations

import importlib
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from kernel_tools import DEVICE, a_norm, tensor, watched
from torch import Tensor, nn

from nearshot.models.kernels import norm, self_check, stem
from nearshot.models.kernels.self_check import agree

pytest.importorskip("triton")

CHECKS = {"Batch norm": norm.kernels_run, "The first convolution": stem._kernels_agree}


@pytest.fixture(params=CHECKS)
def check(request: pytest.FixtureRequest) -> Callable[[], bool]:
    uncached = CHECKS[request.param].__wrapped__
    return lambda: uncached(DEVICE)


def test_the_kernels_agree_and_draw_nothing(check: Callable[[], bool], caplog: pytest.LogCaptureFixture) -> None:
    before = torch.get_rng_state()
    with torch.no_grad():  # as in validation
        assert check()
    assert torch.equal(torch.get_rng_state(), before)
    assert not caplog.records


@pytest.mark.parametrize(
    ("name", "module"),
    [("Batch norm", "triton_norm"), pytest.param("The first convolution", "triton_stem", marks=pytest.mark.slow)],
)
def test_a_difference_is_found_and_told(
    name: str, module: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """In the gradients alone: of all that a compiler gets wrong, this would be seen last."""
    kernels = importlib.import_module(f"nearshot.models.kernels.{module}")
    right = kernels._backward

    def wrong(*given: Tensor) -> object:
        first, *rest = right(*given)
        return (first[0], -first[1], first[2]) if isinstance(first, tuple) else -first, *rest

    monkeypatch.setattr(kernels, "_backward", wrong)
    assert not CHECKS[name].__wrapped__(DEVICE)
    assert [record.message.split(" is ")[0] for record in caplog.records] == [name]


def test_what_is_not_a_number_is_a_difference(caplog: pytest.LogCaptureFixture) -> None:
    def plain(convolution: nn.Conv2d, norm: nn.BatchNorm2d, images: Tensor) -> Tensor:
        return F.relu(norm(convolution(images)))

    assert agree("It", plain, plain, DEVICE)
    assert not agree("It", lambda *given: plain(*given) * torch.nan, plain, DEVICE)
    assert not agree("It", lambda *given: plain(*given)[:, :8], plain, DEVICE)
    assert ["nan%" in caplog.records[0].message, "does not work" in caplog.records[1].message] == [True, True]


def test_rounding_is_far_from_a_difference() -> None:
    """PyTorch's own in bfloat16, against float32: what kernels on a GPU are allowed is several times as much."""

    def block(convolution: nn.Conv2d, norm: nn.BatchNorm2d, images: Tensor) -> Tensor:
        inner = F.relu(norm(convolution(images)))
        return F.relu(norm(inner) + norm(2 * inner))

    exact, rounded = (self_check._answers(block, DEVICE, dtype) for dtype in (torch.float32, torch.bfloat16))
    differences = [self_check._distance(*pair) for pair in zip(rounded, exact, strict=True)]
    assert 1e-4 < max(differences) < self_check.TOLERANCE / 3


def test_a_stem_that_differs_is_pytorchs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stem, "_kernels_agree", lambda device: False)
    calls = watched(monkeypatch, "triton_stem")
    convolution = nn.Conv2d(3, 16, 3, padding=1, bias=False).to(DEVICE)
    stem.conv_norm_act(convolution, a_norm(16), tensor((2, 3, 4, 4), 0))
    assert not calls
