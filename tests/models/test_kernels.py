"""The fused kernels do what PyTorch does: on a GPU, or else in Triton's interpreter."""

import copy
import importlib
import itertools
from collections.abc import Sequence
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nearshot.models import build_backbone
from nearshot.models.kernels import fuse
from nearshot.models.kernels.ops import (
    TOLERANCE,
    conv_norm_act,
    kernels_run,
    norm_act,
    plain_norm_act,
    relative_difference,
    two_uses,
)

pytest.importorskip("triton")

DEVICE = torch.device("cuda:0" if torch.cuda.is_available() else "cpu")
NEEDS_A_GPU = pytest.mark.skipif(DEVICE.type == "cpu", reason="needs a GPU")
NORM_SHAPES = [
    (2, 64, 3, 3),
    (3, 160, 9, 7),
    (4, 16, 1, 1),
    (1, 32, 40, 40),
]
TWO_PLACES = (1, 64, 1, 2)  # where the gradients nearly cancel
STEM_SHAPES = [
    (3, 64, 9, 7),
    (2, 16, 3, 5),
    (2, 160, 16, 16),
    TWO_PLACES,
    (5, 32, 13, 13),
]
SECOND_DIFFERENCES = torch.tensor([[0.0, 1, 0], [1, -4, 1], [0, 1, 0]], device=DEVICE)
# No larger than the networks need, since Triton is interpreted.
SIDES = {"resnet12": 8, "resnet12-metaopt": 16, "conv4-32": 16}


@pytest.fixture(autouse=True)
def _exact_convolutions(monkeypatch: pytest.MonkeyPatch) -> None:
    """In float32 instead of TF32, and the same ones every time."""
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)
    monkeypatch.setattr(torch.backends.cudnn, "deterministic", True)


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """A list that grows with the names of the kernels' functions that are called."""
    called: list[str] = []
    for kind, name in itertools.product(("norm", "stem"), ("_line_of", "_backward")):
        module = importlib.import_module(f"nearshot.models.kernels.triton_{kind}")
        original = getattr(module, name)

        def call(*arguments: Any, name: str = name, original: Any = original) -> Any:
            called.append(name)
            return original(*arguments)

        monkeypatch.setattr(module, name, call)
    return called


def tensor(shape: tuple[int, ...], seed: int, dtype: torch.dtype = torch.float32) -> Tensor:
    values = torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return values.to(DEVICE, dtype, memory_format=torch.channels_last)


def smooth(shape: tuple[int, ...]) -> Tensor:
    """Images like enlarged photographs: neighbours are nearly alike, and the mean is not zero."""
    coarse = tensor((shape[0], 3, 3, 3), 0, torch.float64)
    images = F.interpolate(coarse, size=shape[2:], mode="bilinear")
    return images + 0.5 + 0.01 * tensor(shape, 1, torch.float64)


def distance(got: Tensor, expected: Tensor) -> float:
    """Relative to the expected values' length."""
    got = got.detach().double()
    expected = expected.detach().double()
    return float(torch.linalg.vector_norm(got - expected) / torch.linalg.vector_norm(expected))


def a_norm(width: int, seed: int = 1) -> nn.BatchNorm2d:
    norm = nn.BatchNorm2d(width).to(DEVICE)
    with torch.no_grad():
        norm.weight.copy_(tensor((width, 1, 1, 1), seed).flatten())  # negative ones too
        norm.bias.copy_(tensor((width, 1, 1, 1), seed + 1).flatten())
        norm.running_var.copy_(tensor((width, 1, 1, 1), seed + 2).flatten() ** 2 + 0.1)  # type: ignore[union-attr]
    return norm


def a_convolution(width: int) -> nn.Conv2d:
    convolution = nn.Conv2d(3, width, 3, padding=1, bias=False).to(DEVICE)
    with torch.no_grad():
        convolution.weight.copy_(tensor((width, 3, 3, 3), 8))
    return convolution


def plain_stem(convolution: nn.Module, norm: nn.Module, images: Tensor) -> Tensor:
    return plain_norm_act(norm, convolution(images))


def answers(
    output: Tensor, leaves: Sequence[Any], norms: Sequence[nn.Module], uses: int = 1
) -> list[Any]:
    """Return the output, the gradients of a sum of its uses, and the running statistics."""
    parts = []
    for i, use in enumerate(two_uses(output)[:uses]):
        weights = tensor((*output.shape,), 6 + i)
        parts.append(use * weights.to(output.dtype))
    torch.stack(parts).sum().backward()
    results = [output, *(leaf.grad for leaf in leaves)]
    for norm in norms:
        results += norm.buffers()
    return results


