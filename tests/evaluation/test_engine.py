"""The episode engine: exact in float32, whatever the batch sizes and threads, in bounded memory."""

import functools
import itertools
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.helpers.clusters import FEATURES, LABELS, features_for
from torch import Tensor

from nearshot.episode_shape import EpisodeShape
from nearshot.evaluation import (
    CLASSIFIERS,
    EvaluationSpec,
    engine,
    evaluate_features,
    evaluate_many,
    prepare_features,
    similarity,
)
from nearshot.evaluation.classifiers import ClassifierOrName
from nearshot.evaluation.similarity import episode_similarities


def specs_with(
    classifiers: Iterable[ClassifierOrName], n_episodes: int, *, normalise: bool = True
) -> list[EvaluationSpec]:
    """Evaluations with each classifier, of one shot and of five."""
    return [
        EvaluationSpec(
            n_shot=n_shot, classifier=classifier, n_episodes=n_episodes, normalise=normalise
        )
        for n_shot, classifier in itertools.product((1, 5), classifiers)
    ]


@pytest.mark.parametrize("offset", [0.125, 30.125, 20_000.125])
@pytest.mark.parametrize("normalise", [True, False])
def test_answers_in_float32_are_those_of_float64(normalise: bool, offset: float) -> None:
    """On integers of few dimensions, where many distances are nearly equal; near zero and far."""
    features = (3 * FEATURES).round().float() + offset
    specs = specs_with(CLASSIFIERS, n_episodes=500, normalise=normalise)
    exact = evaluate_many(features.double(), LABELS, specs=specs)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        ours = evaluate_many(features, LABELS, specs=specs)
    for accuracy, expected in zip(ours, exact, strict=True):
        assert torch.equal(accuracy.per_episode, expected.per_episode)
    rough = (FEATURES + offset).float()
    support = rough[:160].view(2, 4, 20, 6)
    query = rough[160:].view(2, 20, 6)
    for classify in CLASSIFIERS.values():
        answers = classify(support, query).argmax(2)
        exact_answers = classify(support.double(), query.double()).argmax(2)
        assert torch.mean((answers == exact_answers).double()) > 0.95


def test_answers_do_not_depend_on_how_many_episodes_there_is_room_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Many answers are ties, which are answered again in float64; one classifier is a user's."""

    def own(support: Tensor, query: Tensor) -> Tensor:
        return CLASSIFIERS["centroid"](support, query)

    features = (3 * FEATURES).round().float() + 0.125
    specs = specs_with([*CLASSIFIERS, own], n_episodes=20)
    measure = functools.partial(evaluate_many, features, LABELS, specs=specs, inductive=True)
    expected = measure()
    for name, value in (("GATHERED_BYTES_CPU", 1), ("LEAST_EPISODES_PER_BATCH", 7)):
        monkeypatch.setattr(engine, name, value)
    monkeypatch.setattr(similarity, "CACHE_BYTES", 1)
    for accuracy, before in zip(measure(), expected, strict=True):
        assert torch.equal(accuracy.per_episode, before.per_episode)
        assert accuracy.protocol == before.protocol


@pytest.mark.parametrize("offset", [0.0, 3.0])
def test_similarities_round_less_than_a_third_of_the_tolerance(offset: float) -> None:
    """Against float64 from the features as they were given."""
    labels = torch.arange(10).repeat_interleave(30)
    given = (features_for(labels, dim=640, noise=2.0) + offset).float()
    shape = EpisodeShape(5, 5, 15)
    rows = torch.stack([torch.randperm(300)[:100] for _ in range(100)])
    mean = prepare_features(given).mean(0)

    def similarities_of(features: Tensor) -> similarity.Similarities:
        squares = features.square().sum(1)
        return episode_similarities(features, squares, rows, shape, (5,), needs_images=True)

    ours = similarities_of(prepare_features(given) - mean)
    exact_features = prepare_features(given.double()) - mean
    exact = similarities_of(exact_features)
    length = exact_features.norm(dim=1).max()
    allowed = engine.ROUNDING * torch.finfo(torch.float32).eps / 3 * length
    assert (ours.to_images - exact.to_images).abs().max() < allowed
    assert (ours.to_means[5] - exact.to_means[5]).abs().max() < allowed


