"""The fused batch norm does what PyTorch's does: on a GPU, or where there is none, in Triton's interpreter."""

from __future__ import annotations

import copy
import importlib
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nearshot.models import build_backbone
from nearshot.models.norm import fuse_norms, norm_act

pytest.importorskip("triton")

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
norm_kernels = importlib.import_module("nearshot.models.norm_kernels")

SHAPES = [(2, 64, 3, 3), (3, 160, 9, 7), (4, 16, 1, 1), (1, 32, 40, 40)]


@pytest.fixture(autouse=True)
def _exact(monkeypatch: pytest.MonkeyPatch) -> None:
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


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Which of the kernels' functions were called."""
    called: list[str] = []

    def noted(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*given: Any) -> Any:
            called.append(name)
            return function(*given)

        return call

    for name in ("_forward", "_backward", "evaluated"):
        monkeypatch.setattr(norm_kernels, name, noted(name, getattr(norm_kernels, name)))
    return called


def a_norm(width: int) -> nn.BatchNorm2d:
    norm = nn.BatchNorm2d(width).to(DEVICE)
    with torch.no_grad():
        norm.weight.copy_(tensor((width, 1, 1, 1), 1).flatten())  # negative ones too
        norm.bias.copy_(tensor((width, 1, 1, 1), 2).flatten())
        norm.running_var.copy_(tensor((width, 1, 1, 1), 3).flatten() ** 2 + 0.1)  # type: ignore[union-attr]
    return norm


def plainly(norm: nn.Module, x: Tensor, shortcut: Tensor | None, slope: float = 0.0) -> Tensor:
    return F.leaky_relu(norm(x) + (0 if shortcut is None else shortcut), slope)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("with_shortcut", [False, True])
@pytest.mark.parametrize("slope", [0.0, 0.1, 1.0])
def test_values_gradients_and_statistics(
    shape: tuple[int, ...], with_shortcut: bool, slope: float, calls: list[str]
) -> None:
    norm = a_norm(shape[1])
    answers = []
    for act, its_norm, dtype in (
        (plainly, copy.deepcopy(norm).double(), torch.float64),
        (norm_act, norm, torch.float32),
    ):
        x = (3 * tensor(shape, 4) + 50).to(dtype).requires_grad_()  # far from zero, where squares lose digits
        shortcut = tensor(shape, 5).to(dtype).requires_grad_() if with_shortcut else None
        output = act(its_norm, x, shortcut, slope=slope)
        (output * tensor(shape, 6).to(dtype)).sum().backward()
        gradients = [x.grad, its_norm.weight.grad, its_norm.bias.grad]
        gradients += [shortcut.grad] if shortcut is not None else []
        answers.append([output, *gradients, its_norm.running_mean, its_norm.running_var, its_norm.num_batches_tracked])
    assert calls == ["_forward", "_backward"]
    for expected, got in zip(*answers, strict=True):
        torch.testing.assert_close(got.to(expected.dtype), expected, rtol=2e-4, atol=2e-4)


