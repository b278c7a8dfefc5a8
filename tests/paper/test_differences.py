"""Differences between runs and within one, and verdicts on them."""

import math
import re
import statistics
from dataclasses import replace
from itertools import permutations
from pathlib import Path

import pytest
import scipy.stats
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.helpers.made_up import DATASET, SEEDS, put

from nearshot.errors import InputError
from nearshot.evaluation import Accuracy, Comparison, Protocol, compare
from nearshot.paper.claims import Verdict, judge
from nearshot.paper.claims.verdict import ABOVE, NONE
from nearshot.paper.differences import (
    MEASURED_TWICE,
    Difference,
    Limits,
    difference_of,
    difference_of_runs,
    over_seeds,
    pool_spread,
    seed_margin,
)
from nearshot.paper.recipe import Found, Side
from nearshot.paper.recipes.ablations import row_config
from nearshot.paper.recipes.choices import choice_config
from nearshot.paper.results import Measurement, Results
from nearshot.paper.sizes import PAPER
from nearshot.training import PRESETS

ROOT = Path(__file__).parents[2]
VAL = Measurement("val", 5, "centroid")
BOTH_ROWS = [(row_config(DATASET, row, 512), VAL) for row in (3, 5)]


def test_a_scale_that_merges_two_runs_gives_no_difference(tmp_path: Path) -> None:
    results = Results(tmp_path)
    put(results, choice_config(DATASET, "NCA"), 60.0)
    one_for_all = replace(PAPER, change=lambda config: replace(config, backbone="resnet12"))
    sides = [
        (choice_config(DATASET, one), Measurement("val", 5, "centroid"))
        for one in ("NCA", "NCA, DropBlock")
    ]
    assert difference_of(Found(results, one_for_all, (0,)), *sides) is None


def test_trainings_with_more_and_fewer_episodes_are_compared_on_those_that_both_have(
    tmp_path: Path,
) -> None:
    results = Results(tmp_path)
    one, other = (config for config, _ in BOTH_ROWS)

    def difference(*sides: Side) -> Difference | None:
        return difference_of(Found(results, PAPER, (0,)), *sides)

    put(results, one, 62.0, n_episodes=100)
    put(results, other, 60.0)
    found, backwards = difference(*BOTH_ROWS), difference(*reversed(BOTH_ROWS))
    put(results, other, 60.0, n_episodes=100)
    expected = difference(*BOTH_ROWS)
    assert found == expected
    assert backwards is not None
    assert expected is not None
    assert (backwards.difference, backwards.interval95) == (
        -expected.difference,
        expected.interval95,
    )
    put(results, other, 60.0, episode_seed=1)  # others, of which none are shared
    with pytest.raises(InputError, match="different episodes"):
        difference(*BOTH_ROWS)


def test_a_second_seed_that_agrees_does_not_undo_what_one_has_told(tmp_path: Path) -> None:
    """Of two seeds the interval is nearly thirteen times as wide as they differ."""
    results = Results(tmp_path)
    for (config, _), mean, spread in zip(BOTH_ROWS, (62.0, 60.0), (1.0, 0.0), strict=True):
        put(results, config, mean, seeds=SEEDS, spread=spread)

    def judged(*seeds: int) -> Verdict:
        return judge(([difference_of(Found(results, PAPER, seeds), *BOTH_ROWS)], ABOVE))

    assert judged(0).status == judged(0, 1).status == "confirmed"
    assert "(2 seeds, ± over episodes; plus 1 point for seed variance)" in judged(0, 1).text
    assert judged(0, 1, 2).text.endswith("(3 seeds, ± between seeds).")
    for spread, margin, is_above in ((0.01, 0.0, True), (0.9, 1.0, True), (1.1, 0.0, False)):
        (two,) = pool_spread([Difference("a", 2.0, 0.1, 2, 1.0, "", spread, 1)])
        assert (two.margin, two.low > 0) == (margin, is_above)


