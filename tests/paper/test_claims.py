"""Claims, judged on results that are made up so that the answer is known."""

import math
from collections.abc import Sequence
from pathlib import Path

import pytest
from tests.helpers.made_up import DATASET, SEEDS, make_up, put

from nearshot.paper.claim_differences import Compared
from nearshot.paper.claims import (
    BETTER,
    CLAIMS,
    THE_SAME,
    Claim,
    Expectation,
    Verdict,
    judge,
)
from nearshot.paper.differences import SeedComparison
from nearshot.paper.identity import run_id
from nearshot.paper.numbers import BATCH_SIZE_TABLE, BATCH_SIZES, QUOTED
from nearshot.paper.recipes import RECIPES, ablations, claims, schedule
from nearshot.paper.recipes.adaptation import CLOSEST, LAYERS
from nearshot.paper.recipes.batch_size import (
    IN_FIGURE,
    NETWORKS,
    PN,
    SETUPS,
    setup_config,
    share_of_pairs,
)
from nearshot.paper.recipes.pair_subsampling import FRACTIONS, subsampled
from nearshot.paper.results import Measurement, Results, RunResult
from nearshot.paper.sizes import PAPER, at_input_size, usual_size
from nearshot.training import PRESETS, TrainConfig

NCA = PRESETS[f"{DATASET}-nca"]


def claim_about(*words: str, dataset: str = DATASET) -> Claim:
    """Return the claim whose sentence has some words."""
    (claim,) = (
        claim
        for claim in CLAIMS
        if dataset in claim.datasets and all(word in claim.sentence for word in words)
    )
    return claim


def verdict(claim: Claim, results: Results) -> Verdict | None:
    return judge(claim.expectation, list(claim.differences(results, DATASET)))


def compared(*differences: float, spread: float = 0.1, n_seeds: int = 3) -> list[Compared]:
    """Return paired comparisons, whose differences between seeds are `spread` apart."""
    pairs = []
    for difference in differences:
        firsts = tuple(60 + difference + spread * (seed - 1) for seed in range(n_seeds))
        seeds = SeedComparison(firsts, (60.0,) * n_seeds, is_paired=True)
        pairs.append(Compared("a minus b", seeds))
    return pairs


# Student's t interval of three seeds that are 0.1 apart is ± 0.25.
@pytest.mark.parametrize(
    ("expectation", "differences", "expected"),
    [
        (BETTER, (0.3, 2.0), "confirmed"),
        (BETTER, (0.2, 2.0), "undecided"),
        (BETTER, (-1.0, 2.0), "contradicted"),
        (THE_SAME, (0.7, -0.7), "confirmed"),
        (THE_SAME, (0.7, -0.8), "undecided"),
        (THE_SAME, (2.0, 0.0), "contradicted"),
    ],
)
def test_every_interval_must_be_where_the_sentence_says(
    expectation: Expectation, differences: tuple[float, ...], expected: Verdict
) -> None:
    assert judge(expectation, compared(*differences)) == expected


def test_many_differences_have_wider_intervals_to_contradict() -> None:
    """Bonferroni: ± 0.25 of one, ± 0.57 of one in five."""
    assert judge(BETTER, compared(-0.3)) == "contradicted"
    assert judge(BETTER, compared(-0.3, 1.0, 1.0, 1.0, 1.0)) == "undecided"
    assert judge(BETTER, compared(-0.6, 1.0, 1.0, 1.0, 1.0)) == "contradicted"


def test_fewer_than_three_seeds_have_no_verdict() -> None:
    missing = Compared("c minus d", None)
    assert judge(BETTER, compared(2.0, n_seeds=2)) is None
    assert judge(BETTER, [missing]) is None
    assert judge(BETTER, [*compared(2.0), missing]) == "undecided"
    assert judge(BETTER, [*compared(2.0), *compared(2.0, n_seeds=2)]) == "undecided"
    assert judge(BETTER, [*compared(-2.0), missing]) == "contradicted"