def assert_all_close(expected: list[Any], got: list[Any], tolerance: float) -> None:
    for right, result in zip(expected, got, strict=True):
        torch.testing.assert_close(result.to(right.dtype), right, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("shape", NORM_SHAPES)
@pytest.mark.parametrize("shortcut", ["", "shortcut", "shortcut with a norm"])
@pytest.mark.parametrize("slope", [0.0, 0.1])
@pytest.mark.parametrize("uses", [1, 2])
def test_norm(
    shape: tuple[int, ...], shortcut: str, slope: float, uses: int, calls: list[str]
) -> None:
    """Values, gradients and statistics."""
    n_inputs = 2 if shortcut else 1
    n_norms = 2 if "norm" in shortcut else 1
    results = []
    for act, dtype in ((plain_norm_act, torch.float64), (norm_act, torch.float32)):
        inputs = []
        for i in range(n_inputs):
            values = 3 * tensor(shape, 4 + i) + 50 * (1 - i)  # the first far from zero: digits
            inputs.append(values.to(dtype).requires_grad_())
        norms = [a_norm(shape[1], seed=10 * i + 1).to(dtype) for i in range(n_norms)]
        shortcut_and_norm: list[Any] = [*inputs[1:], *norms[1:]]
        output = act(norms[0], inputs[0], *shortcut_and_norm, slope=slope)
        leaves = list(inputs)
        for norm in norms:
            leaves += norm.parameters()
        results.append(answers(output, leaves, norms, uses))
    assert calls == ["_line_of"] * n_norms + ["_backward"]
    assert_all_close(results[0], results[1], tolerance=2e-4)


@pytest.mark.parametrize("shortcut", ["", "shortcut with a norm"])
@pytest.mark.parametrize(  # several tiles each, or more than AT_ONCE
    ("values", "programs"), [(256, 2), (16, 300)]
)
def test_many_tiles_and_many_programs(
    values: int, programs: int, shortcut: str, calls: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    kernels = importlib.import_module("nearshot.models.kernels.triton_norm")
    monkeypatch.setattr(kernels, "VALUES", values)
    for name in ("SUMMING", "SUMMING_GRADIENTS", "SUMMING_MORE"):
        monkeypatch.setattr(kernels, name, getattr(kernels, name)._replace(programs=programs))
    test_norm((2, 16, 13, 13), shortcut, 0.0, 1, calls)


def test_an_output_has_two_gradients_of_which_either_may_be_missing() -> None:
    x = tensor((2, 16, 3, 3), 0).requires_grad_()
    norm = a_norm(16)
    gradients: list[Tensor] = []
    for use in (0, 1):
        outputs = two_uses(norm_act(norm, x))
        assert outputs[0] is not outputs[1]
        assert outputs[0].data_ptr() == outputs[1].data_ptr()
        gradients += torch.autograd.grad(outputs[use], x, tensor((2, 16, 3, 3), 1))
    torch.testing.assert_close(gradients[0], gradients[1])
    changed = norm_act(norm, x).mul_(2)
    assert all(use is changed for use in two_uses(changed))
    assert two_uses(x) == (x, x)


@pytest.mark.parametrize("place", [0, 5, 1499])
@pytest.mark.parametrize("height", [30.0, 1e4])
def test_one_place_that_stands_out_costs_no_digits(place: int, height: float) -> None:
    norm = a_norm(16)
    x = tensor((15, 16, 10, 10), 4)
    x[place // 100, :, place % 100 // 10, place % 10] += height
    norm_act(norm, x)
    expected = 0.1 * x.double().var((0, 2, 3)) + 0.9 * a_norm(16).running_var  # type: ignore[operator]
    torch.testing.assert_close(norm.running_var.double(), expected, rtol=1e-5, atol=0)  # type: ignore[union-attr]


@pytest.mark.parametrize("shape", NORM_SHAPES)
def test_norm_in_evaluation(shape: tuple[int, ...], calls: list[str]) -> None:
    norm = a_norm(shape[1]).eval()
    x = tensor(shape, 4)
    shortcut = tensor(shape, 5)
    with torch.no_grad():
        for past in (None, a_norm(shape[1], seed=7).eval()):
            exact = None if past is None else copy.deepcopy(past).double()
            exact_norm = copy.deepcopy(norm).double()
            expected = plain_norm_act(exact_norm, x.double(), shortcut.double(), exact)
            assert_all_close([expected], [norm_act(norm, x, shortcut, past)], tolerance=1e-4)
    assert calls == ["_line_of"] * 3
    # With gradients, PyTorch's own.
    assert norm_act(norm, x.requires_grad_(), shortcut).requires_grad
    assert calls == ["_line_of"] * 3


def test_what_is_not_a_number_stays_so() -> None:
    x = torch.zeros(2, 16, 1, 1, device=DEVICE)
    x[0, 0] = torch.nan
    x[0, 1] = -torch.inf
    x[0, 2] = torch.inf
    with torch.no_grad():
        got = norm_act(nn.BatchNorm2d(16).to(DEVICE).eval(), x)[0, :3, 0, 0].cpu()
    torch.testing.assert_close(got, torch.tensor([torch.nan, 0.0, torch.inf]), equal_nan=True)


def test_bfloat16_comes_and_goes(calls: list[str]) -> None:
    shape = (8, 64, 8, 8)
    results = []
    for act in (plain_norm_act, norm_act):
        x = tensor(shape, 4, torch.bfloat16).requires_grad_()
        results.append(answers(act(a_norm(64), x, tensor(shape, 5, torch.bfloat16)), [x], []))
    assert calls == ["_line_of", "_backward"]
    for expected, got in zip(results[0], results[1], strict=True):
        assert got.dtype == expected.dtype == torch.bfloat16
        # A sum of two rounded numbers may fall on the other side of zero.
        assert distance(got, expected) < 0.03


@NEEDS_A_GPU
def test_more_places_than_a_side_of_a_grid_has_programs() -> None:
    norm = a_norm(16).eval()
    x = torch.randn(1, 16, 4500, 4500, device=DEVICE, dtype=torch.bfloat16)
    x = x.to(memory_format=torch.channels_last)
    with torch.no_grad():
        assert distance(norm_act(norm, x)[..., -2:], plain_norm_act(norm, x[..., -2:])) < 0.01


def stem_answers(
    images: Tensor, width: int, uses: int = 1, filters: Tensor | None = None
) -> tuple[list[Any], list[Any]]:
    """Return those of PyTorch in float64 and of the kernels in float32."""
    results = []
    for act, dtype in ((plain_stem, torch.float64), (conv_norm_act, torch.float32)):
        convolution = a_convolution(width).to(dtype)
        norm = a_norm(width).to(dtype)
        if filters is not None:
            convolution.weight.data = filters.to(dtype) * convolution.weight.data[..., :1, :1]
        output = act(convolution, norm, images.to(dtype))
        leaves = [*convolution.parameters(), *norm.parameters()]
        results.append(answers(output, leaves, [norm], uses))
    return results[0], results[1]


@pytest.mark.parametrize("shape", STEM_SHAPES)
@pytest.mark.parametrize(
    ("uses", "programs"),
    [(1, None), (2, None), (2, 2)],
)
def test_stem(
    shape: tuple[int, ...],
    uses: int,
    programs: int | None,
    calls: list[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Values, gradients and statistics."""
    if programs is not None:  # each has several tiles then
        kernels = importlib.import_module("nearshot.models.kernels.triton_stem")
        for name in ("SUMMING", "BACKWARD"):
            setting = getattr(kernels, name)._replace(programs=programs, rows=16)
            monkeypatch.setattr(kernels, name, setting)
    n_images, width, *sides = shape
    expected, got = stem_answers(smooth((n_images, 3, *sides)), width, uses)
    assert calls == ["_line_of", "_backward"]
    assert_all_close(expected, got, tolerance=1e-3 if shape == TWO_PLACES else 5e-5)


def test_weights_that_see_only_fine_detail() -> None:
    """A filter of second differences hardly answers to smooth images."""
    expected, got = stem_answers(smooth((4, 3, 24, 24)), 16, filters=SECOND_DIFFERENCES)
    # But for the number of batches, which comes last.
    for right, result in zip(expected[:-1], got[:-1], strict=True):
        assert distance(result, right) < 1e-4


def test_stem_in_evaluation(calls: list[str]) -> None:
    images = smooth((3, 3, 9, 7)).float()
    convolution = a_convolution(64)
    norm = a_norm(64).eval()
    with torch.no_grad():
        exact_convolution = copy.deepcopy(convolution).double()
        exact_norm = copy.deepcopy(norm).double()
        expected = plain_stem(exact_convolution, exact_norm, images.double())
        got = conv_norm_act(convolution, norm, images)
    assert calls == ["_line_of"]
    assert got.is_contiguous(memory_format=torch.channels_last)
    assert_all_close([expected], [got], tolerance=1e-4)
    assert conv_norm_act(convolution, norm, images).requires_grad  # with gradients, PyTorch's own
    assert calls == ["_line_of"]


@pytest.mark.parametrize("dtype", [torch.float16, pytest.param(torch.bfloat16, marks=NEEDS_A_GPU)])
def test_autocast_is_obeyed(dtype: torch.dtype, calls: list[str]) -> None:
    images = smooth((4, 3, 8, 8)).float()
    results: list[list[Any]] = []
    for act in (plain_stem, conv_norm_act):
        convolution = a_convolution(64)
        norm = a_norm(64)
        with torch.autocast(DEVICE.type, dtype):
            output = act(convolution, norm, images)
        assert output.dtype == dtype
        # Little where rounding decides the sign.
        output.backward(tensor((4, 64, 8, 8), 6, dtype) * output.detach())
        parameters = [*convolution.parameters(), *norm.parameters()]
        gradients = [parameter.grad for parameter in parameters]
        results.append([output, *gradients, norm.running_mean, norm.running_var])
    assert calls == ["_line_of", "_backward"]
    for expected, got in zip(results[0], results[1], strict=True):
        assert got.dtype == expected.dtype
        assert distance(got, expected) < 0.02


def test_images_with_gradients_and_float64_are_pytorchs(calls: list[str]) -> None:
    convolution = a_convolution(16).double()
    norm = a_norm(16).double()
    images = tensor((2, 3, 6, 6), 0).double()
    got = conv_norm_act(convolution, copy.deepcopy(norm), images)
    expected = plain_stem(convolution, copy.deepcopy(norm), images)
    torch.testing.assert_close(got, expected)
    assert not calls
    images = images.float().requires_grad_()
    conv_norm_act(convolution.float(), norm.float(), images).sum().backward()
    assert images.grad is not None


@NEEDS_A_GPU
def test_more_places_than_32_bits_count() -> None:
    images = torch.randn(1, 3, 6000, 6000, device=DEVICE, dtype=torch.bfloat16)
    images = images.to(memory_format=torch.channels_last)
    norm = a_norm(64).eval()  # 2.3 thousand million outputs
    with torch.no_grad():
        expected = plain_stem(a_convolution(64).bfloat16().float(), norm, images[:, :, -4:].float())
        got = conv_norm_act(a_convolution(64), norm, images)
    assert distance(got[:, :, -2:], expected[:, :, -2:]) < 0.02


# The stem of resnet12 has kernels of its own; norms of shortcuts go with those that they are added
# to.
@pytest.mark.parametrize(
    ("name", "n_norms", "n_shortcuts"),
    [
        ("resnet12", 14, 3),
        ("resnet12-metaopt", 16, 4),
        ("conv4-32", 4, 0),
    ],
)
def test_a_backbone_learns_the_same(
    name: str, n_norms: int, n_shortcuts: int, calls: list[str]
) -> None:
    """One step: the same embeddings and gradients, and the same embeddings in evaluation."""
    torch.manual_seed(0)
    plain = build_backbone(name, input_size=SIDES[name]).to(DEVICE)
    for module in plain.modules():
        if isinstance(module, nn.Dropout) or type(module).__name__ == "DropBlock":
            module.eval()
    images = tensor((6, 3, SIDES[name], SIDES[name]), 0)
    results = []
    for network in (plain, fuse(copy.deepcopy(plain))):
        assert not calls
        features = network(images)
        (features * tensor((*features.shape, 1, 1), 1)[..., 0, 0]).sum().backward()
        gradients = torch.cat([parameter.grad.flatten() for parameter in network.parameters()])  # type: ignore[union-attr]
        with torch.no_grad():
            results.append([features, gradients, network.eval()(images)])
    assert calls.count("_line_of") == 2 * n_norms
    assert calls.count("_backward") == n_norms - n_shortcuts
    for expected, got in zip(results[0], results[1], strict=True):
        assert distance(got, expected) < 1e-3


def test_the_kernels_agree_and_draw_nothing(caplog: pytest.LogCaptureFixture) -> None:
    before = torch.get_rng_state()
    with torch.no_grad():  # as in validation
        assert kernels_run.__wrapped__(DEVICE)
    assert torch.equal(torch.get_rng_state(), before)
    assert not caplog.records


@pytest.mark.parametrize("module", ["triton_norm", "triton_stem"])
def test_a_difference_is_found_and_logged(
    module: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """In the gradients alone: of all that a compiler gets wrong, this would be seen last."""
    kernels = importlib.import_module(f"nearshot.models.kernels.{module}")
    right = kernels._backward

    def wrong(*arguments: Any) -> object:
        first, *rest = right(*arguments)
        if isinstance(first, tuple):
            of_x, of_weight, of_bias = first
            return (of_x, -of_weight, of_bias), *rest
        return -first, *rest

    monkeypatch.setattr(kernels, "_backward", wrong)
    assert not kernels_run.__wrapped__(DEVICE)
    assert ["not fused" in record.message for record in caplog.records] == [True]


def test_what_is_not_a_number_is_a_difference() -> None:

    def nan_stem(convolution: nn.Module, norm: nn.Module, images: Tensor) -> Tensor:
        return plain_stem(convolution, norm, images) * torch.nan

    same = relative_difference(plain_stem, plain_stem, DEVICE)
    if DEVICE.type == "cpu":
        assert same == 0
    else:  # one side is in bfloat16
        assert same < TOLERANCE
    assert relative_difference(nan_stem, plain_stem, DEVICE) == torch.inf
