"""The defaults of hardware options. Nothing here computes, so the tests need no GPU."""

from dataclasses import replace

import pytest
import torch
from tests.helpers.settings import TINY, change, stops

from nearshot.errors import InputError
from nearshot.models import build_backbone
from nearshot.training import Hardware, TrainConfig
from nearshot.training.hardware import STEPS_TO_COMPILE

CPU = torch.device("cpu")
CUDA = torch.device("cuda")
LONG = STEPS_TO_COMPILE
SHORT = STEPS_TO_COMPILE - 1


def used(
    asked: Hardware,
    device: torch.device,
    config: TrainConfig = TINY,
    *,
    n_ranks: int = 1,
    n_steps: int = LONG,
) -> tuple[bool | None, bool | None, bool | None]:
    backbone = build_backbone(config.backbone, input_size=16)
    resolved = asked.resolved(device, config, backbone, n_ranks=n_ranks, n_steps=n_steps)
    assert resolved == resolved.resolved(device, config, backbone, n_ranks=n_ranks, n_steps=n_steps)
    assert replace(resolved, fuse=asked.fuse, compile=asked.compile, graph=asked.graph) == asked
    return resolved.fuse, resolved.compile, resolved.graph


def test_a_cpu_uses_nothing_by_default() -> None:
    assert used(Hardware(), CPU) == (False, False, False)
    assert used(Hardware(compile=True), CPU) == (False, True, False)


@pytest.mark.parametrize("triton", [True, False])
def test_a_gpu_fuses_where_possible_and_else_compiles_long_runs(
    triton: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("nearshot.models.kernels.kernels_run", lambda device: triton)
    assert used(Hardware(), CUDA) == (triton, not triton, True)
    assert used(Hardware(fuse=False), CUDA) == (False, True, True)
    assert used(Hardware(fuse=False), CUDA, n_steps=SHORT) == (False, False, True)
    assert used(Hardware(compile=True), CUDA, n_steps=SHORT) == (False, True, True)
    assert used(Hardware(fuse=False, compile=False, graph=False), CUDA) == (False, False, False)


def test_steps_that_a_graph_cannot_repeat_are_not_captured_by_default() -> None:
    assert used(Hardware(), CUDA, n_ranks=2)[2] is False
    for config in (change(TINY, method=stops(1)), change(TINY, micro_batch=8)):
        assert used(Hardware(), CUDA, config)[2] is False
        assert used(Hardware(graph=True), CUDA, config)[2] is True


def test_impossible_requests_are_refused() -> None:
    impossible = [
        (Hardware(fuse=True), CPU, 1),
        (Hardware(graph=True), CPU, 1),
        (Hardware(graph=True), CUDA, 2),
    ]
    for asked, device, n_ranks in impossible:
        with pytest.raises(InputError, match="fuse .*conv4-32 on cpu" if asked.fuse else "graph"):
            used(asked, device, n_ranks=n_ranks)