def test_the_interval_between_seeds_is_students() -> None:
    differences, intervals = [1.0, 2.0, 4.5], [0.3, 0.4, 1.2]
    comparisons = [
        Comparison(difference, interval, wins=50, ties=0, losses=50)
        for difference, interval in zip(differences, intervals, strict=True)
    ]
    three = over_seeds("a minus b", comparisons, VAL, 1.0)
    assert three is not None
    assert (three.n_seeds, three.freedom, three.margin, three.allowed) == (3, 2, 0.0, 1.0)
    assert three.difference == pytest.approx(2.5)
    assert three.spread == pytest.approx(statistics.stdev(differences))
    expected = scipy.stats.ttest_1samp(differences, 0.0).confidence_interval(0.95)
    assert (three.low, three.high) == pytest.approx((expected.low, expected.high))
    assert three.over_episodes == pytest.approx(1.3 / 3)  # √(0.3² + 0.4² + 1.2²) / 3
    one = over_seeds("a minus b", comparisons[:1], VAL, 1.0)
    assert one == Difference("a minus b", 1.0, 0.3, 1, 1.0, "val, 5-shot", by_seed=(1.0,))
    assert over_seeds("a minus b", [], VAL, 1.0) is None


@pytest.mark.parametrize("seeds", [(SEEDS, SEEDS), (SEEDS, SEEDS[:2]), (SEEDS[1:], SEEDS[:2])])
def test_the_interval_between_two_runs_is_welchs(
    seeds: tuple[tuple[int, ...], ...], tmp_path: Path
) -> None:
    """The same seed of two methods draws other batches: the sides are not paired, and may differ in variance."""
    results, means = Results(tmp_path), []
    for (config, measured), its_seeds, mean, spread in zip(
        BOTH_ROWS, seeds, (62.0, 60.0), (8 / 3, 4 / 3), strict=True
    ):
        put(results, config, mean, seeds=its_seeds, spread=spread)
        runs = Found(results, PAPER, SEEDS).runs(config)
        means.append([float(run.accuracy(measured).per_episode.mean()) for run in runs])
    expected = scipy.stats.ttest_ind(*means, equal_var=False)
    found = difference_of(Found(results, PAPER, SEEDS), *BOTH_ROWS)
    assert found is not None
    assert (found.n_seeds, found.of_two_runs) == (min(map(len, seeds)), True)
    assert found.freedom == pytest.approx(expected.df)
    assert (found.low, found.high) == pytest.approx(tuple(expected.confidence_interval(0.95)))
    (alone,) = pool_spread([found._replace(allowed=0.0)])
    assert (alone.interval95, alone.freedom) == pytest.approx((found.interval95, found.freedom))


def test_one_seed_of_either_run_has_the_interval_over_episodes(tmp_path: Path) -> None:
    results = Results(tmp_path)
    for (config, _), mean, seeds in zip(BOTH_ROWS, (62.0, 60.0), (SEEDS, (1,)), strict=True):
        put(results, config, mean, seeds=seeds, spread=0.7)
    found = difference_of(Found(results, PAPER, SEEDS), *BOTH_ROWS)
    assert found == difference_of(Found(results, PAPER, (1,)), *BOTH_ROWS)
    assert found is not None
    assert (found.n_seeds, found.freedom, found.margin) == (1, 0, 1.0)


@pytest.mark.parametrize("paired", [True, False])
def test_the_pooled_spread_is_no_more_sure_than_it_says(paired: bool) -> None:
    """Comparisons with one run in common, three seeds, unequal variances: one in twenty intervals misses, not more."""
    generator = torch.Generator().manual_seed(0)
    protocol, missed = Protocol(5, 5, 15, 2, 0, "", "centroid", True, True), []

    def run(scale: float) -> dict[int, Accuracy]:
        means = scale * torch.randn(3, generator=generator, dtype=torch.float64)
        return {seed: Accuracy(mean.repeat(2), protocol) for seed, mean in enumerate(means)}

    def difference(one: dict[int, Accuracy], other: dict[int, Accuracy]) -> Difference | None:
        if not paired:
            return difference_of_runs("", one, other, VAL)
        return over_seeds("", [compare(one[seed], other[seed]) for seed in one], VAL, 0.0)

    for _ in range(100):
        shared = run(1.0)
        found = [difference(shared, run(1.0 if paired else 0.5 + i / 12)) for i in range(12)]
        missed += [
            abs(one.difference) > one.interval95
            for one in pool_spread([one for one in found if one])
        ]
    assert 0.02 < sum(missed) / len(missed) < 0.06


