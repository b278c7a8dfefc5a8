"""Statements, checked on results that are made up so that the answer is known."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from nearshot.evaluation import Accuracy, Protocol
from nearshot.experiments.claims import CLAIMS, Gap, Verdict, check_claims, gap, judged
from nearshot.experiments.identity import run_id
from nearshot.experiments.recipe import Found
from nearshot.experiments.recipes import RECIPES
from nearshot.experiments.recipes.ablations import row_config
from nearshot.experiments.recipes.batch_size import SETUPS, setup_config
from nearshot.experiments.results import Measurement, Results, RunResult
from nearshot.experiments.scales import PAPER
from nearshot.training import TrainConfig

DATASET = "cifar-fs"


def put(
    results: Results, config: TrainConfig, mean: float, *, seeds: Sequence[int] = (0,), spread: float = 0.0
) -> None:
    """Write a result whose every accuracy is about `mean`, a little more with each seed."""
    accuracies = {}
    for split in ("val", "test"):
        for shot in (1, 5):
            for classifier in ("centroid", "soft", "knn"):
                chance = torch.Generator().manual_seed(shot)
                values = mean + torch.randn(400, generator=chance, dtype=torch.float64)
                protocol = Protocol(5, shot, 15, 400, 0, f"{split}", classifier, True, True, split=split)
                accuracy = Accuracy((values * 0.75).round() / 0.75, protocol)
                accuracies[Measurement(split, shot, classifier).name] = accuracy.as_dict() | {"epoch": 1}
    for seed in seeds:
        seeded = replace(config, seed=seed)
        shifted = {}
        for name, written in accuracies.items():
            first = Accuracy.from_dict(written)
            shifted[name] = Accuracy(first.per_episode + seed * spread, first.protocol).as_dict() | {"epoch": 1}
        content = {"format": "nearshot-result", "version": 1, "id": run_id(seeded), "scale": PAPER.name}
        content |= {"config": seeded.as_dict(), "history": [], "seconds": 1.0, "accuracies": shifted}
        results.put(RunResult(content))


def verdicts(results: Results, seeds: tuple[int, ...] = (0,)) -> dict[str, Verdict]:
    return {claim.name: verdict for claim, verdict in check_claims(Found(results, PAPER, seeds), DATASET)}


def test_nothing_run_is_not_yet_run(tmp_path: Path) -> None:
    found = verdicts(Results(tmp_path))
    assert found.pop("more-pairs")[0] == "confirmed"  # counted, not trained
    assert {status for status, _ in found.values()} == {"not yet run"}
    assert len(found) == len(CLAIMS) - 1


@pytest.mark.parametrize(("better", "status"), [(1.0, "confirmed"), (-1.0, "contradicted"), (0.0, "undecided")])
def test_nca_above_all_episodes(better: float, status: str, tmp_path: Path) -> None:
    results = Results(tmp_path)
    for size in (128, 256, 512):
        put(results, setup_config(DATASET, "nca", size, None), 60.0 + better)
        for setup in SETUPS:
            for method in ("prototypical", "matching"):
                put(results, setup_config(DATASET, method, size, setup), 60.0)
    found = verdicts(results)["nca-best"]
    assert found[0] == status
    assert "not run yet" not in found[1]


@pytest.mark.parametrize(("shift", "status"), [(0.1, "confirmed"), (3.0, "contradicted")])
def test_no_difference_between_rows_1_and_2(shift: float, status: str, tmp_path: Path) -> None:
    results = Results(tmp_path)
    for size in (128, 256, 512):
        put(results, row_config(DATASET, 1, size), 60.0)
        put(results, row_config(DATASET, 2, size), 60.0 + shift)
    assert verdicts(results)["replacement"][0] == status


def test_the_gap_between_rows_1_and_3_closes(tmp_path: Path) -> None:
    results = Results(tmp_path)
    for size, shift in ((128, 3.0), (512, 0.1)):
        put(results, row_config(DATASET, 1, size), 60.0)
        put(results, row_config(DATASET, 3, size), 60.0 + shift)
    assert verdicts(results)["gap-closes"][0] == "confirmed"


def test_the_ranking_allows_for_the_papers_exceptions_only(tmp_path: Path) -> None:
    from nearshot.experiments.paper import BATCH_SIZE_TABLE

    results = Results(tmp_path)
    for row in BATCH_SIZE_TABLE:
        setup = None if row.shape is None else (row.shape.n_shot, row.shape.images_per_class)
        put(results, setup_config(DATASET, "prototypical", row.batch_size, setup), row.accuracy[1].mean)
    assert verdicts(results)["ranking"][0] == "confirmed"
    put(results, setup_config(DATASET, "prototypical", 256, (1, 32)), 90.0)
    assert verdicts(results)["ranking"][0] == "contradicted"


def test_several_seeds_are_judged_by_their_spread(tmp_path: Path) -> None:
    results = Results(tmp_path)
    one, other = (row_config(DATASET, row, 512) for row in (3, 5))
    put(results, one, 60.5, seeds=(0, 1, 2), spread=2.0)
    put(results, other, 60.0, seeds=(0, 1, 2), spread=-2.0)
    wanted = Measurement("val", 5, "centroid")
    single = gap(Found(results, PAPER, (0,)), "", (one, wanted), (other, wanted))
    three = gap(Found(results, PAPER, (0, 1, 2)), "", (one, wanted), (other, wanted))
    assert single is not None
    assert three is not None
    assert single.is_positive
    assert not three.is_positive
    assert three.difference == pytest.approx(0.5 + 4.0, abs=0.7)
    assert three.n_seeds == 3


def test_one_failure_contradicts_and_is_named() -> None:
    gaps = [Gap("a", 2.0, 0.5, 1), Gap("b", -2.0, 0.5, 1), None]
    verdict = judged(gaps, holds=lambda one: one.is_positive, fails=lambda one: one.is_negative)
    assert verdict.status == "contradicted"
    some = judged([gaps[0], None], holds=lambda one: one.is_positive)
    assert some.status == "undecided"  # one of two is not all
    assert "b: −2.00" in verdict.text
    assert "1 of 3 comparisons" in verdict.text


def test_every_training_that_a_claim_looks_at_is_some_recipes() -> None:
    """A claim about trainings that no recipe runs could never be checked."""
    recipes = [recipe for recipe in RECIPES.values() if DATASET in recipe.datasets]
    wanted = {run_id(one.config) for recipe in recipes for one in recipe.wanted(DATASET)}
    asked: set[str] = set()

    class Listening(Found):
        def runs(self, config: TrainConfig) -> list[RunResult]:
            asked.add(run_id(self.scale.change(config)))
            return []

    check_claims(Listening(Results(Path("/nowhere")), PAPER, (0,)), DATASET)
    assert asked
    assert asked <= wanted
