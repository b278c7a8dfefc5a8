"""The same episodes and answers on a GPU as on the CPU."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from nearshot.evaluation import CLASSIFIERS, evaluate_features, evaluate_many

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")

LABELS = torch.arange(10).repeat_interleave(30)


def features() -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    return torch.randn(10, 64, generator=generator)[LABELS] + 3 * torch.randn(300, 64, generator=generator)


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
