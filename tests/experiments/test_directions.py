"""Statements about two trainings, or two measurements, each with its direction: what is above, and what is not."""

from __future__ import annotations

from pathlib import Path

import pytest
from known import DATASET, SEEDS, put, verdict

from nearshot.experiments.claims import CLAIMS
from nearshot.experiments.recipe import Found
from nearshot.experiments.recipes.ablations import row_config
from nearshot.experiments.recipes.choices import CHOICES, choice_config
from nearshot.experiments.recipes.features import LAYERS
from nearshot.experiments.results import Measurement, Results
from nearshot.experiments.scales import PAPER
from nearshot.training import PRESETS, TrainConfig


@pytest.mark.parametrize(
    ("at_128", "at_512", "status"),
    [(3.0, 3.0, "contradicted"), (-3.0, 0.1, "contradicted"), (3.0, -3.0, "contradicted"), (0.0, 0.0, "undecided")],
)
def test_a_gap_that_does_not_close(at_128: float, at_512: float, status: str, tmp_path: Path) -> None:
    results = Results(tmp_path)
    for size, shift in ((128, at_128), (512, at_512)):
        put(results, row_config(DATASET, 1, size), 60.0, seeds=SEEDS)
        put(results, row_config(DATASET, 3, size), 60.0 + shift, seeds=SEEDS)
    assert verdict(results, "gap-closes", SEEDS).status == status


@pytest.mark.parametrize(
    ("row_1", "row_5", "status"),
    [
        (60.0, 58.0, "confirmed"),
        (60.7, 58.0, "confirmed"),  # not a point above
        (63.0, 58.0, "contradicted"),
        (60.0, 62.0, "contradicted"),
        (60.0, 59.4, "confirmed"),
        (60.0, 60.6, "contradicted"),
        (60.0, 60.0, "undecided"),
    ],
)
def test_row_3_recovers_what_row_5_lost(row_1: float, row_5: float, status: str, tmp_path: Path) -> None:
    results = Results(tmp_path)
    for size in (128, 256, 512):
        for row, mean in ((1, row_1), (3, 60.0), (5, row_5)):
            put(results, row_config(DATASET, row, size), mean, seeds=SEEDS, spread=0.0 if row == 3 else 0.01)
    assert verdict(results, "recovered", SEEDS).status == status


BETTER = ("confirmed", "contradicted")
NO_BETTER = ("contradicted", "confirmed")
NCA = PRESETS[f"{DATASET}-nca"]
# Statements about two trainings, or one training measured in two ways: what becomes of each if the first is two points
# above the second, and if it is two points below.
TRAININGS: dict[str, tuple[list[TrainConfig], list[TrainConfig], tuple[str, str]]] = {
    "our-episodes": (
        [PRESETS[f"{DATASET}-{method}"] for method in ("prototypical", "matching")],
        [PRESETS[f"{DATASET}-{method}-snell"] for method in ("prototypical", "matching")],
        BETTER,
    ),
    **{
        name: (
            [choice_config(DATASET, CHOICES[first])],
            [choice_config(DATASET, CHOICES[second])],
            become,
        )
        for name, first, second, become in (
            ("euclidean", 4, 5, BETTER),
            ("projection", 1, 0, NO_BETTER),
            ("dropblock", 3, 0, NO_BETTER),
            ("epochs", 2, 0, ("contradicted", "contradicted")),
        )
    },
}
MEASURED: dict[str, tuple[list[Measurement], list[Measurement], tuple[str, str]]] = {
    "treatment": (
        [Measurement("val", shot, "centroid") for shot in (1, 5)],
        [
            Measurement("val", shot, "centroid", treatment=treatment)
            for shot in (1, 5)
            for treatment in ("raw", "centred", "normalised")
        ],
        BETTER,
    ),
    "layers": (
        [Measurement("test", shot, "centroid", LAYERS) for shot in (1, 5)],
        [Measurement("test", shot, "centroid") for shot in (1, 5)],
        BETTER,
    ),
    "mahalanobis": (
        [Measurement("test", 5, "centroid", (), "mahalanobis")],
        [Measurement("test", 5, "centroid")],
        NO_BETTER,
    ),
}


@pytest.mark.parametrize("name", TRAININGS)
@pytest.mark.parametrize("above", [True, False])
def test_a_statement_about_trainings_has_a_direction(name: str, above: bool, tmp_path: Path) -> None:
    results = Results(tmp_path)
    first, second, become = TRAININGS[name]
    for configs, mean in ((first, 62.0 if above else 58.0), (second, 60.0)):
        for config in configs:
            put(results, config, mean, seeds=SEEDS)
    assert verdict(results, name, SEEDS).status == become[0 if above else 1]


@pytest.mark.parametrize("name", MEASURED)
@pytest.mark.parametrize("above", [True, False])
def test_a_statement_about_measurements_has_a_direction(name: str, above: bool, tmp_path: Path) -> None:
    results = Results(tmp_path)
    first, second, become = MEASURED[name]
    put(results, NCA, 50.0, means=dict.fromkeys(second, 60.0) | dict.fromkeys(first, 62.0 if above else 58.0))
    assert verdict(results, name).status == become[0 if above else 1]


def test_classifiers_have_an_order(tmp_path: Path) -> None:
    results = Results(tmp_path)
    for order, status in ((("knn", "soft", "centroid"), "confirmed"), (("soft", "knn", "centroid"), "contradicted")):
        means = {
            Measurement(split, 5, one): 60.0 + place for place, one in enumerate(order) for split in ("val", "test")
        }
        put(results, NCA, 50.0, means=means)
        assert verdict(results, "classifiers").status == status


@pytest.mark.parametrize(
    ("more", "seeds", "status"),
    [(0.5, SEEDS, "confirmed"), (0.0, SEEDS, "undecided"), (1.6, (0,), "undecided"), (1.6, SEEDS, "contradicted")],
)
def test_more_epochs_add_about_half_a_point(more: float, seeds: tuple[int, ...], status: str, tmp_path: Path) -> None:
    """Of one seed, 1.6 points may well be under one, and may be over two."""
    results = Results(tmp_path)
    put(results, choice_config(DATASET, CHOICES[2]), 60.0 + more, seeds=seeds)
    put(results, choice_config(DATASET, CHOICES[0]), 60.0, seeds=seeds)
    assert verdict(results, "epochs", seeds).status == status


def test_a_projection_is_to_help_on_one_dataset_and_on_no_other(tmp_path: Path) -> None:
    (claim,) = (one for one in CLAIMS if one.name == "projection")
    results = Results(tmp_path)
    for dataset, status in (("mini-imagenet", "confirmed"), (DATASET, "contradicted")):
        put(results, choice_config(dataset, CHOICES[1]), 62.0, seeds=SEEDS)
        put(results, choice_config(dataset, CHOICES[0]), 60.0, seeds=SEEDS)
        assert claim.check(Found(results, PAPER, SEEDS), dataset).status == status