@pytest.mark.parametrize("needs_images", [True, False])
def test_similarities_are_the_same_all_at_once_as_a_few_at_a_time(
    needs_images: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All at once is what a GPU does."""
    rows = torch.stack([torch.randperm(200)[:20] for _ in range(9)])
    given = (FEATURES, FEATURES.square().sum(1), rows, EpisodeShape(4, 3, 2), (1, 3))
    monkeypatch.setattr(similarity, "CACHE_BYTES", 2 * 20 * FEATURES[0].nbytes)
    in_parts = episode_similarities(*given, needs_images=needs_images)
    monkeypatch.setattr(similarity, "multiply_in_cache", similarity.multiply_at_once)
    at_once = episode_similarities(*given, needs_images=needs_images)
    torch.testing.assert_close(at_once, in_parts)


@pytest.mark.parametrize("name", ["centroid", "soft", "knn"])
def test_hardly_any_episode_is_answered_again(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    n_again = 0
    exactly = engine._prepared_exactly

    def counted(data: Any, spec: Any, rows: Any) -> Tensor:
        nonlocal n_again
        n_again += len(rows)
        return exactly(data, spec, rows)

    monkeypatch.setattr(engine, "_prepared_exactly", counted)
    evaluate_features(
        features_for(LABELS, dim=64).float(), LABELS, classifier=name, n_episodes=1000
    )
    assert n_again < 20


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_every_episode_is_answered_on_a_gpu_as_on_the_cpu() -> None:
    features = features_for(LABELS, dim=64, noise=3.0).float()
    specs = specs_with(CLASSIFIERS, n_episodes=5000)
    on_cpu = evaluate_many(features, LABELS, specs=specs, centre=features.mean(0))
    on_gpu = evaluate_many(features.cuda(), LABELS, specs=specs, centre=features.mean(0).cuda())
    for expected, accuracy in zip(on_cpu, on_gpu, strict=True):
        assert torch.equal(accuracy.per_episode.cpu(), expected.per_episode)
        assert accuracy.protocol == expected.protocol


def test_threads_give_results_in_order_and_are_left_as_they_were() -> None:
    before = torch.get_num_threads()
    for n_threads in (1, 3):
        squares = engine.in_threads(lambda i: torch.tensor(i * i), range(20), n_threads)
        assert [int(square) for square in squares] == [i * i for i in range(20)]
    with pytest.raises(TypeError, match="None"):
        list(engine.in_threads(lambda i: torch.zeros(1) + None, range(9), n_threads=2))  # type: ignore[operator]
    assert torch.get_num_threads() == before


MEASURE_MEMORY = """
import sys, torch
sys.path.insert(0, sys.argv[1])
from memory import peak_mib_since_reset, reset_peak
from nearshot.evaluation import evaluate_features
labels = torch.arange(20).repeat_interleave(100)
features = torch.randn(2000, 64)
evaluate_features(features, labels, n_episodes=3000)
for n_episodes in (10_000, int(sys.argv[2])):
    before = reset_peak()
    evaluate_features(features, labels, n_episodes=n_episodes)
    print(peak_mib_since_reset() - before)
"""


@pytest.mark.parametrize(
    ("n_episodes", "most_bytes"),
    [(60_000, 400), pytest.param(1_000_000, 75, marks=pytest.mark.slow)],
)
def test_more_episodes_take_no_more_memory(n_episodes: int, most_bytes: int) -> None:
    """But for the results, tens of bytes an episode; its indices alone would be 800 bytes."""
    benchmarks = Path(__file__).parent.parent.parent / "benchmarks"
    command = [sys.executable, "-c", MEASURE_MEMORY, str(benchmarks), str(n_episodes)]
    few, many = map(
        float, subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()
    )
    bytes_per_episode = (many - few) * 2**20 / (n_episodes - 10_000)
    assert bytes_per_episode < most_bytes
