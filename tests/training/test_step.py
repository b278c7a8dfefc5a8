"""A step: gradients in parts, the optimiser against a plain loop, and the learning rate."""

import math
from contextlib import nullcontext
from dataclasses import fields, replace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from lightning_fabric import Fabric
from tests.helpers.settings import TINY, change
from torch import Tensor, nn

from nearshot.losses import nca_loss
from nearshot.training import PRESETS, Hardware, Method, TrainConfig
from nearshot.training.learner import Embedded, Learner
from nearshot.training.methods import (
    METHODS,
    NCA,
    MatchingNetworks,
    NCAWithPrototypes,
    PrototypicalNetworks,
    SupCon,
)
from nearshot.training.step import (
    Prepared,
    Step,
    captured,
    changing_tensors,
    learning_rate_factor,
)

N_CLASSES = 8
SIDE = 16
WITH_DISTANCE: tuple[Any, ...] = (
    NCA,
    PrototypicalNetworks,
    MatchingNetworks,
    NCAWithPrototypes,
)


def make_step(config: TrainConfig, *, without_batch_norm: bool = False) -> Step:
    torch.manual_seed(0)
    step = Step(
        Fabric(accelerator="cpu", devices=1),
        Hardware(channels_last=False),
        config,
        Learner(config, SIDE, N_CLASSES),
    )
    if without_batch_norm:
        for module in step.learner.modules():
            if isinstance(module, nn.BatchNorm2d):
                module.eval()
    return step


def batch(config: TrainConfig) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(2)
    classes = torch.arange(N_CLASSES)
    labels = torch.cat([classes.repeat_interleave(2), classes.repeat_interleave(2)])
    images = torch.randint(
        256, (len(labels), SIDE, SIDE, 3), dtype=torch.uint8, generator=generator
    )
    return images, labels


def gradients(step: Step, images: Tensor, labels: Tensor) -> dict[str, Tensor]:
    step(images, labels)
    by_name = {
        name: p.grad.clone() for name, p in step.learner.named_parameters() if p.grad is not None
    }
    for name, parameter in step.loss_modules.named_parameters():
        assert parameter.grad is not None
        by_name[name] = parameter.grad.clone()
    return by_name


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize("part_size", [1, 5, 32, 100])
def test_in_parts_the_gradient_is_that_of_the_whole_batch(name: str, part_size: int) -> None:
    """Up to rounding, and without batch norm's statistics, which are of the parts."""
    settings = {"temperature": 1.35, "learn_temperature": True, "projection": 12}
    own = {item.name for item in fields(METHODS[name])}
    config = change(
        TINY, method=name, **{key: value for key, value in settings.items() if key in own}
    )
    images, labels = batch(config)
    whole = gradients(make_step(config, without_batch_norm=True), images, labels)
    in_parts = gradients(
        make_step(replace(config, micro_batch=part_size), without_batch_norm=True), images, labels
    )
    assert whole.keys() == in_parts.keys()
    for parameter, expected in whole.items():
        largest = float(expected.abs().max())
        torch.testing.assert_close(
            in_parts[parameter], expected, atol=1e-4 * largest + 1e-9, rtol=1e-4
        )