@pytest.mark.parametrize("dataset", ["cifar-fs", "mini-imagenet", "tiered-imagenet", "tiny-tiered"])
def test_every_run_that_a_claim_is_about_is_of_a_recipe(dataset: str, tmp_path: Path) -> None:
    """A claim about runs that no recipe trains could never be judged."""
    trained = set()
    for recipe in RECIPES.values():
        if dataset in recipe.datasets:
            trained |= {run_id(row.config) for row in recipe.rows(dataset)}
    requested: set[str] = set()

    class Recording(Results):
        def runs(self, config: TrainConfig) -> list[RunResult]:
            requested.add(run_id(self.size.change(config)))
            return []

    about = [claim for claim in CLAIMS if dataset in claim.datasets]
    for claim in about:
        pairs = list(claim.differences(Recording(tmp_path, usual_size(dataset)), dataset))
        assert pairs, claim.sentence
        assert len({pair.name for pair in pairs}) == len(pairs), claim.sentence
    assert requested
    assert requested <= trained


def put_groups(
    results: Results, groups: Sequence[list[TrainConfig]], means: Sequence[float]
) -> None:
    """Write results of three seeds, with about one accuracy for each group of runs."""
    for configs, mean in zip(groups, means, strict=True):
        for config in configs:
            put(results, config, mean, seeds=SEEDS, spread=0.01)


def figure_4(row: int, sizes: Sequence[int] = BATCH_SIZES) -> list[TrainConfig]:
    return [ablations.row_config(DATASET, row, size) for size in sizes]


NCA_POINTS = [setup_config(DATASET, PN, size, None) for size in BATCH_SIZES]
EPISODE_POINTS = [
    setup_config(DATASET, network, size, setup)
    for network in NETWORKS
    for size in BATCH_SIZES
    for setup in SETUPS
]
SCHEDULES = {row.label: row.config for row in schedule.rows(DATASET)}
PAPERS_SCHEDULE = [SCHEDULES["PN (the paper's)"], SCHEDULES["NCA (the paper's)"]]
SIMPLESHOTS = [
    SCHEDULES["PN (SimpleShot's schedule)"],
    SCHEDULES["NCA (SimpleShot's schedule)"],
]
OURS = [PRESETS[f"{DATASET}-{method}"] for method in ("prototypical", "matching")]
SNELLS = [PRESETS[f"{DATASET}-{method}-snell"] for method in ("prototypical", "matching")]


@pytest.mark.parametrize(
    ("words", "groups", "means", "expected"),
    [
        (("every episodic",), (NCA_POINTS, EPISODE_POINTS), (62, 60), "confirmed"),
        (("every episodic",), (NCA_POINTS, EPISODE_POINTS), (58, 60), "contradicted"),
        (("beat Snell",), (OURS, SNELLS), (62, 60), "confirmed"),
        (("beat Snell",), (OURS, SNELLS), (58, 60), "contradicted"),
        (("schedule",), (PAPERS_SCHEDULE, SIMPLESHOTS), (63, 60), "confirmed"),
        (("schedule",), (PAPERS_SCHEDULE, SIMPLESHOTS), (60.5, 60), "contradicted"),
        (("replacement",), (figure_4(1), figure_4(2)), (60.1, 60), "confirmed"),
        (("replacement",), (figure_4(1), figure_4(2)), (63, 60), "contradicted"),
        (("Without prototypes",), (figure_4(5), figure_4(6)), (62, 60), "confirmed"),
        (("Without prototypes",), (figure_4(5), figure_4(6)), (58, 60), "contradicted"),
        (("better than PN",), (figure_4(3), figure_4(5)), (62, 60), "confirmed"),
        (("recover",), (figure_4(3), figure_4(1)), (60, 60.5), "confirmed"),
        (("recover",), (figure_4(3), figure_4(1)), (60, 63), "contradicted"),
        (("There is a gap",), (figure_4(3), figure_4(1)), (63, 60), "confirmed"),
        (("gap", "disappears"), (figure_4(3), figure_4(1)), (63, 60), "contradicted"),
        (("MN too",), (figure_4(3), figure_4(4), figure_4(6)), (62, 60, 61), "confirmed"),
        (("MN too",), (figure_4(3), figure_4(4), figure_4(6)), (62, 60, 63), "contradicted"),
        (("rows 5 and 6",), (figure_4(7), figure_4(5), figure_4(6)), (62, 60, 61), "confirmed"),
        (("rows 6 and 7",), (figure_4(3), figure_4(6), figure_4(7)), (62, 60, 63), "contradicted"),
    ],
)
def test_a_claim_has_a_direction(
    words: tuple[str, ...],
    groups: tuple[list[TrainConfig], ...],
    means: tuple[float, ...],
    expected: Verdict,
    tmp_path: Path,
) -> None:
    results = Results(tmp_path)
    put_groups(results, groups, means)
    assert verdict(claim_about(*words), results) == expected