@pytest.mark.parametrize("place", [0, 5, 1499])
@pytest.mark.parametrize("height", [30.0, 1e4])
def test_one_place_that_stands_out_costs_no_digits(place: int, height: float) -> None:
    norm = a_norm(16)
    x = tensor((15, 16, 10, 10), 4)
    x[place // 100, :, place % 100 // 10, place % 10] += height
    norm_act(norm, x)
    expected = 0.1 * x.double().var((0, 2, 3)) + 0.9 * a_norm(16).running_var  # type: ignore[operator]
    torch.testing.assert_close(norm.running_var.double(), expected, rtol=1e-5, atol=0)  # type: ignore[union-attr]


@pytest.mark.parametrize("shape", SHAPES)
def test_evaluation(shape: tuple[int, ...], calls: list[str]) -> None:
    norm = a_norm(shape[1]).eval()
    x, shortcut = tensor(shape, 4), tensor(shape, 5)
    with torch.no_grad():
        expected = plainly(copy.deepcopy(norm).double(), x.double(), shortcut.double())
        got = norm_act(norm, x, shortcut)
    assert calls == ["evaluated"]
    torch.testing.assert_close(got.double(), expected, rtol=1e-4, atol=1e-4)
    assert norm_act(norm, x.requires_grad_(), shortcut).requires_grad  # with gradients, PyTorch's own
    assert calls == ["evaluated"]


def test_what_is_not_a_number_stays_so() -> None:
    norm = nn.BatchNorm2d(16).to(DEVICE).eval()
    x = torch.zeros(2, 16, 1, 1, device=DEVICE)
    x[0, 0], x[0, 1], x[0, 2] = torch.nan, -torch.inf, torch.inf
    with torch.no_grad():
        got = norm_act(norm, x)[0, :3, 0, 0].cpu()
    torch.testing.assert_close(got, torch.tensor([torch.nan, 0.0, torch.inf]), equal_nan=True)


def test_bfloat16_comes_and_goes(calls: list[str]) -> None:
    shape = (8, 64, 8, 8)
    answers = []
    for act in (plainly, norm_act):
        x = tensor(shape, 4, torch.bfloat16).requires_grad_()
        output = act(a_norm(64), x, tensor(shape, 5, torch.bfloat16))
        output.backward(tensor(shape, 6, torch.bfloat16))
        answers.append([output, x.grad])
    assert calls == ["_forward", "_backward"]
    for expected, got in zip(*answers, strict=True):
        assert got.dtype == torch.bfloat16 == expected.dtype
        assert distance(got, expected) < 0.03  # a sum of two rounded numbers may fall on the other side of zero


@pytest.mark.parametrize(("name", "n_norms"), [("resnet12", 14), ("resnet12-metaopt", 16), ("conv4-32", 4)])
def test_a_backbone_learns_the_same(name: str, n_norms: int, calls: list[str]) -> None:
    """Whole networks, one step: the same embeddings and gradients, and the same embeddings in evaluation after it."""
    torch.manual_seed(0)
    plain = build_backbone(name, input_size=16).to(DEVICE)
    for module in plain.modules():
        if isinstance(module, nn.Dropout) or type(module).__name__ == "DropBlock":
            module.eval()
    fused = fuse_norms(copy.deepcopy(plain))
    images = tensor((6, 3, 16, 16), 0)
    answers = []
    for network in (plain, fused):
        assert not calls
        features = network(images)
        (features * tensor((*features.shape, 1, 1), 1)[..., 0, 0]).sum().backward()
        gradients = torch.cat([parameter.grad.flatten() for parameter in network.parameters()])  # type: ignore[union-attr]
        with torch.no_grad():
            answers.append([features, gradients, network.eval()(images)])
    assert [calls.count(name) for name in ("_forward", "_backward", "evaluated")] == 3 * [n_norms]
    for expected, got in zip(*answers, strict=True):
        assert distance(got, expected) < 1e-3


@pytest.mark.skipif(DEVICE.type == "cpu", reason="needs a GPU's memory")
def test_more_places_than_a_side_of_a_grid_has_programs() -> None:
    norm = a_norm(16).eval()
    x = torch.randn(1, 16, 4500, 4500, device=DEVICE, dtype=torch.bfloat16).to(memory_format=torch.channels_last)
    with torch.no_grad():
        assert distance(norm_act(norm, x)[..., -2:], plainly(norm, x[..., -2:], None)) < 0.01


@pytest.mark.parametrize("what", ["half a block of channels", "float64", "a momentum of None", "torch.func"])
def test_the_rest_is_pytorchs(what: str, calls: list[str]) -> None:
    norm = nn.BatchNorm2d(8 if "half" in what else 16, momentum=None if "None" in what else 0.1).to(DEVICE)
    x = tensor((2, norm.num_features, 3, 3), 0)
    if what == "float64":
        norm, x = norm.double(), x.double()
    expected = plainly(copy.deepcopy(norm), x, None)
    got = torch.func.vmap(lambda part: norm_act(norm.eval(), part))(x[None]) if "func" in what else norm_act(norm, x)
    assert got.shape[-4:] == expected.shape
    assert not calls
    if "func" not in what:
        torch.testing.assert_close(got, expected)
