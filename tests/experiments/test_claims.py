"""Statements, checked on results that are made up so that the answer is known."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import scipy.stats
import torch

from nearshot.evaluation import Accuracy, Protocol
from nearshot.experiments.claims import CLAIMS, Verdict, check_claims, claims_as_table, judged
from nearshot.experiments.gaps import Gap, gap, pooled
from nearshot.experiments.identity import run_id
from nearshot.experiments.paper import BATCH_SIZE_TABLE
from nearshot.experiments.recipe import Found
from nearshot.experiments.recipes import RECIPES
from nearshot.experiments.recipes.ablations import row_config
from nearshot.experiments.recipes.adaptation import LAYERS
from nearshot.experiments.recipes.batch_size import IN_FIGURE, SETUPS, setup_config
from nearshot.experiments.recipes.choices import CHOICES, choice_config
from nearshot.experiments.recipes.pair_subsampling import FRACTIONS, share_of_pairs, subsampled
from nearshot.experiments.results import Measurement, Results, RunResult
from nearshot.experiments.scales import PAPER, QUICK
from nearshot.training import PRESETS, TrainConfig
from nearshot.training.config import differences

DATASET = "cifar-fs"
SEEDS = (0, 1, 2)


def put(
    results: Results,
    config: TrainConfig,
    mean: float,
    *,
    seeds: Sequence[int] = (0,),
    spread: float = 0.0,
    means: dict[Measurement, float] | None = None,
    n_episodes: int = 400,
) -> None:
    """Write a result whose every accuracy is about `mean`, a little more with each seed; some about `means`."""
    everything = dict.fromkeys(
        (
            Measurement(split, shot, classifier)
            for split in ("val", "test")
            for shot in (1, 5)
            for classifier in ("centroid", "soft", "knn")
        ),
        mean,
    )
    accuracies = {}
    for one, about in (everything | (means or {})).items():
        chance = torch.Generator().manual_seed(one.n_shot)
        values = about + torch.randn(400, generator=chance, dtype=torch.float64)[:n_episodes]
        asked = f"{n_episodes} of {one.split}"
        protocol = Protocol(5, one.n_shot, 15, n_episodes, 0, asked, one.classifier, True, True, split=one.split)
        accuracy = Accuracy((values * 0.75).round() / 0.75, protocol)
        accuracies[one.name] = accuracy.as_dict() | {"epoch": 1}
    for seed in seeds:
        seeded = replace(config, seed=seed)
        shifted = {}
        for name, written in accuracies.items() if spread else ():
            first = Accuracy.from_dict(written)
            shifted[name] = Accuracy(first.per_episode + seed * spread, first.protocol).as_dict() | {"epoch": 1}
        content = {"format": "nearshot-result", "version": 1, "id": run_id(seeded), "scale": PAPER.name}
        content |= {"config": seeded.as_dict(), "history": [], "seconds": 1.0, "accuracies": shifted or accuracies}
        content |= {"fingerprints": {}, "environment": {}, "images_per_second": 1.0}
        results.put(RunResult(content))


def verdicts(results: Results, seeds: tuple[int, ...] = (0,)) -> dict[str, Verdict]:
    return {claim.name: verdict for claim, verdict in check_claims(Found(results, PAPER, seeds), DATASET)}


def test_nothing_run_is_not_yet_run(tmp_path: Path) -> None:
    found = verdicts(Results(tmp_path))
    assert found.pop("more-pairs")[0] == "confirmed"  # counted, not trained
    assert {status for status, _ in found.values()} == {"not yet run"}
    assert len(found) == len(CLAIMS) - 1


@pytest.mark.parametrize(
    ("better", "seeds", "status"),
    [
        (2.0, (0,), "confirmed"),
        (-2.0, (0,), "contradicted"),
        (0.7, (0,), "undecided"),  # with one seed it may be chance
        (-0.7, (0,), "undecided"),
        (0.7, (0, 1, 2), "confirmed"),
        (-0.7, (0, 1, 2), "contradicted"),
        (0.0, (0, 1, 2), "undecided"),
    ],
)
def test_nca_above_all_episodes(better: float, seeds: tuple[int, ...], status: str, tmp_path: Path) -> None:
    results = Results(tmp_path)
    for size in (128, 256, 512):
        put(results, setup_config(DATASET, "nca", size, None), 60.0 + better, seeds=seeds)
        for setup in SETUPS:
            for method in ("prototypical", "matching"):
                put(results, setup_config(DATASET, method, size, setup), 60.0, seeds=seeds)
    found = verdicts(results, seeds)["nca-best"]
    assert found[0] == status
    assert "not run yet" not in found[1]


@pytest.mark.parametrize(
    ("shift", "seeds", "status"),
    [(0.1, (0, 1, 2), "confirmed"), (3.0, (0,), "contradicted"), (0.1, (0,), "undecided")],
)
def test_no_difference_between_rows_1_and_2(shift: float, seeds: tuple[int, ...], status: str, tmp_path: Path) -> None:
    results = Results(tmp_path)
    for size in (128, 256, 512):
        put(results, row_config(DATASET, 1, size), 60.0, seeds=seeds)
        put(results, row_config(DATASET, 2, size), 60.0 + shift, seeds=seeds)
    assert verdicts(results, seeds)["replacement"][0] == status


def test_the_gap_between_rows_1_and_3_closes(tmp_path: Path) -> None:
    results = Results(tmp_path)
    for size, shift in ((128, 3.0), (512, 0.1)):
        put(results, row_config(DATASET, 1, size), 60.0, seeds=SEEDS)
        put(results, row_config(DATASET, 3, size), 60.0 + shift, seeds=SEEDS)
    assert verdicts(results)["gap-closes"].status == "undecided"
    assert verdicts(results, SEEDS)["gap-closes"].status == "confirmed"


def judge(name: str, results: Results, seeds: tuple[int, ...] = SEEDS) -> str:
    """Return what becomes of one statement."""
    (claim,) = (one for one in CLAIMS if one.name == name)
    return claim.check(Found(results, PAPER, seeds), DATASET).status


@pytest.mark.parametrize(
    ("at_128", "at_512", "status"),
    [(3.0, 3.0, "contradicted"), (-3.0, 0.1, "contradicted"), (3.0, -3.0, "contradicted"), (0.0, 0.0, "undecided")],
)
def test_a_gap_that_does_not_close(at_128: float, at_512: float, status: str, tmp_path: Path) -> None:
    results = Results(tmp_path)
    for size, shift in ((128, at_128), (512, at_512)):
        put(results, row_config(DATASET, 1, size), 60.0, seeds=SEEDS)
        put(results, row_config(DATASET, 3, size), 60.0 + shift, seeds=SEEDS)
    assert judge("gap-closes", results) == status


@pytest.mark.parametrize(
    ("row_1", "row_5", "status"),
    [
        (60.0, 58.0, "confirmed"),
        (60.7, 58.0, "confirmed"),  # not a point above
        (63.0, 58.0, "contradicted"),
        (60.0, 62.0, "contradicted"),
        (60.0, 60.0, "undecided"),
    ],
)
def test_row_3_recovers_what_row_5_lost(row_1: float, row_5: float, status: str, tmp_path: Path) -> None:
    results = Results(tmp_path)
    for size in (128, 256, 512):
        for row, mean in ((1, row_1), (3, 60.0), (5, row_5)):
            put(results, row_config(DATASET, row, size), mean, seeds=SEEDS, spread=0.0 if row == 3 else 0.01)
    assert judge("recovered", results) == status


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
    assert judge(name, results) == become[0 if above else 1]


@pytest.mark.parametrize("name", MEASURED)
@pytest.mark.parametrize("above", [True, False])
def test_a_statement_about_measurements_has_a_direction(name: str, above: bool, tmp_path: Path) -> None:
    results = Results(tmp_path)
    first, second, become = MEASURED[name]
    put(results, NCA, 50.0, means=dict.fromkeys(second, 60.0) | dict.fromkeys(first, 62.0 if above else 58.0))
    assert judge(name, results, (0,)) == become[0 if above else 1]


def test_classifiers_have_an_order(tmp_path: Path) -> None:
    results = Results(tmp_path)
    for order, status in ((("knn", "soft", "centroid"), "confirmed"), (("soft", "knn", "centroid"), "contradicted")):
        means = {
            Measurement(split, 5, one): 60.0 + place for place, one in enumerate(order) for split in ("val", "test")
        }
        put(results, NCA, 50.0, means=means)
        assert judge("classifiers", results, (0,)) == status


@pytest.mark.parametrize(
    ("difference", "interval", "words"),
    [
        (0.5, 0.4, {"is_positive", "is_none"}),
        (-0.5, 0.4, {"is_negative", "is_none"}),
        (0.5, 0.6, set()),
        (0.3, 0.6, {"is_none"}),
        (1.5, 0.4, {"is_positive", "is_some"}),
        (-1.5, 0.4, {"is_negative", "is_some"}),
        (1.5, 0.6, {"is_positive"}),
        (-1.5, 0.6, {"is_negative"}),
        (0.0, 1.5, set()),
    ],
)
def test_what_a_difference_counts_for(difference: float, interval: float, words: set[str]) -> None:
    """Luck, where it is allowed for, widens it as its interval does."""
    for one in (Gap("", difference, interval, 1), Gap("", difference, interval - 0.3, 1, luck=0.3)):
        assert {word for word in ("is_positive", "is_negative", "is_none", "is_some") if getattr(one, word)} == words


def put_table(results: Results, changes: dict[tuple[int, tuple[int, int] | None], float]) -> None:
    """Put the accuracies of the paper's table, but for some."""
    for row in BATCH_SIZE_TABLE:
        setup = None if row.shape is None else (row.shape.n_shot, row.shape.images_per_class)
        mean = changes.get((row.batch_size, setup), row.accuracy[1].mean)
        put(results, setup_config(DATASET, "prototypical", row.batch_size, setup), mean, seeds=SEEDS)