MULTI_LAYER = Measurement("test", 5, layers=LAYERS)
TUNED = Measurement("test", 5, how=CLOSEST)
TUNED_MULTI_LAYER = Measurement("test", 5, layers=LAYERS, how=CLOSEST)
MATRIX = Measurement("test", 5, how="mahalanobis 5 steps")


def by_classifier(knn: float, soft: float, centroid: float) -> dict[Measurement, float]:
    accuracies = {"knn": knn, "soft": soft, "centroid": centroid}
    return {
        Measurement(split, 5, classifier): accuracy
        for split in ("val", "test")
        for classifier, accuracy in accuracies.items()
    }


def treated(usual: float, others: float) -> dict[Measurement, float]:
    hows = {"": usual, "raw": others, "centred": others, "normalised": others}
    return {
        Measurement("val", n_shot, how=how): accuracy
        for n_shot in (1, 5)
        for how, accuracy in hows.items()
    }


@pytest.mark.parametrize(
    ("words", "means", "expected"),
    [
        (("Centring",), treated(62, 60), "confirmed"),
        (("Centring",), treated(58, 60), "contradicted"),
        (("several layers",), {MULTI_LAYER: 63}, "undecided"),  # with one shot it is not measured
        (("several layers",), {MULTI_LAYER: 57}, "contradicted"),
        (("Mahalanobis",), {MATRIX: 58}, "confirmed"),
        (("Mahalanobis",), {MATRIX: 62}, "contradicted"),
        (("Nearest centroid",), by_classifier(60, 61, 62), "confirmed"),
        (("Nearest centroid",), by_classifier(61, 60, 62), "contradicted"),
        (
            ("Fine-tuning",),
            {TUNED: 62, MULTI_LAYER: 62, TUNED_MULTI_LAYER: 64},
            "confirmed",
        ),
        (
            ("Fine-tuning",),
            {TUNED: 62, MULTI_LAYER: 62, TUNED_MULTI_LAYER: 60},
            "contradicted",
        ),
    ],
)
def test_a_claim_about_measurements_of_one_run_has_a_direction(
    words: tuple[str, ...],
    means: dict[Measurement, float],
    expected: Verdict,
    tmp_path: Path,
) -> None:
    results = Results(tmp_path)
    put(results, NCA, 60.0, seeds=SEEDS, spread=1.0, means=means)
    assert verdict(claim_about(*words), results) == expected


def test_competitive_is_above_the_median_of_the_quoted_methods(tmp_path: Path) -> None:
    results = Results(tmp_path)
    claim = claim_about("competitive")
    quoted = [numbers[DATASET] for numbers in QUOTED.values() if DATASET in numbers]
    assert len(quoted) == 4
    one_shot = sum(sorted(numbers[0].mean for numbers in quoted)[1:3]) / 2
    five_shots = sum(sorted(numbers[1].mean for numbers in quoted)[1:3]) / 2
    test = {Measurement("test", 1): one_shot + 1, Measurement("test", 5): five_shots + 1}
    put(results, NCA, 60.0, seeds=SEEDS, spread=0.01, means=test)
    assert verdict(claim, results) == "confirmed"
    test[Measurement("test", 5)] = five_shots - 1
    put(results, NCA, 60.0, seeds=SEEDS, spread=0.01, means=test)
    assert verdict(claim, results) == "contradicted"


def test_the_curve_of_figure_3_is_interpolated_over_the_logarithm_of_the_share(
    tmp_path: Path,
) -> None:
    """NCA is made up to be 70 + 5 log10(share), and the networks to lie on that line."""
    results = Results(tmp_path)
    for fraction in FRACTIONS:
        mean = 70 + 5 * math.log10(fraction)
        put(results, subsampled(DATASET, fraction), mean, seeds=SEEDS, spread=0.01)
    claim = claim_about("subsampling curve")
    on_the_line = {}
    for pair in claim.differences(results, DATASET):
        on_the_line[pair.name] = pair.seeds
    assert not any(on_the_line.values())  # without the networks
    for network in NETWORKS:
        for setup in IN_FIGURE:
            config = setup_config(DATASET, network, 256, setup)
            mean = 70 + 5 * math.log10(share_of_pairs(config))
            put(results, config, mean, seeds=SEEDS, spread=0.01)
    assert verdict(claim, results) == "confirmed"
    put(results, config, mean + 2, seeds=SEEDS, spread=0.01)
    assert verdict(claim, results) == "contradicted"


