"""The fused stem does what PyTorch's modules do: on a GPU, or where there is none, in Triton's interpreter."""

from __future__ import annotations

import copy
import importlib

import pytest
import torch
import torch.nn.functional as F
from kernel_tools import DEVICE, a_norm, distance, exact_convolutions, tensor, watched
from torch import Tensor, nn

from nearshot.models.kernels import stem
from nearshot.models.kernels.norm import two_uses
from nearshot.models.kernels.stem import conv_norm_act

pytest.importorskip("triton")

NEEDS_A_GPU = pytest.mark.skipif(DEVICE.type == "cpu", reason="needs a GPU")
SECOND_DIFFERENCES = torch.tensor([[0.0, 1, 0], [1, -4, 1], [0, 1, 0]], device=DEVICE)


@pytest.fixture(autouse=True)
def _exact(monkeypatch: pytest.MonkeyPatch) -> None:
    exact_convolutions(monkeypatch)


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Which of the kernels' functions were called."""
    assert stem._kernels_agree(DEVICE)  # now, so that it is not among the calls
    return watched(monkeypatch, "triton_stem")


def a_convolution(width: int) -> nn.Conv2d:
    convolution = nn.Conv2d(3, width, 3, padding=1, bias=False).to(DEVICE)
    with torch.no_grad():
        convolution.weight.copy_(tensor((width, 3, 3, 3), 8))
    return convolution


def plainly(convolution: nn.Module, norm: nn.Module, images: Tensor) -> Tensor:
    return F.relu(norm(convolution(images)))


def share(monkeypatch: pytest.MonkeyPatch, programs: int) -> None:
    """Let so many programs do the sums, in small tiles."""
    kernels = importlib.import_module("nearshot.models.kernels.triton_stem")
    for name in ("SUMMING", "BACKWARD"):
        monkeypatch.setattr(kernels, name, getattr(kernels, name) | {"programs": programs, "rows": 16})


def smooth(shape: tuple[int, int, int, int]) -> Tensor:
    """Pictures like photographs that were made larger: neighbours are nearly alike, and the mean is not zero."""
    coarse = tensor((shape[0], 3, 3, 3), 0, torch.float64)
    return F.interpolate(coarse, size=shape[2:], mode="bilinear") + 0.5 + 0.01 * tensor(shape, 1, torch.float64)


