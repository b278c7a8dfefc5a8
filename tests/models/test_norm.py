"""The fused batch norm does what PyTorch's does: on a GPU, or where there is none, in Triton's interpreter."""

from __future__ import annotations

import copy
import importlib
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from kernel_tools import DEVICE, a_norm, distance, exact_convolutions, tensor, watched
from torch import Tensor, nn
from torch.autograd import forward_ad

from nearshot.models import build_backbone
from nearshot.models.kernels import fuse
from nearshot.models.kernels.norm import norm_act, two_uses

pytest.importorskip("triton")

SLOW = pytest.mark.slow
OTHERS = [(3, 160, 9, 7), (4, 16, 1, 1), (1, 32, 40, 40)]
SHAPES = [(2, 64, 3, 3), *(pytest.param(shape, marks=SLOW) for shape in OTHERS)]


@pytest.fixture(autouse=True)
def _exact(monkeypatch: pytest.MonkeyPatch) -> None:
    exact_convolutions(monkeypatch)


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Which of the kernels' functions were called."""
    return watched(monkeypatch, "triton_norm")


def plainly(
    norm: nn.Module,
    x: Tensor,
    shortcut: Tensor | None = None,
    shortcut_norm: nn.Module | None = None,
    *,
    slope: float = 0.0,
) -> Tensor:
    past = shortcut_norm(shortcut) if shortcut_norm is not None else 0 if shortcut is None else shortcut
    return F.leaky_relu(norm(x) + past, slope)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("shortcut", ["", "shortcut", "shortcut with a norm"])
@pytest.mark.parametrize("slope", [0.0, 0.1, 1.0])
@pytest.mark.parametrize("uses", [pytest.param(1, marks=SLOW), 2])
def test_values_gradients_and_statistics(
    shape: tuple[int, ...], shortcut: str, slope: float, uses: int, calls: list[str]
) -> None:
    assert_as_pytorch(shape, shortcut, slope, uses, calls)