def test_the_papers_own_table_has_its_ranking_and_its_exceptions(tmp_path: Path) -> None:
    put_table(Results(tmp_path), {})
    found = verdicts(Results(tmp_path), SEEDS)
    assert found["ranking"].status == "confirmed"
    assert "Batch 512, 5-shot: rank correlation 0.96." in found["ranking"].text
    assert found["ranking-exceptions"].status == "confirmed"


def test_a_setup_with_fewer_pairs_above_one_with_more_contradicts_the_ranking(tmp_path: Path) -> None:
    put_table(Results(tmp_path), {(256, (1, 32)): 73.5})  # above some that are no neighbours of it, below others
    found = verdicts(Results(tmp_path), SEEDS)["ranking"]
    assert found.status == "contradicted"
    assert "PN 5-shot m+n=32 minus PN 1-shot m+n=32, batch 256, 1-shot: −0.9" in found.text
    assert "PN 5-shot m+n=8 minus" not in found.text


def test_a_setup_that_is_level_leaves_the_ranking_open(tmp_path: Path) -> None:
    put_table(Results(tmp_path), {(256, (1, 8)): 72.53})  # as 5-shot m+n=32, which has more pairs
    assert verdicts(Results(tmp_path), SEEDS)["ranking"].status == "undecided"