def test_one_of_many_is_judged_by_the_tails_that_its_interval_has() -> None:
    for freedom, chance in ((0, scipy.stats.norm()), (2, scipy.stats.t(2))):
        one = Difference("", 5.0, float(chance.isf(0.025)), 3, spread=math.sqrt(3), freedom=freedom)
        for n_compared in (1, 72):
            expected = float(chance.isf(0.025 / n_compared))
            assert one._replace(n_compared=n_compared).interval95 == pytest.approx(expected)


def test_single_seeds_tell_nothing_of_how_much_seeds_differ() -> None:
    three = Difference("", 1.0, 9.0, 3, kind="k", spread=0.3, freedom=2)
    single = Difference("", 1.0, 0.2, 1, 1.0, "k")
    assert pool_spread([three, single, single]) == [*pool_spread([three]), single, single]


def test_six_differences_are_listed_and_the_rest_counted() -> None:
    told = judge(
        ([Difference(f"difference {number}", 9.0 - number, 0.1, 1) for number in range(8)], ABOVE)
    ).text
    assert [f"difference {number}: " in told for number in range(8)] == [False] * 2 + [True] * 6
    assert "; and 2 more (one seed" in told
    unsure = [Difference("a", 1.5, 0.1, 1, 1.0), Difference("b", 2.7, 0.1, 1, 2.5)]
    assert judge((unsure, ABOVE)).text.startswith(
        "b: "
    )  # least beyond doubt by its interval and margin


@pytest.mark.parametrize(
    ("better", "seeds", "status"),
    [
        (0.4, (0,), "undecided"),
        (0.7, (0,), "confirmed"),
        (-0.7, (0,), "contradicted"),
        (0.4, SEEDS, "confirmed"),
    ],
)
def test_one_network_measured_in_two_ways_is_one_network(
    better: float, seeds: tuple[int, ...], status: str, tmp_path: Path
) -> None:
    results, config = Results(tmp_path), PRESETS[f"{DATASET}-nca"]
    put(
        results, config, 80.0, seeds=seeds, means={Measurement("val", 5, "centroid"): 80.0 + better}
    )
    sides = [(config, Measurement("val", 5, name)) for name in ("centroid", "soft")]
    verdict = judge(([difference_of(Found(results, PAPER, seeds), *sides)], ABOVE))
    assert verdict.status == status
    assert ("plus 0.5 points for seed variance" in verdict.text) == (len(seeds) == 1)


def test_the_margin_for_one_network_is_what_seeds_were_measured_to_differ_by() -> None:
    """Two standard deviations, of all that was measured in two ways with three seeds; the largest of each kind."""
    found, largest = (
        Found(Results(ROOT / "results"), PAPER, SEEDS),
        dict.fromkeys(MEASURED_TWICE, 0.0),
    )
    for config in (PRESETS[f"{DATASET}-nca"], PRESETS[f"{DATASET}-prototypical"]):
        runs = found.runs(config)
        shared = set.intersection(
            *({Measurement.named(name) for name in run.content["accuracies"]} for run in runs)
        )
        for one, other in permutations(shared, 2):
            what = [field for field, value in vars(one).items() if getattr(other, field) != value]
            if len(what) == 1 and what[0] in largest:
                seeds = difference_of(found, (config, one), (config, other))
                assert seeds is not None
                assert seeds.n_seeds == 3
                assert seed_margin(one, other) == MEASURED_TWICE[what[0]]
                largest[what[0]] = max(largest[what[0]], seeds.spread)
    assert {what: math.ceil(4 * spread) / 2 for what, spread in largest.items()} == MEASURED_TWICE


def test_how_much_seeds_differ_is_taken_from_all_comparisons() -> None:
    """Three seeds alone tell so little that one of 72 comparisons could never contradict."""
    gaps = [
        Difference(f"{i}", 1.0 if i else -1.2, 0.1, 3, 0.0, "5-shot", 0.3, 2) for i in range(72)
    ]
    assert gaps[0]._replace(n_compared=72).high > 0
    verdict = judge((gaps, ABOVE))
    assert verdict.status == "contradicted"
    assert verdict.text.startswith("Contradicted by 1 of 72: 0: −1.20 ± 0.40")
    other_kind = [gaps[0], *(one._replace(kind="1-shot", spread=3.0) for one in gaps[1:])]
    assert judge((other_kind, ABOVE)).status == "undecided"