@pytest.mark.parametrize("shortcut", ["", "shortcut with a norm"])
@pytest.mark.parametrize(  # several tiles each, or more than AT_ONCE
    ("values", "programs"), [(256, 2), pytest.param(16, 300, marks=SLOW)]
)
def test_many_tiles_and_many_programs(
    values: int, programs: int, shortcut: str, calls: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    kernels = importlib.import_module("nearshot.models.kernels.triton_norm")
    monkeypatch.setattr(kernels, "VALUES", values)
    for name in ("SUMMING", "SUMMING_GRADIENTS", "SUMMING_MORE"):
        monkeypatch.setattr(kernels, name, getattr(kernels, name) | {"programs": programs})
    assert_as_pytorch((2, 16, 13, 13), shortcut, 0.0, 1, calls)


def assert_as_pytorch(shape: tuple[int, ...], shortcut: str, slope: float, uses: int, calls: list[str]) -> None:
    n_inputs, n_norms = (2 if shortcut else 1), (2 if "norm" in shortcut else 1)
    answers = []
    for act, dtype in ((plainly, torch.float64), (norm_act, torch.float32)):
        inputs = [(3 * tensor(shape, 4 + i) + 50 * (1 - i)).to(dtype).requires_grad_() for i in range(n_inputs)]
        norms = [a_norm(shape[1], seed=10 * i + 1).to(dtype) for i in range(n_norms)]  # first far from zero: digits
        shortcut_and_norm: list[Any] = [*inputs[1:], *norms[1:]]
        output = act(norms[0], inputs[0], *shortcut_and_norm, slope=slope)
        parts = [use * tensor(shape, 6 + i).to(dtype) for i, use in enumerate(two_uses(output)[:uses])]
        torch.stack(parts).sum().backward()
        leaves = inputs + [parameter for norm in norms for parameter in norm.parameters()]
        answers.append([output, *(leaf.grad for leaf in leaves), *(b for norm in norms for b in norm.buffers())])
    assert calls == ["_line_of"] * n_norms + ["_backward"]
    for expected, got in zip(*answers, strict=True):
        torch.testing.assert_close(got.to(expected.dtype), expected, rtol=2e-4, atol=2e-4)


def test_an_output_has_two_gradients_of_which_either_may_be_missing() -> None:
    x = tensor((2, 16, 3, 3), 0).requires_grad_()
    norm = a_norm(16)
    found: list[Tensor] = []
    for use in (0, 1):
        outputs = two_uses(norm_act(norm, x))
        assert outputs[0] is not outputs[1]
        assert outputs[0].data_ptr() == outputs[1].data_ptr()
        found += torch.autograd.grad(outputs[use], x, tensor((2, 16, 3, 3), 1))
    torch.testing.assert_close(*found)
    changed = norm_act(norm, x).mul_(2)
    assert all(use is changed for use in two_uses(changed))
    neither = [tensor_made_of_nothing(use) for use in two_uses(norm_act(norm, x))]
    assert torch.autograd.grad(neither[0].sum(), x, allow_unused=True)[0] is None
    assert two_uses(x) == (x, x)


class _Nothing(torch.autograd.Function):
    @staticmethod
    def forward(ctx: object, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: object, gradient: Tensor) -> None:
        return None


def tensor_made_of_nothing(x: Tensor) -> Tensor:
    """A copy through which no gradient comes back."""
    made: Tensor = _Nothing.apply(x)  # type: ignore[no-untyped-call]
    return made


@pytest.mark.parametrize("place", [pytest.param(0, marks=SLOW), 5, pytest.param(1499, marks=SLOW)])
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
        for shortcut_norm in (None, a_norm(shape[1], seed=7).eval()):
            exact = None if shortcut_norm is None else copy.deepcopy(shortcut_norm).double()
            expected = plainly(copy.deepcopy(norm).double(), x.double(), shortcut.double(), exact)
            got = norm_act(norm, x, shortcut, shortcut_norm)
            torch.testing.assert_close(got.double(), expected, rtol=1e-4, atol=1e-4)
    assert calls == ["evaluate_norm"] * 2
    assert norm_act(norm, x.requires_grad_(), shortcut).requires_grad  # with gradients, PyTorch's own
    assert calls == ["evaluate_norm"] * 2


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
    assert calls == ["_line_of", "_backward"]
    for expected, got in zip(*answers, strict=True):
        assert got.dtype == torch.bfloat16 == expected.dtype
        assert distance(got, expected) < 0.03  # a sum of two rounded numbers may fall on the other side of zero


SIDES = {"resnet12": 8, "resnet12-metaopt": 16, "conv4-32": 16}  # no larger than they need, since Triton is interpreted


# The stem of resnet12 has kernels of its own; norms of shortcuts go with those that they are added to.
@pytest.mark.parametrize(
    ("name", "n_norms", "n_shortcuts"),
    [
        pytest.param("resnet12", 13, 3, marks=SLOW),
        pytest.param("resnet12-metaopt", 16, 4, marks=SLOW),
        ("conv4-32", 4, 0),
    ],
)
def test_a_backbone_learns_the_same(name: str, n_norms: int, n_shortcuts: int, calls: list[str]) -> None:
    """Whole networks, one step: the same embeddings and gradients, and the same embeddings in evaluation after it."""
    torch.manual_seed(0)
    plain = build_backbone(name, input_size=SIDES[name]).to(DEVICE)
    for module in plain.modules():
        if isinstance(module, nn.Dropout) or type(module).__name__ == "DropBlock":
            module.eval()
    fused = fuse(copy.deepcopy(plain))
    images = tensor((6, 3, SIDES[name], SIDES[name]), 0)
    answers = []
    for network in (plain, fused):
        assert not calls
        features = network(images)
        (features * tensor((*features.shape, 1, 1), 1)[..., 0, 0]).sum().backward()
        gradients = torch.cat([parameter.grad.flatten() for parameter in network.parameters()])  # type: ignore[union-attr]
        with torch.no_grad():
            answers.append([features, gradients, network.eval()(images)])
    assert calls.count("_line_of") == n_norms
    assert calls.count("_backward") == calls.count("evaluate_norm") == n_norms - n_shortcuts
    for expected, got in zip(*answers, strict=True):
        assert distance(got, expected) < 1e-3


@pytest.mark.parametrize("training", [pytest.param(True, marks=SLOW), False])
def test_a_fused_backbone_without_gradients(training: bool) -> None:
    torch.manual_seed(0)
    plain = build_backbone("resnet12", input_size=8).to(DEVICE).train(training)
    images = tensor((3, 3, 8, 8), 0)
    with torch.inference_mode():
        expected, got = plain(images), fuse(copy.deepcopy(plain))(images)
    assert distance(got, expected) < 1e-3


@pytest.mark.skipif(DEVICE.type == "cpu", reason="needs a GPU's memory")
def test_more_places_than_a_side_of_a_grid_has_programs() -> None:
    norm = a_norm(16).eval()
    x = torch.randn(1, 16, 4500, 4500, device=DEVICE, dtype=torch.bfloat16).to(memory_format=torch.channels_last)
    with torch.no_grad():
        assert distance(norm_act(norm, x)[..., -2:], plainly(norm, x[..., -2:])) < 0.01


@pytest.mark.filterwarnings("ignore:.*torch.jit.script:DeprecationWarning")  # torch uses what it has deprecated itself
def test_derivatives_go_forward() -> None:
    norm, x = a_norm(16).eval(), tensor((2, 16, 3, 3), 0)
    with torch.no_grad(), forward_ad.dual_level():
        dual = forward_ad.make_dual(x, x + 1)
        got, expected = (forward_ad.unpack_dual(act(norm, dual)).tangent for act in (norm_act, plainly))
    torch.testing.assert_close(got, expected)


@pytest.mark.parametrize(
    "what",
    ["half a block of channels", "float64", "a momentum of None", "torch.func", "a frozen norm"],
)
def test_the_rest_is_pytorchs(what: str, calls: list[str]) -> None:
    norm = nn.BatchNorm2d(8 if "half" in what else 16, momentum=None if "None" in what else 0.1).to(DEVICE)
    x = tensor((2, norm.num_features, 3, 3), 0)
    if what == "float64":
        norm, x = norm.double(), x.double()
    shortcut, shortcut_norm = (x + 1, a_norm(16).eval()) if "frozen" in what else (None, None)
    expected = plainly(copy.deepcopy(norm), x, shortcut, shortcut_norm)
    if "func" in what:
        got, expected = (
            torch.func.grad(lambda part, act=act: (act(norm.eval(), part) ** 2).sum())(x) for act in (norm_act, plainly)
        )
    else:
        got = norm_act(norm, x, shortcut, shortcut_norm)
    assert not calls
    torch.testing.assert_close(got, expected)