def test_an_exception_that_is_none_is_said(tmp_path: Path) -> None:
    put_table(Results(tmp_path), {(128, (1, 8)): 60.0})  # now below 5-shot m+n=32, as its pairs would have it
    found = verdicts(Results(tmp_path), SEEDS)
    assert found["ranking"].status == "confirmed"
    assert found["ranking-exceptions"].status == "contradicted"
    assert "PN 1-shot m+n=8 minus PN 5-shot m+n=32, batch 128" in found["ranking-exceptions"].text


@pytest.mark.parametrize("worse", ["prototypical", "matching"])
def test_five_shots_have_to_be_better_for_both_networks(worse: str, tmp_path: Path) -> None:
    results = Results(tmp_path)
    for size in (128, 256, 512):
        put(results, setup_config(DATASET, "prototypical", size, (1, 8)), 60.0)  # the same for both
        for method in ("prototypical", "matching"):
            put(results, setup_config(DATASET, method, size, (5, 8)), 58.0 if method == worse else 62.0)
    found = verdicts(results)["five-shots"]
    assert found.status == "contradicted"
    assert found.text.startswith("Not so for 6 of 12: ")
    what = {"prototypical": "PN", "matching": "MN"}[worse]
    classifier = {"prototypical": "centroid", "matching": "soft"}[worse]
    assert f"{what} 5-shot minus 1-shot training, m+n=8, batch 128, {classifier}, 1-shot: −" in found.text


def test_a_comparison_says_by_which_classifier(tmp_path: Path) -> None:
    results = Results(tmp_path)
    for method, mean in (("nca", 62.0), ("prototypical", 60.0), ("matching", 61.0)):
        put(results, PRESETS[f"{DATASET}-{method}"], mean, seeds=SEEDS)
    found = verdicts(results, SEEDS)["nca-on-test"].text
    for what in ("NCA minus PN, centroid", "NCA minus MN, soft"):
        assert all(f"{what}, {shot}-shot: +" in found for shot in (1, 5))
    table = claims_as_table(Found(results, PAPER, SEEDS), DATASET)
    assert "nearest centroid, where nothing else is said" in table.notes[-1]


