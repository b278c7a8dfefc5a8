"""The fused batch norm does what PyTorch's does: on a GPU, or in Triton's interpreter (TRITON_INTERPRET=1) on a CPU."""

from __future__ import annotations

import copy
import os

import pytest
import torch
from torch import Tensor, nn

from nearshot.models import build_backbone
from nearshot.models.norm import can_fuse, fuse_norms, norm_act

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
if DEVICE.type == "cpu" and not os.environ.get("TRITON_INTERPRET"):
    pytest.skip("needs a GPU, or Triton's interpreter", allow_module_level=True)
pytest.importorskip("triton")

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


def two_norms(width: int) -> tuple[nn.BatchNorm2d, nn.BatchNorm2d]:
    """PyTorch's in float64, and the fused one."""
    norm = nn.BatchNorm2d(width).to(DEVICE)
    with torch.no_grad():
        norm.weight.copy_(tensor((width, 1, 1, 1), 1).flatten())  # negative ones too
        norm.bias.copy_(tensor((width, 1, 1, 1), 2).flatten())
        norm.running_var.copy_(tensor((width, 1, 1, 1), 3).flatten() ** 2 + 0.1)  # type: ignore[union-attr]
    return copy.deepcopy(norm).double(), fuse_norms(norm)  # type: ignore[return-value]


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("with_shortcut", [False, True])
@pytest.mark.parametrize("slope", [0.0, 0.1, 1.0])
def test_values_gradients_and_statistics(shape: tuple[int, ...], with_shortcut: bool, slope: float) -> None:
    plain, fused = two_norms(shape[1])
    answers = []
    for norm, dtype in ((plain, torch.float64), (fused, torch.float32)):
        x = (3 * tensor(shape, 4) + 50).to(dtype).requires_grad_()  # far from zero, where squares lose digits
        shortcut = tensor(shape, 5).to(dtype).requires_grad_() if with_shortcut else None
        output = norm_act(norm, x, shortcut, slope=slope)
        (output * tensor(shape, 6).to(dtype)).sum().backward()
        gradients = [x.grad, norm.weight.grad, norm.bias.grad, *([shortcut.grad] if shortcut is not None else [])]
        answers.append([output, *gradients, norm.running_mean, norm.running_var, norm.num_batches_tracked])
    for expected, got in zip(*answers, strict=True):
        torch.testing.assert_close(got.to(expected.dtype), expected, rtol=2e-4, atol=2e-4)


@pytest.mark.parametrize("shape", SHAPES)
def test_evaluation(shape: tuple[int, ...]) -> None:
    plain, fused = two_norms(shape[1])
    x, shortcut = tensor(shape, 4), tensor(shape, 5)
    with torch.no_grad():
        expected = norm_act(plain.eval(), x.double(), shortcut.double())
        got = norm_act(fused.eval(), x, shortcut)
    torch.testing.assert_close(got.double(), expected, rtol=1e-4, atol=1e-4)
    before = norm_act(fused, x.requires_grad_(), shortcut)  # with gradients, PyTorch's own
    assert before.requires_grad


def test_bfloat16_comes_and_goes() -> None:
    shape = (8, 64, 8, 8)
    _, fused = two_norms(64)
    plain = copy.deepcopy(fused)
    plain.fused = False  # type: ignore[assignment]
    answers = []
    for norm in (plain, fused):
        x = tensor(shape, 4, torch.bfloat16).requires_grad_()
        output = norm_act(norm, x, tensor(shape, 5, torch.bfloat16))
        output.backward(tensor(shape, 6, torch.bfloat16))
        answers.append([output, x.grad])
    for expected, got in zip(*answers, strict=True):
        assert got.dtype == torch.bfloat16 == expected.dtype
        assert distance(got, expected) < 0.03  # a sum of two rounded numbers may fall on the other side of zero


@pytest.mark.parametrize("name", ["resnet12", "resnet12-metaopt", "conv4-32"])
def test_a_backbone_learns_the_same(name: str) -> None:
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
        features = network(images)
        (features * tensor((*features.shape, 1, 1), 1)[..., 0, 0]).sum().backward()
        gradients = torch.cat([parameter.grad.flatten() for parameter in network.parameters()])  # type: ignore[union-attr]
        with torch.no_grad():
            answers.append([features, gradients, network.eval()(images)])
    for expected, got in zip(*answers, strict=True):
        assert distance(got, expected) < 1e-3


@pytest.mark.skipif(DEVICE.type == "cpu", reason="needs a GPU's memory")
def test_more_places_than_a_side_of_a_grid_has_programs() -> None:
    plain, fused = two_norms(16)
    x = torch.randn(1, 16, 4500, 4500, device=DEVICE, dtype=torch.bfloat16).to(memory_format=torch.channels_last)
    with torch.no_grad():
        expected, got = plain.float().eval()(x[..., -2:]).relu(), norm_act(fused.eval(), x)[..., -2:]
    assert distance(got, expected) < 0.01


def test_where_it_is_not_for() -> None:
    backbone = build_backbone("conv4-32", input_size=16)
    assert not can_fuse(backbone, torch.device("cpu"))
    assert can_fuse(backbone, torch.device("cuda"))
    assert not can_fuse(nn.BatchNorm2d(64), torch.device("cuda"))
    norm = fuse_norms(nn.BatchNorm2d(8)).to(DEVICE)  # half a block of channels
    assert norm_act(norm, tensor((2, 8, 3, 3), 0)).shape == (2, 8, 3, 3)
