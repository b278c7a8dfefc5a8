"""A run that does not learn says so."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from settings import TINY

from nearshot.evaluation import evaluate_features
from nearshot.training import train, trainer
from nearshot.training.trainer import effective_dimensions, warnings_about


@given(st.integers(0, 100), st.sampled_from([(50, 4), (4, 50)]))
def test_effective_dimensions_are_those_of_the_eigenvalues(seed: int, shape: tuple[int, int]) -> None:
    features = torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    eigenvalues = torch.linalg.eigvalsh(features.T.cov())
    expected = float(eigenvalues.sum() ** 2 / eigenvalues.square().sum())
    assert effective_dimensions(features) == pytest.approx(expected)


def test_features_that_differ_are_no_problem_and_equal_or_random_ones_are() -> None:
    labels, random = torch.arange(10).repeat_interleave(20), torch.Generator().manual_seed(0)
    noise = torch.randn(200, 16, generator=random)
    separate = noise + 10 * torch.randn(10, 16, generator=random)[labels]
    line = noise[:, :1] * torch.ones(16) + 1e-3 * noise
    for problem, features in {None: separate, "chance": noise, "collapse": line}.items():
        accuracy = evaluate_features(features, labels, n_episodes=500, normalise=False)
        found = warnings_about(features, [accuracy])
        assert problem in found[0] if problem else not found
    assert "collapse" in warnings_about(torch.ones(200, 16), [])[0]


def test_a_run_warns_from_its_middle_on(
    data_dir: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trainer, "COLLAPSED", 1e9)
    train(replace(TINY, epochs=4, validate_every=1), folder=tmp_path / "run", data_dir=data_dir)
    lines = capfd.readouterr().err.splitlines()
    assert "chance 50 %" in lines[0]
    words = [line.split()[0] for line in lines]
    assert words == ["epoch", "epoch", "Warning:", "epoch", "Warning:", "epoch", "Warning:"]