@pytest.mark.parametrize(
    ("changed", "accuracy", "ranking", "exceptions"),
    [
        (None, 0.0, "confirmed", "confirmed"),
        ((256, (1, 32)), 73.5, "contradicted", "confirmed"),  # above some with more pairs
        ((256, (5, 8)), 76.0, "confirmed", "contradicted"),
    ],
)
def test_appendix_es_own_table_confirms_its_ranking(
    changed: tuple[int, tuple[int, int]] | None,
    accuracy: float,
    ranking: Verdict,
    exceptions: Verdict,
    tmp_path: Path,
) -> None:
    results = Results(tmp_path)
    for row in BATCH_SIZE_TABLE:
        config = setup_config(DATASET, PN, row.batch_size, row.setup)
        mean = row.accuracy[1].mean
        if (row.batch_size, row.setup) == changed:
            mean = accuracy
        put(results, config, mean, seeds=SEEDS, spread=0.001)
    assert verdict(claim_about("In a batch, more pairs"), results) == ranking
    assert verdict(claim_about("Fewer pairs, and better"), results) == exceptions


def test_claims_without_measurements_are_counted_and_not_rows(tmp_path: Path) -> None:
    results = make_up(tmp_path, ["schedule"], PAPER, dataset=DATASET, seeds=3)
    judged, n_missing = claims.judged_claims(results, DATASET)
    about = [claim for claim in CLAIMS if DATASET in claim.datasets]
    assert len(judged) + n_missing == len(about)
    (table,) = claims.tables(results, DATASET)
    measured = [judged_claim.claim for judged_claim in judged]
    assert [row.cells[0] for row in table.rows] == [claim.sentence for claim in measured]
    assert measured == [claim for claim in about if claim in measured]
    assert claim_about("considerably") in measured
    assert any(str(n_missing) in note and "nearshot reproduce" in note for note in table.notes)
    at_32 = claims.tables(Results(tmp_path / "nothing", at_input_size(32)), DATASET)
    assert any("--input-size 32" in note for note in at_32[0].notes)
    nothing = claims.tables(Results(tmp_path / "nothing"), DATASET)
    assert nothing[0].rows == []


def test_the_chart_shows_every_measured_difference(tmp_path: Path) -> None:
    results = make_up(tmp_path, ["schedule", "classifiers"], PAPER, dataset=DATASET, seeds=3)
    judged, _ = claims.judged_claims(results, DATASET)
    (figure,) = claims.figures(results, DATASET)
    drawing = figure.draw()
    drawing.draw_without_rendering()
    (axes,) = drawing.axes
    assert len(axes.get_yticklabels()) == len(judged)
    shown: list[float] = []
    for container in axes.containers:
        shown += list(container[0].get_xdata())
    means: list[float] = []
    for judged_claim in judged:
        means += [difference.mean for difference in judged_claim.differences.values()]
    assert sorted(shown) == pytest.approx(sorted(means))
    left, right = axes.get_xlim()
    assert left <= min(means) <= max(means) <= right
    used = drawing.get_tightbbox()
    width, height = drawing.get_size_inches()
    assert used.x0 >= 0
    assert used.y0 >= 0
    assert used.x1 <= width
    assert used.y1 <= height


def test_the_difference_that_speaks_most_against_a_claim_comes_first(tmp_path: Path) -> None:
    results = Results(tmp_path)
    for configs, mean in ((PAPERS_SCHEDULE, 63), (SIMPLESHOTS[:1], 62), (SIMPLESHOTS[1:], 60)):
        put_groups(results, [configs], [mean])
    judged, _ = claims.judged_claims(results, DATASET)
    by_claim = {judged_claim.claim.sentence: judged_claim for judged_claim in judged}
    differences = by_claim[claim_about("considerably").sentence].differences
    means = [difference.mean for difference in differences.values()]
    assert means == sorted(means)
    assert next(iter(differences)).startswith("PN")
