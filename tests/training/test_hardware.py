"""What is used of a machine, where it was left open. Nothing here computes, so no GPU is needed to ask for one."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from settings import TINY
from torch import Tensor

from nearshot.errors import InputError
from nearshot.models import build_backbone
from nearshot.training import Hardware, TrainConfig
from nearshot.training.hardware import STEPS_TO_COMPILE

CPU, CUDA = torch.device("cpu"), torch.device("cuda")
LONG, SHORT = STEPS_TO_COMPILE, STEPS_TO_COMPILE - 1


def own(embeddings: Tensor, labels: Tensor) -> Tensor:
    return embeddings.sum() * labels.sum()


def used(
    asked: Hardware, device: torch.device, config: TrainConfig = TINY, *, n_ranks: int = 1, n_steps: int = LONG
) -> tuple[bool | None, bool | None, bool | None]:
    backbone = build_backbone(config.backbone, input_size=16)
    found = asked.resolved(device, config, backbone, n_ranks=n_ranks, n_steps=n_steps)
    assert found == found.resolved(device, config, backbone, n_ranks=n_ranks, n_steps=n_steps)
    assert replace(found, fuse=asked.fuse, compile=asked.compile, graph=asked.graph) == asked
    return found.fuse, found.compile, found.graph


def test_on_a_cpu_nothing_is_used_unasked() -> None:
    assert used(Hardware(), CPU) == (False, False, False)
    assert used(Hardware(compile=True), CPU) == (False, True, False)


@pytest.mark.parametrize("triton", [True, False])
def test_on_a_gpu_what_can_be_fused_is_and_the_rest_is_compiled_if_the_training_is_long(
    triton: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("nearshot.models.kernels.fusion.kernels_run", lambda device: triton)
    assert used(Hardware(), CUDA) == (triton, not triton, True)
    assert used(Hardware(fuse=False), CUDA) == (False, True, True)
    assert used(Hardware(fuse=False), CUDA, n_steps=SHORT) == (False, False, True)
    assert used(Hardware(compile=True), CUDA, n_steps=SHORT) == (False, True, True)
    assert used(Hardware(fuse=False, compile=False, graph=False), CUDA) == (False, False, False)


@pytest.mark.parametrize(
    ("changes", "n_ranks"), [({"method": own}, 1), ({"micro_batch": 8}, 1), ({}, 2)], ids=["own", "parts", "ranks"]
)
def test_what_a_graph_cannot_repeat_is_not_captured_unasked(changes: dict[str, object], n_ranks: int) -> None:
    config = replace(TINY, **changes)  # type: ignore[arg-type]
    assert used(Hardware(), CUDA, config, n_ranks=n_ranks)[2] is False
    if n_ranks == 1:
        assert used(Hardware(graph=True), CUDA, config)[2] is True


def test_what_is_asked_for_and_impossible_is_refused() -> None:
    with pytest.raises(InputError, match="batch norm is not possible on cpu"):
        used(Hardware(fuse=True), CPU)
    with pytest.raises(InputError, match="needs a single GPU"):
        used(Hardware(graph=True), CPU)
    with pytest.raises(InputError, match="needs a single GPU"):
        used(Hardware(graph=True), CUDA, n_ranks=2)