def test_in_parts_batch_norm_sees_each_part_once() -> None:
    config = change(TINY, micro_batch=16)
    step = make_step(config)
    step(*batch(config))
    counts = {
        int(b) for name, b in step.learner.named_buffers() if name.endswith("num_batches_tracked")
    }
    assert counts == {2}  # of 32 images, 16 at a time


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"momentum": 0.0, "weight_decay": 0.0},
        {"nesterov": True, "weight_decay": 0.1},
        {"optimiser": "adam", "learning_rate": 1e-3, "weight_decay": 0.1},
        {"learn_temperature": True, "temperature": 3.0, "weight_decay": 0.1},
    ],
    ids=str,
)
def test_the_optimiser_is_that_of_the_settings(changes: dict[str, Any]) -> None:
    """Three steps of a plain loop with torch.optim; a learnt temperature does not decay."""
    config = change(TINY, background=0.0, **changes)
    method = config.method
    assert isinstance(method, NCA)
    images, labels = batch(config)
    step = make_step(config)
    plain = Learner(config, SIDE, N_CLASSES)
    plain.load_state_dict(step.learner.state_dict())
    plain.train()
    log_temperature = nn.Parameter(torch.tensor(math.log(method.temperature)))
    rates: dict[str, Any] = {"lr": config.learning_rate, "weight_decay": config.weight_decay}
    groups: list[dict[str, Any]] = [{"params": list(plain.parameters())}]
    if method.learn_temperature:
        groups.append({"params": [log_temperature], "weight_decay": 0.0})
    optimiser: torch.optim.Optimizer = torch.optim.Adam(groups, **rates)
    if config.optimiser == "sgd":
        optimiser = torch.optim.SGD(
            groups, momentum=config.momentum, nesterov=config.nesterov, **rates
        )
    for _ in range(3):
        chance = step.generator.get_state()
        inputs = step.prepare(images).images
        step.generator.set_state(chance)
        step(images, labels)
        optimiser.zero_grad()
        nca_loss(plain(inputs).embeddings, labels, temperature=log_temperature.exp()).backward()
        optimiser.step()
    for (name, expected), parameter in zip(
        plain.named_parameters(), step.learner.parameters(), strict=True
    ):
        torch.testing.assert_close(parameter, expected, rtol=1e-3, atol=1e-5, msg=name)
    learnt = dict(step.loss_modules.named_parameters())
    assert bool(learnt) == method.learn_temperature
    if learnt:
        assert float(log_temperature.detach()) != pytest.approx(math.log(3), abs=1e-3)
        torch.testing.assert_close(
            learnt["temperature.log_temperature"], log_temperature, rtol=1e-4, atol=1e-6
        )


@pytest.mark.parametrize("decay", [0.5, 0.95])
def test_the_average_is_that_of_a_loop_over_the_steps(decay: float) -> None:
    """Weights and statistics of batch norm; the first steps weigh more than 1 − decay."""
    config = change(TINY, ema_decay=decay)
    step = make_step(config)
    assert step.average is not None
    expected = {name: value.double() for name, value in step.learner.backbone.state_dict().items()}
    for number in range(1, 13):
        step(*batch(config))
        share = max(1 - decay, 9 / (9 + number))
        for name, value in step.learner.backbone.state_dict().items():
            expected[name] = (1 - share) * expected[name] + share * value.double()
    for name, value in step.average.backbone.state_dict().items():
        if "num_batches" not in name:
            torch.testing.assert_close(
                value.double(), expected[name], rtol=1e-5, atol=1e-6, msg=name
            )
    live = step.learner.backbone.state_dict()
    assert any(
        not torch.allclose(value.double(), live[name].double()) for name, value in expected.items()
    )
    assert not step.average.backbone.training
    assert not any(value.requires_grad for value in step.average.parameters())


def factors(n_steps: int, *, warm_up: float = 0.0, **settings: Any) -> list[float]:
    config = TrainConfig(epochs=n_steps, warm_up=warm_up, **settings)  # an epoch is a step
    return [learning_rate_factor(step, n_steps, config) for step in range(n_steps)]


@given(st.integers(1, 400), st.lists(st.floats(0.01, 0.99), max_size=3))
def test_steps_fall_at_their_fractions_and_never_rise(
    n_steps: int, milestones: list[float]
) -> None:
    values = factors(n_steps, milestones=tuple(milestones), decay=0.5)
    assert values == [
        0.5 ** sum(step >= round(milestone * n_steps) for milestone in milestones)
        for step in range(n_steps)
    ]
    assert values == sorted(values, reverse=True)


def test_the_papers_schedule_drops_once_after_84_of_120_epochs() -> None:
    config = PRESETS["mini-imagenet-nca"]
    assert [learning_rate_factor(epoch * 75, 120 * 75, config) for epoch in range(120)] == [
        1.0
    ] * 84 + [0.1] * 36


