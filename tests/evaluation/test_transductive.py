"""Transductive classifiers against loops that follow the papers' formulas, image by image."""

import math
from typing import Any

import pytest
import torch
from tests.helpers.clusters import FEATURES, LABELS
from torch import Tensor

from nearshot.evaluation import (
    TRANSDUCTIVE,
    bd_cspn,
    evaluate_features,
    laplacian_shot,
    optimal_transport,
    sample_episodes,
)

N_WAY = 3
N_QUERY = 4


def episodes(n_shot: int) -> tuple[Tensor, Tensor]:
    """Support (episode, way, shot, dim) and query (episode, query, dim) of some episodes."""
    drawn = sample_episodes(LABELS, n_way=N_WAY, n_shot=n_shot, n_query=N_QUERY, n_episodes=6)
    features = torch.nn.functional.normalize(FEATURES.double(), dim=1)
    return features[drawn.support], features[drawn.query].flatten(1, 2)


def squared(first: Tensor, second: Tensor) -> float:
    return float((first - second).square().sum())


def cosine(first: Tensor, second: Tensor) -> float:
    return float(first @ second / (first.norm() * second.norm()))


def softmax(values: list[float]) -> list[float]:
    powers = [math.exp(value) for value in values]
    return [power / sum(powers) for power in powers]


def laplacian_loop(
    support: Tensor, query: Tensor, weight: float, n_neighbours: int, n_steps: int
) -> list[list[float]]:
    """Equation 10 of Ziko et al., query by query."""
    means = [images.mean(0) for images in support]
    unary = [[squared(image, mean) for mean in means] for image in query]
    neighbours = []
    for number, image in enumerate(query):
        others = [other for other in range(len(query)) if other != number]
        others.sort(key=lambda other: squared(image, query[other]))
        neighbours.append(others[:n_neighbours])
    answers = [softmax([-value for value in row]) for row in unary]
    for _ in range(n_steps):
        updated = []
        for number, row in enumerate(unary):
            scores = []
            for label, value in enumerate(row):
                agreeing = sum(answers[other][label] for other in neighbours[number])
                scores.append(weight * agreeing - value)
            updated.append(softmax(scores))
        answers = updated
    return answers


def bd_cspn_loop(support: Tensor, query: Tensor, n_pseudo: int, scale: float) -> list[list[float]]:
    """Equations 2 to 6 of Liu et al.: shift, pseudo-label, weigh."""
    shift = support.flatten(0, 1).mean(0) - query.mean(0)
    shifted = [image + shift for image in query]
    means = [images.mean(0) for images in support]
    labelled: dict[int, list[tuple[float, Tensor]]] = {label: [] for label in range(len(means))}
    for image in shifted:
        confidences = softmax([scale * cosine(image, mean) for mean in means])
        label = confidences.index(max(confidences))
        labelled[label].append((confidences[label], image))
    prototypes = []
    for label, mean in enumerate(means):
        confident = sorted(labelled[label], key=lambda entry: -entry[0])[:n_pseudo]
        images = [*support[label], *(image for _, image in confident)]
        weights = softmax([scale * cosine(image, mean) for image in images])
        terms = [weight * image for weight, image in zip(weights, images, strict=True)]
        prototypes.append(torch.stack(terms).sum(0))
    return [[cosine(image, prototype) for prototype in prototypes] for image in shifted]


def transport_loop(
    support: Tensor, query: Tensor, scale: float, rate: float, n_steps: int
) -> list[list[float]]:
    """Algorithm 1 of Hu et al., with Sinkhorn's scalings u and v of the kernel."""
    centres = [images.mean(0) for images in support]
    n_of_class = len(query) / len(centres)

    def plan() -> list[list[float]]:
        kernel = [
            [math.exp(-scale * squared(image, centre)) for centre in centres] for image in query
        ]
        v = [1.0] * len(centres)
        for _ in range(300):
            u = [1 / sum(k * b for k, b in zip(row, v, strict=True)) for row in kernel]
            for label in range(len(v)):
                total = sum(u[number] * row[label] for number, row in enumerate(kernel))
                v[label] = n_of_class / total
        return [
            [a * k * b for k, b in zip(row, v, strict=True)]
            for a, row in zip(u, kernel, strict=True)
        ]

    for _ in range(n_steps):
        shares = plan()
        for label, images in enumerate(support):
            total = images.sum(0)
            weight = float(len(images))
            for number, image in enumerate(query):
                total = total + shares[number][label] * image
                weight += shares[number][label]
            centres[label] = centres[label] + rate * (total / weight - centres[label])
    return plan()


@pytest.mark.parametrize("n_shot", [1, 3])
@pytest.mark.parametrize(("weight", "n_neighbours"), [(0.7, 3), (0.2, 5)])
def test_laplacian_shot_is_its_update(n_shot: int, weight: float, n_neighbours: int) -> None:
    support, query = episodes(n_shot)
    scores = laplacian_shot(support, query, weight=weight, n_neighbours=n_neighbours, n_steps=5)
    for number in range(len(query)):
        expected = laplacian_loop(support[number], query[number], weight, n_neighbours, 5)
        torch.testing.assert_close(scores[number], torch.tensor(expected, dtype=torch.float64))


@pytest.mark.parametrize("n_shot", [1, 3])
@pytest.mark.parametrize(("n_pseudo", "scale"), [(8, 10.0), (1, 3.0)])
def test_bd_cspn_is_its_rectification(n_shot: int, n_pseudo: int, scale: float) -> None:
    support, query = episodes(n_shot)
    scores = bd_cspn(support, query, n_pseudo=n_pseudo, scale=scale)
    for number in range(len(query)):
        expected = bd_cspn_loop(support[number], query[number], n_pseudo, scale)
        torch.testing.assert_close(scores[number], torch.tensor(expected, dtype=torch.float64))


@pytest.mark.parametrize("n_shot", [1, 3])
def test_optimal_transport_is_its_algorithm(n_shot: int) -> None:
    support, query = episodes(n_shot)
    scores = optimal_transport(support, query, scale=4.0, rate=0.3, n_steps=3)
    for number in range(len(query)):
        expected = torch.tensor(
            transport_loop(support[number], query[number], 4.0, 0.3, 3), dtype=torch.float64
        )
        torch.testing.assert_close(scores[number], expected, rtol=1e-3, atol=1e-4)
    torch.testing.assert_close(scores.sum(2), torch.ones_like(scores[:, :, 0]))
    of_class = torch.full_like(scores[:, 0], N_QUERY)
    torch.testing.assert_close(scores.sum(1), of_class, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("name", TRANSDUCTIVE)
def test_a_result_says_that_it_is_not_inductive(name: str) -> None:
    settings: dict[str, Any] = {"n_way": 3, "n_shot": 2, "n_query": 4, "n_episodes": 20}
    by_name = evaluate_features(FEATURES, LABELS, classifier=name, **settings)
    by_function = evaluate_features(FEATURES, LABELS, classifier=TRANSDUCTIVE[name], **settings)
    assert not by_name.protocol.inductive
    assert not by_function.protocol.inductive
    assert torch.equal(by_name.per_episode, by_function.per_episode)