def test_the_margin_for_one_seed_is_what_seeds_were_measured_to_differ_by() -> None:
    """On the test split 2.78 standard deviations; on the validation split more, as three seeds do not tell it well."""
    found = Found(Results(ROOT / "results"), PAPER, SEEDS)
    for n_shot in (1, 5):
        for split, spread in (("test", {1: 0.86, 5: 0.52}), ("val", {1: 0.09, 5: 0.11})):
            wanted = Measurement(split, n_shot, "centroid")
            sides = [(PRESETS[f"{DATASET}-{method}"], wanted) for method in ("nca", "prototypical")]
            one = difference_of(found, *sides)
            assert one is not None
            assert (one.n_seeds, one.of_two_runs) == (3, True)
            assert one.spread == pytest.approx(spread[n_shot], abs=0.005)
            if split == "test":
                half = float(scipy.stats.t.isf(0.025, 4)) * one.spread
                assert half == pytest.approx(seed_margin(wanted) - 0.1, abs=0.05)
            else:
                no_more_than = one.spread * math.sqrt(4 / float(scipy.stats.chi2.isf(0.975, 4)))
                assert no_more_than == pytest.approx(0.3, abs=0.05)
                assert seed_margin(wanted) > 3 * no_more_than


@pytest.mark.parametrize(
    ("limits", "differences", "order"),
    [
        (ABOVE, (0.1, -0.9, 0.5), "bac"),
        (ABOVE, (-3.0, -5.0, -4.0), "bca"),
        (NONE, (0.01, -0.9, 0.3), "bca"),
        (NONE, (0.9, -0.8, 0.01), "abc"),
        (Limits(high=0.5), (-0.2, 0.4, -0.4), "bac"),
        (Limits(0.0, 1.0), (0.5, 1.6, -0.2), "bca"),
    ],
)
def test_what_speaks_against_a_statement_comes_first(
    limits: Limits, differences: tuple[float, ...], order: str
) -> None:
    """For "no difference" that is the largest, of either sign."""
    gaps = [
        Difference(name, difference, 0.1, 1, 1.0)
        for name, difference in zip("abc", differences, strict=True)
    ]
    told = judge((gaps, limits)).text
    assert "".join(re.findall("([abc]): ", told)) == order


@given(
    st.floats(-9, 9),
    st.floats(0.01, 3),
    st.floats(0, 3),
    st.sampled_from((-math.inf, -1.0, 0.0)),
    st.floats(0.1, 9),
)
def test_limits_hold_or_fail_and_what_fills_them_never_holds(
    difference: float, interval: float, margin: float, low: float, width: float
) -> None:
    limits = Limits(low, max(low, -1.0) + width)
    one = Difference("a", difference, interval, 1, margin, limits=limits)
    assert not (one.room > 0 and (one.fails or one.cannot_hold))
    is_within = limits.low < one.difference < limits.high
    assert not one.fails if is_within else one.room <= 0


def test_a_verdict_names_too_few_seeds() -> None:
    level = Difference("a", 0.0, 0.1, 1, 1.0)
    assert judge(([level], NONE)).text.endswith(". One seed cannot confirm this.")
    assert judge(([level, None], NONE)).text.endswith(
        ". One seed cannot confirm this. 1 of 2 comparisons are not run yet."
    )
    two = Difference("a", 0.0, 0.1, 2, 1.0, "", 0.5, 1)
    assert judge(([two], NONE)).text.endswith(". Two seeds cannot confirm this.")
    for others in (([level], ABOVE), ([level._replace(allowed=0.9, over_episodes=0.2)], NONE)):
        assert judge(others).status == "undecided"
        assert "cannot" not in judge(others).text
    assert (
        "cannot" not in judge(([level._replace(difference=5.0)], NONE)).text
    )  # but it can contradict
    assert (
        judge(([level._replace(difference=5.0), None], ABOVE)).status == "undecided"
    )  # one of two is not all