TWO_PLACES = (1, 64, 1, 2)  # where the gradients nearly cancel
SLOW = pytest.mark.slow
OTHERS = [(2, 16, 3, 5), (2, 160, 16, 16), TWO_PLACES, (5, 32, 13, 13)]
SHAPES = [(3, 64, 9, 7), *(pytest.param(shape, marks=SLOW) for shape in OTHERS)]


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize(
    ("uses", "programs"), [pytest.param(1, None, marks=SLOW), pytest.param(2, None, marks=SLOW), (2, 2)]
)
def test_values_gradients_and_statistics(
    shape: tuple[int, int, int, int],
    uses: int,
    programs: int | None,
    calls: list[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if programs is not None:  # each has several tiles then
        share(monkeypatch, programs)
    n_images, width, *sides = shape
    images = smooth((n_images, 3, *sides))  # type: ignore[arg-type]
    answers = []
    for act, dtype in ((plainly, torch.float64), (conv_norm_act, torch.float32)):
        convolution, norm = a_convolution(width).to(dtype), a_norm(width).to(dtype)
        output = act(convolution, norm, images.to(dtype))
        parts = [use * tensor(shape, 6 + i).to(dtype) for i, use in enumerate(two_uses(output)[:uses])]
        torch.stack(parts).sum().backward()
        gradients = [p.grad for p in (*convolution.parameters(), *norm.parameters())]
        answers.append([output, *gradients, *norm.buffers()])
    assert calls == ["_line_of", "_backward"]
    for expected, got in zip(*answers, strict=True):
        tolerance = 1e-3 if shape == TWO_PLACES else 5e-5
        torch.testing.assert_close(got.to(expected.dtype), expected, rtol=tolerance, atol=tolerance)


@pytest.mark.slow
def test_weights_that_see_only_fine_detail() -> None:
    """A filter of second differences hardly answers to smooth pictures: what is left is a small difference."""
    images, answers = smooth((4, 3, 24, 24)), []
    for act, dtype in ((plainly, torch.float64), (conv_norm_act, torch.float32)):
        convolution, norm = a_convolution(16).to(dtype), a_norm(16).to(dtype)
        with torch.no_grad():
            convolution.weight.copy_(SECOND_DIFFERENCES * convolution.weight[..., :1, :1])
        output = act(convolution, norm, images.to(dtype))
        output.backward(tensor((4, 16, 24, 24), 6).to(dtype))
        gradients = [p.grad for p in (*convolution.parameters(), *norm.parameters())]
        answers.append([output, *gradients, norm.running_var])
    for expected, got in zip(*answers, strict=True):
        assert distance(got, expected) < 1e-4


def test_evaluation(calls: list[str]) -> None:
    images, convolution, norm = smooth((3, 3, 9, 7)).float(), a_convolution(64), a_norm(64).eval()
    with torch.no_grad():
        expected = plainly(copy.deepcopy(convolution).double(), copy.deepcopy(norm).double(), images.double())
        got = conv_norm_act(convolution, norm, images)
    assert calls == ["evaluate_stem"]
    assert got.is_contiguous(memory_format=torch.channels_last)
    torch.testing.assert_close(got.double(), expected, rtol=1e-4, atol=1e-4)
    assert conv_norm_act(convolution, norm, images).requires_grad  # with gradients, PyTorch's own
    assert calls == ["evaluate_stem"]


@pytest.mark.parametrize("dtype", [torch.float16, pytest.param(torch.bfloat16, marks=NEEDS_A_GPU)])
def test_autocast_is_obeyed(dtype: torch.dtype, calls: list[str]) -> None:
    images, answers = smooth((4, 3, 8, 8)).float(), []
    for act in (plainly, conv_norm_act):
        convolution, norm = a_convolution(64), a_norm(64)
        with torch.autocast(DEVICE.type, dtype):
            output = act(convolution, norm, images)
        assert output.dtype == dtype
        output.backward(tensor((4, 64, 8, 8), 6, dtype) * output.detach())  # little where rounding decides the sign
        gradients = [p.grad for p in (*convolution.parameters(), *norm.parameters())]
        answers.append([output, *gradients, norm.running_mean, norm.running_var])
    assert calls == ["_line_of", "_backward"]
    for expected, got in zip(*answers, strict=True):
        assert got.dtype == expected.dtype
        assert distance(got, expected) < 0.02


@pytest.mark.parametrize("what", ["pictures with gradients", "a bias", "5×5", "torch.func", "a hook", "float64"])
def test_the_rest_is_pytorchs(what: str, calls: list[str]) -> None:
    size = 5 if what == "5×5" else 3
    convolution = nn.Conv2d(3, 16, size, padding=size // 2, bias=what == "a bias").to(DEVICE)
    norm, images = a_norm(16), tensor((2, 3, 6, 6), 0)
    if what == "float64":
        convolution, norm, images = convolution.double(), norm.double(), images.double()
    images.requires_grad_("gradients" in what)
    seen: list[Tensor] = []
    if what == "a hook":
        convolution.register_forward_hook(lambda module, given, output: seen.append(output))
    if what == "torch.func":
        got, expected = (
            torch.func.grad(lambda part, act=act: (act(convolution, norm.eval(), part) ** 2).sum())(images)
            for act in (conv_norm_act, plainly)
        )
    else:
        got, expected = (act(convolution, copy.deepcopy(norm), images) for act in (conv_norm_act, plainly))
    torch.testing.assert_close(got, expected)
    assert not calls
    assert len(seen) == (2 if what == "a hook" else 0)


@NEEDS_A_GPU
def test_more_places_than_32_bits_count() -> None:
    images = torch.randn(1, 3, 6000, 6000, device=DEVICE, dtype=torch.bfloat16).to(memory_format=torch.channels_last)
    norm = a_norm(64).eval()  # 2.3 thousand million outputs
    with torch.no_grad():
        expected = plainly(a_convolution(64).bfloat16().float(), norm, images[:, :, -4:].float())
        got = conv_norm_act(a_convolution(64), norm, images)
    assert distance(got[:, :, -2:], expected[:, :, -2:]) < 0.02