def test_fine_tuning_is_judged_on_the_last_layer_and_on_several(tmp_path: Path) -> None:
    results, config = Results(tmp_path), PRESETS[f"{DATASET}-nca"]
    plain, tuned, layers, both = (
        Measurement("test", 5, "centroid", layers, adapted)
        for layers in ((), LAYERS)
        for adapted in (None, "fine-tuned")
    )
    put(results, config, 80.0, means={plain: 80.0, tuned: 81.0, layers: 82.0, both: 81.0})
    found = verdicts(results)["fine-tuning"]
    assert found.status == "contradicted"
    assert found.text.startswith("Not so for 1 of 2: fine-tuned minus plain, several layers, 5-shot: −1.0")
    put(results, config, 80.0, means={plain: 80.0, tuned: 81.0, layers: 82.0, both: 83.0})
    assert verdicts(results)["fine-tuning"].status == "confirmed"


def test_dropblock_is_judged_on_one_architecture() -> None:
    without, with_it = (choice_config(DATASET, CHOICES[number]) for number in (0, 3))
    assert differences(without, with_it) == {"backbone": ("resnet12", "resnet12-dropblock")}
    small = [QUICK.change(config) for config in (without, with_it)]
    assert differences(*small) == {"backbone": ("conv4-32", "conv4-32-dropblock")}


@pytest.mark.parametrize(("off", "status"), [(0.0, "confirmed"), (3.0, "contradicted"), (-3.0, "contradicted")])
def test_episodes_are_held_against_the_curve_at_their_share_of_pairs(off: float, status: str, tmp_path: Path) -> None:
    results = Results(tmp_path)

    def height(share: float) -> float:  # a straight line over the logarithm, which is what is drawn between points
        return 70 + 5 * math.log10(share)

    for fraction in FRACTIONS:
        put(results, subsampled(DATASET, fraction), height(fraction), seeds=SEEDS)
    for method in ("prototypical", "matching"):
        for setup in IN_FIGURE:
            config = setup_config(DATASET, method, 256, setup)
            put(results, config, height(share_of_pairs(config)) + off, seeds=SEEDS)
    found = verdicts(results, SEEDS)["on-the-curve"]
    assert found.status == status
    assert re.search(" minus the curve at (22|26|43|47) % of the pairs, ", found.text)


def test_a_scale_that_makes_one_training_of_two_decides_nothing(tmp_path: Path) -> None:
    results = Results(tmp_path)
    put(results, choice_config(DATASET, CHOICES[0]), 60.0)
    one_for_all = replace(PAPER, change=lambda config: replace(config, backbone="resnet12"))
    sides = [(choice_config(DATASET, CHOICES[number]), Measurement("val", 5, "centroid")) for number in (0, 3)]
    assert gap(Found(results, one_for_all, (0,)), "", *sides) is None


def test_several_seeds_are_judged_by_their_spread(tmp_path: Path) -> None:
    results = Results(tmp_path)
    one, other = (row_config(DATASET, row, 512) for row in (3, 5))
    put(results, one, 62.0, seeds=SEEDS, spread=2.0)
    put(results, other, 60.0, seeds=SEEDS, spread=-2.0)
    wanted = Measurement("val", 5, "centroid")
    single = gap(Found(results, PAPER, (0,)), "", (one, wanted), (other, wanted))
    three = gap(Found(results, PAPER, (0, 1, 2)), "", (one, wanted), (other, wanted))
    assert single is not None
    assert three is not None
    assert single.is_positive
    assert not three.is_positive
    assert three.difference == pytest.approx(2.0 + 4.0, abs=0.7)
    assert three.n_seeds == 3


def test_trainings_with_more_and_fewer_episodes_are_compared_on_those_that_both_have(tmp_path: Path) -> None:
    results, wanted = Results(tmp_path), Measurement("val", 5, "centroid")
    one, other = (row_config(DATASET, row, 512) for row in (3, 5))
    put(results, one, 62.0, n_episodes=100)
    put(results, other, 60.0)
    found = gap(Found(results, PAPER, (0,)), "", (one, wanted), (other, wanted))
    backwards = gap(Found(results, PAPER, (0,)), "", (other, wanted), (one, wanted))
    put(results, other, 60.0, n_episodes=100)
    expected = gap(Found(results, PAPER, (0,)), "", (one, wanted), (other, wanted))
    assert found == expected
    assert backwards is not None
    assert expected is not None
    assert (backwards.difference, backwards.interval95) == (-expected.difference, expected.interval95)