@given(st.integers(2, 400), st.floats(0, 1))
def test_a_cosine_falls_from_one_to_nothing_after_the_warm_up(n_steps: int, share: float) -> None:
    warm_up = share * n_steps / 2
    values = factors(n_steps, schedule="cosine", warm_up=warm_up)
    after = values[math.ceil(warm_up) :]
    assert after == sorted(after, reverse=True)
    assert all(0 <= factor <= 1 for factor in values)
    last = 0.5 * (1 + math.cos(math.pi * (n_steps - 1 - warm_up) / (n_steps - warm_up)))
    assert values[-1] == pytest.approx(last, abs=1e-9)


@pytest.mark.parametrize("schedule", ["steps", "constant", "cosine"])
def test_a_warm_up_rises_in_equal_parts(schedule: str) -> None:
    values = factors(100, schedule=schedule, warm_up=10)
    assert values[:10] == pytest.approx([(step + 1) / 10 for step in range(10)])
    assert values[10:12] == (
        [1.0, 0.5 * (1 + math.cos(math.pi / 90))] if schedule == "cosine" else [1.0, 1.0]
    )
    assert factors(1, schedule=schedule, warm_up=1) == [1.0]  # a warm-up that is all there is


@pytest.mark.parametrize(
    "method",
    [
        *(kind(projection=12) for kind in WITH_DISTANCE),
        *(kind(projection=12, distance="cosine") for kind in WITH_DISTANCE),
        SupCon(projection=12),
    ],
)
def test_a_projection_has_a_bias_where_it_changes_the_loss(method: Method) -> None:
    if method.n_shot is not None:
        method = replace(method, n_shot=2)
    config = replace(TINY, method=method)
    step = make_step(config)
    embeddings = torch.randn(N_CLASSES * 4, 12)
    labels = batch(config)[1]
    plain, moved = (
        step.loss(Embedded((embeddings + by).requires_grad_()), labels, Prepared(embeddings))
        for by in (0.0, torch.randn(12))
    )
    assert step.learner.projection is not None
    assert (step.learner.projection.bias is not None) == (
        not torch.allclose(plain, moved, rtol=1e-3)
    )


class FakeGraph:
    """The part of `torch.cuda.CUDAGraph` that capturing uses; nothing is recorded."""

    def register_generator_state(self, generator: torch.Generator) -> None: ...


class FakeStream:
    """A stream that never waits."""

    def wait_stream(self, stream: object) -> None: ...


@pytest.mark.parametrize(
    "changes",
    [
        {"learn_temperature": True, "ema_decay": 0.9},
        {"optimiser": "adam", "cross_entropy_weight": 0.5, "projection": 6},
        {"method": "simpleshot"},
    ],
    ids=str,
)
def test_the_warm_up_of_capturing_leaves_no_trace(
    changes: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Weights, statistics and random numbers are as before; new state of the optimiser is zero."""
    monkeypatch.setattr(torch.cuda, "get_rng_state", torch.get_rng_state)
    monkeypatch.setattr(torch.cuda, "set_rng_state", torch.set_rng_state)
    monkeypatch.setattr(torch.cuda, "Stream", FakeStream)
    monkeypatch.setattr(torch.cuda, "current_stream", FakeStream)
    monkeypatch.setattr(torch.cuda, "stream", nullcontext)
    monkeypatch.setattr(torch.cuda, "CUDAGraph", FakeGraph)
    monkeypatch.setattr(torch.cuda, "graph", nullcontext)
    config = change(TINY, **changes)
    step = make_step(config)
    expected = {name: tensor.clone() for name, tensor in changing_tensors(step).items()}
    states = (step.generator.get_state(), torch.get_rng_state())

    captured(step, *batch(config))

    for name, tensor in changing_tensors(step).items():
        if name in expected:
            assert torch.equal(tensor, expected[name]), name
        else:
            assert name.startswith("optimiser.")
            assert not tensor.any(), name
    assert torch.equal(step.generator.get_state(), states[0])
    assert torch.equal(torch.get_rng_state(), states[1])
