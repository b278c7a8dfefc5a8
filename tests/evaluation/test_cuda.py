"""The same episodes and answers on a GPU as on the CPU, without waiting for it."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch

from nearshot.episode_shape import EpisodeShape
from nearshot.evaluation import CLASSIFIERS, evaluate_features, evaluate_fine_tuned, evaluate_many
from nearshot.evaluation.engine import count_correct
from nearshot.evaluation.similarity import FAST, SimilarityBuffers
from nearshot.losses import nca_loss
from nearshot.models import build_backbone

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")

LABELS = torch.arange(10).repeat_interleave(30)


def features() -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    return torch.randn(10, 64, generator=generator)[LABELS] + 3 * torch.randn(300, 64, generator=generator)


@contextmanager
def waiting_is_an_error() -> Iterator[None]:
    with warnings.catch_warnings(action="ignore"):  # PyTorch says that it does not find all of them yet
        torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")


@pytest.mark.parametrize("name", CLASSIFIERS)
def test_every_episode_is_answered_as_on_the_cpu(name: Any) -> None:
    centre = features().mean(0)
    here = evaluate_features(features(), LABELS, n_episodes=5000, classifier=name, centre=centre)
    there = evaluate_features(features().cuda(), LABELS, n_episodes=5000, classifier=name, centre=centre.cuda())
    assert torch.equal(here.per_episode.cpu(), there.per_episode.cpu())
    assert here.protocol.episodes == there.protocol.episodes


def test_many_at_once_are_as_on_the_cpu() -> None:
    here = evaluate_many(features(), LABELS, n_episodes=500)
    there = evaluate_many(features().cuda(), LABELS, n_episodes=500)
    for key, accuracy in here.items():
        assert torch.equal(accuracy.per_episode.cpu(), there[key].per_episode.cpu())


def test_nothing_in_a_chunk_waits_for_the_gpu() -> None:
    given = (features().cuda(), features().cuda().square().sum(1), EpisodeShape(5, 5, 15), (1, 5))
    buffers = SimilarityBuffers(*given, needs_images=True, at_once=8)
    rows = torch.stack([torch.randperm(300)[:100] for _ in range(8)]).cuda()
    tolerance = torch.tensor(1e-6, device="cuda")
    with waiting_is_an_error(), torch.inference_mode():
        similarities = buffers.compute(rows)
        for score in FAST.values():
            count_correct(*score(similarities, 5), tolerance)


def test_networks_are_fine_tuned_side_by_side_in_any_format() -> None:
    torch.manual_seed(0)
    backbone: Any = build_backbone("resnet12", input_size=32).eval().cuda()
    images = torch.randn(60, 3, 32, 32, device="cuda")
    asked: dict[str, Any] = {"loss": nca_loss, "n_shot": 2, "n_query": 4, "n_episodes": 6, "episodes_at_once": 3}
    plain = evaluate_fine_tuned(backbone, images, torch.arange(6).repeat_interleave(10), **asked)
    backbone.to(memory_format=torch.channels_last)
    pictures = images.to(memory_format=torch.channels_last)
    other = evaluate_fine_tuned(backbone, pictures, torch.arange(6).repeat_interleave(10), **asked)
    assert torch.equal(plain.per_episode, other.per_episode)
