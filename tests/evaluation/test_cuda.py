"""The same episodes and answers on a GPU as on the CPU, without waiting for it."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch

from nearshot.episode_shape import EpisodeShape
from nearshot.evaluation import CLASSIFIERS, evaluate_features, evaluate_many
from nearshot.evaluation.engine import count_correct
from nearshot.evaluation.similarity import FAST, episode_similarities

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
    rows = torch.stack([torch.randperm(300)[:100] for _ in range(8)]).cuda()
    given = (features().cuda(), features().cuda().square().sum(1), rows, EpisodeShape(5, 5, 15), (1, 5))
    tolerance = torch.tensor(1e-6, device="cuda")
    with waiting_is_an_error(), torch.inference_mode():
        similarities = episode_similarities(*given, images=True)
        for score in FAST.values():
            count_correct(*score(similarities, 5), tolerance)