def test_a_second_seed_that_agrees_does_not_undo_what_one_has_told(tmp_path: Path) -> None:
    """Of two seeds the interval is nearly thirteen times as wide as they differ."""
    results = Results(tmp_path)
    one, other = (row_config(DATASET, row, 512) for row in (3, 5))
    put(results, one, 62.0, seeds=SEEDS, spread=1.0)
    put(results, other, 60.0, seeds=SEEDS)
    wanted = Measurement("val", 5, "centroid")

    def judge(*seeds: int) -> Verdict:
        found = gap(Found(results, PAPER, seeds), "row 3 minus row 5", (one, wanted), (other, wanted))
        return judged([found], holds=lambda one: one.is_positive, fails=lambda one: one.is_negative)

    assert judge(0).status == judge(0, 1).status == "confirmed"
    assert "(2 seeds, ± over episodes; a point more is allowed for the chance in trainings)" in judge(0, 1).text
    assert judge(0, 1, 2).text.endswith("(3 seeds, ± between seeds).")
    far = [Gap("a", 2.0, 6.8, 2, 0.0, "", spread, 1, 0.1, 1.0) for spread in (0.9, 1.1)]
    assert [one.is_positive for one in (*pooled(far[:1]), *pooled(far[1:]))] == [True, False]


def test_three_seeds_speak_for_themselves() -> None:
    """Differences of +0.5, +0.4 and −0.65 points, of few that can be had: a mean of 0.1 that is not sure to 0.05."""
    differences = torch.tensor([0.49, 0.41, -0.65], dtype=torch.float64)
    spread = float(differences.std())
    (three,) = pooled([Gap("a", float(differences.mean()), 9.0, 3, 0.0, "", spread, 2, 0.05, 1.0)])
    assert three.interval95 == pytest.approx(float(scipy.stats.t.isf(0.025, 2)) * spread / math.sqrt(3))
    assert three.luck == 0


def test_the_pooled_spread_is_no_more_sure_than_it_says() -> None:
    """Comparisons with one training in common, three seeds: about one in twenty intervals misses, not more."""
    generator = torch.Generator().manual_seed(0)
    missed = []
    for _ in range(300):
        shared = torch.randn(3, generator=generator, dtype=torch.float64)
        differences = shared - torch.randn(12, 3, generator=generator, dtype=torch.float64)
        gaps = [Gap("", float(d.mean()), 0.0, 3, 0.0, "", float(d.std()), 2) for d in differences]
        missed += [abs(one.difference) > one.interval95 for one in pooled(gaps)]
    assert 0.03 < sum(missed) / len(missed) < 0.06


def test_one_network_measured_in_two_ways_has_no_luck(tmp_path: Path) -> None:
    results, config = Results(tmp_path), PRESETS[f"{DATASET}-nca"]
    put(results, config, 80.0, means={Measurement("val", 5, "centroid"): 80.5})
    sides = [(config, Measurement("val", 5, name)) for name in ("centroid", "soft")]
    found = gap(Found(results, PAPER, (0,)), "", *sides)
    assert found is not None
    assert found.is_positive
    assert found.luck == 0


def test_how_much_seeds_differ_is_taken_from_all_comparisons() -> None:
    """Three seeds alone tell so little that one of 72 comparisons could never contradict."""
    half = float(scipy.stats.t.isf(0.025, 2)) * 0.3 / math.sqrt(3)
    gaps = [Gap(f"{i}", 1.0 if i else -1.2, half, 3, 0.0, "5-shot", 0.3, 2) for i in range(72)]
    assert not gaps[0].among(72).is_negative
    verdict = judged(gaps, holds=lambda one: one.is_positive, fails=lambda one: one.is_negative)
    assert verdict.status == "contradicted"
    assert verdict.text.startswith("Not so for 1 of 72: 0: −1.20 ± 0.40")
    other_kind = [gaps[0], *(one._replace(kind="1-shot", spread=3.0) for one in gaps[1:])]
    assert judged(other_kind, holds=lambda one: True, fails=lambda one: one.is_negative).status == "confirmed"


def test_one_failure_contradicts_and_is_named() -> None:
    gaps = [Gap("a", 2.0, 0.5, 1), Gap("b", -2.0, 0.5, 1), None]
    verdict = judged(gaps, holds=lambda one: one.is_positive, fails=lambda one: one.is_negative)
    assert verdict.status == "contradicted"
    some = judged([gaps[0], None], holds=lambda one: one.is_positive, fails=lambda one: one.is_negative)
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
