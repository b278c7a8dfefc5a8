"""Equally near images and classes: decided by order, whatever rounding makes of them."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from nearshot.evaluation import evaluate_features, sample_episodes
from nearshot.evaluation.ties import TIE, first_best, n_behind, nearest_in_order, tied_nearest

whole_distances = st.lists(st.integers(0, 5), min_size=1, max_size=12)


def rounded(values: list[int], seed: int) -> tuple[Tensor, Tensor]:
    """Distances (1, image) with an error that is less than a tie's tolerance, and the tolerance."""
    noise = torch.rand(len(values), generator=torch.Generator().manual_seed(seed), dtype=torch.float64) - 0.5
    tolerance = torch.tensor([[TIE * max(1, *values, 1)]], dtype=torch.float64)
    return torch.tensor([values], dtype=torch.float64) + 0.9 * tolerance * noise, tolerance


@settings(deadline=None)
@given(whole_distances, st.integers(1, 12), st.integers(0, 99))
def test_neighbours_go_by_exact_distance_and_then_by_place(values: list[int], k: int, seed: int) -> None:
    k = min(k, len(values))
    distances, tolerance = rounded(values, seed)
    expected = sorted(range(len(values)), key=lambda image: (values[image], image))[:k]
    assert nearest_in_order(distances, k, tolerance).tolist() == [expected]
    assert tied_nearest(distances, k, tolerance)[0].nonzero()[:, 0].tolist() == sorted(expected)


@settings(deadline=None)
@given(whole_distances, st.integers(0, 99))
def test_classes_behind_and_the_first_of_the_best(values: list[int], seed: int) -> None:
    distances, tolerance = rounded(values, seed)
    assert n_behind(distances, tolerance).tolist() == [[sum(other > one for other in values) for one in values]]
    # A tie of scores is a share of the scores, which are to be larger here than the distances that the error is of.
    for highest in (20, -20):
        assert first_best(highest - distances).tolist() == [values.index(min(values))]


def with_ties(seed: int) -> tuple[Tensor, Tensor]:
    """Features of small whole numbers, of which many are equally far from each other; none is zero."""
    generator = torch.Generator().manual_seed(seed)
    features = torch.randint(0, 3, (200, 3), generator=generator).double()
    features[:, 0] += features.sum(1) == 0
    return features, torch.arange(8).repeat_interleave(25)


def test_ties_are_decided_by_the_order_of_an_episode() -> None:
    """Against a loop with whole numbers, which do not round."""
    features, labels = with_ties(1)
    episodes = sample_episodes(labels, n_shot=3, n_episodes=30, n_query=4)
    found = evaluate_features(features.float(), labels, classifier="knn", episodes=episodes, normalise=False)
    for number, (support, query) in enumerate(zip(episodes.support, episodes.query, strict=True)):
        n_right = 0
        for truth, images in enumerate(query.tolist()):
            for image in images:
                squares = (features[support] - features[image]).square().sum(2).int().tolist()  # [way][shot]
                order = sorted((d2, way, shot) for way, shots in enumerate(squares) for shot, d2 in enumerate(shots))
                voters = [way for _, way, _ in order[:3]]
                best = max(range(5), key=lambda way: (voters.count(way), -min(squares[way]), -way))
                n_right += best == truth
        assert found.per_episode[number] == pytest.approx(100 * n_right / 20)
