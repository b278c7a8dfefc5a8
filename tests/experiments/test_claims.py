"""Statements, checked on results that are made up so that the answer is known."""

from __future__ import annotations

import math
import re
from pathlib import Path

import pytest
from known import DATASET, SEEDS, put, verdict
from made_up import make_up

from nearshot.experiments.claims import CLAIMS, check_claims
from nearshot.experiments.identity import run_id
from nearshot.experiments.paper import BATCH_SIZE_TABLE
from nearshot.experiments.paper_configs import BATCH_SIZES
from nearshot.experiments.recipe import Found
from nearshot.experiments.recipes import RECIPES
from nearshot.experiments.recipes.ablations import row_config
from nearshot.experiments.recipes.batch_size import IN_FIGURE, SETUPS, setup_config
from nearshot.experiments.recipes.choices import CHOICES, choice_config, schedule_config
from nearshot.experiments.recipes.comparison import SUPCON_ROWS, supcon_config
from nearshot.experiments.recipes.features import LAYERS
from nearshot.experiments.recipes.pair_subsampling import FRACTIONS, share_of_pairs, subsampled
from nearshot.experiments.results import Measurement, Results, RunResult
from nearshot.experiments.scales import PAPER, QUICK
from nearshot.training import PRESETS, TrainConfig
from nearshot.training.config import differences


def test_nothing_run_is_not_yet_run(tmp_path: Path) -> None:
    found = {claim.name: verdict for claim, verdict in check_claims(Found(Results(tmp_path), PAPER, (0,)), DATASET)}
    assert found.pop("more-pairs")[0] == "confirmed"  # counted, not trained
    assert {status for status, _ in found.values()} == {"not yet run"}
    assert len(found) == len(CLAIMS) - 1


def test_what_was_judged_comes_first_and_in_the_papers_order(tmp_path: Path) -> None:
    results = make_up(tmp_path, ["schedule", "floor"], PAPER, dataset=DATASET)
    checked = [(claim.name, verdict.status) for claim, verdict in check_claims(Found(results, PAPER, (0,)), DATASET)]
    n_judged = sum(status != "not yet run" for _, status in checked)
    assert "not yet run" not in [status for _, status in checked[:n_judged]]
    names, order = [name for name, _ in checked], [claim.name for claim in CLAIMS]
    assert "schedule" in names[:n_judged]
    for part in (names[:n_judged], names[n_judged:]):
        assert part == sorted(part, key=order.index)


@pytest.mark.parametrize(
    ("better", "seeds", "status"),
    [(2.0, (0,), "confirmed"), (-0.7, (0,), "undecided"), (-0.7, (0, 1, 2), "contradicted")],
)
def test_nca_above_all_episodes(better: float, seeds: tuple[int, ...], status: str, tmp_path: Path) -> None:
    results = Results(tmp_path)
    for size in (128, 256, 512):
        put(results, setup_config(DATASET, "nca", size, None), 60.0 + better, seeds=seeds)
        for setup in SETUPS:
            for method in ("prototypical", "matching"):
                put(results, setup_config(DATASET, method, size, setup), 60.0, seeds=seeds)
    found = verdict(results, "nca-best", seeds)
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
    found = verdict(results, "replacement", seeds)
    assert found.status == status
    assert found.text.endswith("). One seed cannot confirm this.") == (status == "undecided")


def test_of_no_difference_the_largest_is_told_first(tmp_path: Path) -> None:
    for size, shift in zip(BATCH_SIZES, (0.1, -0.9, 0.4), strict=True):
        put(Results(tmp_path), row_config(DATASET, 1, size), 60.0 + shift)
        put(Results(tmp_path), row_config(DATASET, 2, size), 60.0)
    told = re.findall(r"batch (\d+)", verdict(Results(tmp_path), "replacement").text)
    assert told == ["256", "256", "512", "512", "128", "128"]


def test_the_gap_between_rows_1_and_3_closes(tmp_path: Path) -> None:
    results = Results(tmp_path)
    for size, shift in ((128, 3.0), (512, 0.1)):
        put(results, row_config(DATASET, 1, size), 60.0, seeds=SEEDS)
        put(results, row_config(DATASET, 3, size), 60.0 + shift, seeds=SEEDS)
    assert verdict(results, "gap-closes").status == "undecided"
    assert verdict(results, "gap-closes", SEEDS).status == "confirmed"


def put_table(
    results: Results, changes: dict[tuple[int, tuple[int, int] | None], float], seeds: tuple[int, ...] = SEEDS
) -> None:
    """Put the accuracies of the paper's table, but for some."""
    for row in BATCH_SIZE_TABLE:
        setup = None if row.shape is None else (row.shape.n_shot, row.shape.images_per_class)
        mean = changes.get((row.batch_size, setup), row.accuracy[1].mean)
        put(results, setup_config(DATASET, "prototypical", row.batch_size, setup), mean, seeds=seeds)


def test_the_papers_own_table_has_its_ranking_and_its_exceptions(tmp_path: Path) -> None:
    put_table(Results(tmp_path), {})
    ranking, exceptions = (verdict(Results(tmp_path), name, SEEDS) for name in ("ranking", "ranking-exceptions"))
    assert ranking.status == "confirmed"
    assert "Batch 512, 5-shot: rank correlation 0.96." in ranking.text
    assert exceptions.status == "confirmed"


def test_a_setup_with_fewer_pairs_above_one_with_more_contradicts_the_ranking(tmp_path: Path) -> None:
    put_table(Results(tmp_path), {(256, (1, 32)): 73.5})  # above some that are no neighbours of it, below others
    found = verdict(Results(tmp_path), "ranking", SEEDS)
    assert found.status == "contradicted"
    assert "PN 5-shot m+n=32 minus PN 1-shot m+n=32, batch 256, 1-shot: −0.9" in found.text
    assert "PN 5-shot m+n=8 minus" not in found.text


def test_a_setup_that_is_level_leaves_the_ranking_open(tmp_path: Path) -> None:
    put_table(Results(tmp_path), {(256, (1, 8)): 72.53})  # as 5-shot m+n=32, which has more pairs
    assert verdict(Results(tmp_path), "ranking", SEEDS).status == "undecided"


def test_an_exception_that_is_none_is_said(tmp_path: Path) -> None:
    put_table(Results(tmp_path), {(128, (1, 8)): 60.0})  # now below 5-shot m+n=32, as its pairs would have it
    ranking, exceptions = (verdict(Results(tmp_path), name, SEEDS) for name in ("ranking", "ranking-exceptions"))
    assert ranking.status == "confirmed"
    assert exceptions.status == "contradicted"
    assert "PN 1-shot m+n=8 minus PN 5-shot m+n=32, batch 128" in exceptions.text


@pytest.mark.parametrize(
    ("changes", "status"),
    [({}, "confirmed"), ({(256, (1, 16)): 71.0}, "undecided"), ({(256, (1, 16)): 74.0}, "contradicted")],
)
def test_setups_that_figure_2_leaves_out_are_under_every_line(
    changes: dict[tuple[int, tuple[int, int] | None], float], status: str, tmp_path: Path
) -> None:
    put_table(Results(tmp_path), changes, seeds=(0,))  # with one shot both networks are one
    for size in BATCH_SIZES:
        for setup in ((5, 16), (5, 8), (5, 32)):
            put(Results(tmp_path), setup_config(DATASET, "matching", size, setup), 78.0)
    found = verdict(Results(tmp_path), "left-out-setups")
    assert found.status == status
    if changes:
        assert "PN 1-shot m+n=8 minus PN 1-shot m+n=16, batch 256, centroid, 1-shot: " in found.text


@pytest.mark.parametrize("worse", ["prototypical", "matching"])
def test_five_shots_have_to_be_better_for_both_networks(worse: str, tmp_path: Path) -> None:
    results = Results(tmp_path)
    for size in (128, 256, 512):
        put(results, setup_config(DATASET, "prototypical", size, (1, 8)), 60.0)  # the same for both
        for method in ("prototypical", "matching"):
            put(results, setup_config(DATASET, method, size, (5, 8)), 58.0 if method == worse else 62.0)
    found = verdict(results, "five-shots")
    assert found.status == "contradicted"
    assert found.text.startswith("Contradicted by 6 of 12: ")
    what = {"prototypical": "PN", "matching": "MN"}[worse]
    classifier = {"prototypical": "centroid", "matching": "soft"}[worse]
    assert f"{what} 5-shot minus 1-shot training, m+n=8, batch 128, {classifier}, 1-shot: −" in found.text


def test_a_comparison_says_by_which_classifier(tmp_path: Path) -> None:
    results = Results(tmp_path)
    for method, mean in (("nca", 62.0), ("prototypical", 60.0), ("matching", 61.0)):
        put(results, PRESETS[f"{DATASET}-{method}"], mean, seeds=SEEDS)
    found = verdict(results, "nca-on-test", SEEDS).text
    for what in ("NCA minus PN, centroid", "NCA minus MN, soft"):
        assert all(f"{what}, {shot}-shot: +" in found for shot in (1, 5))


def test_fine_tuning_is_judged_on_the_last_layer_and_on_several(tmp_path: Path) -> None:
    results, config = Results(tmp_path), PRESETS[f"{DATASET}-nca"]
    plain, tuned, layers, both = (
        Measurement("test", 5, "centroid", layers, adapted)
        for layers in ((), LAYERS)
        for adapted in (None, "fine-tuned")
    )
    put(results, config, 80.0, means={plain: 80.0, tuned: 82.0, layers: 82.0, both: 80.0})
    found = verdict(results, "fine-tuning")
    assert found.status == "contradicted"
    assert found.text.startswith("Contradicted by 1 of 2: fine-tuned minus plain, several layers, 5-shot: −2.0")
    put(results, config, 80.0, means={plain: 80.0, tuned: 82.0, layers: 82.0, both: 84.0})
    assert verdict(results, "fine-tuning").status == "confirmed"
    put(results, config, 80.0, means={plain: 80.0, tuned: 80.8, layers: 82.0, both: 82.8})
    assert verdict(results, "fine-tuning").status == "undecided"  # of one network


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
    found = verdict(results, "on-the-curve", SEEDS)
    assert found.status == status
    assert re.search(" minus the curve at (22|26|43|47) % of the pairs, ", found.text)
    if not off:  # a curve that rises, whatever lies on it
        assert {verdict(results, name, SEEDS).status for name in ("subsampling", "along-the-curve")} == {"confirmed"}
        for method in ("prototypical", "matching"):  # better than m+n=8 with its more pairs: an exception of Appendix E
            put(results, setup_config(DATASET, method, 256, (5, 16)), 72.0, seeds=SEEDS)
        assert verdict(results, "along-the-curve", SEEDS).status == "confirmed"


@pytest.mark.parametrize("name", ["subsampling", "along-the-curve"])
def test_a_fraction_that_is_better_than_all_pairs_contradicts(name: str, tmp_path: Path) -> None:
    for fraction in FRACTIONS:
        put(Results(tmp_path), subsampled(DATASET, fraction), 80.0 if fraction == 0.8 else 75 + 2 * fraction)
    found = verdict(Results(tmp_path), name)
    assert found.status == "contradicted"
    assert "Contradicted by 3 of 18: NCA with 100 % minus 80 % of the pairs, " in found.text
    put(Results(tmp_path), subsampled(DATASET, 0.8), 77.5)
    assert verdict(Results(tmp_path), name).status == "undecided"  # one seed, and half a point


@pytest.mark.parametrize(
    ("worse", "seeds", "status", "begins"),
    [
        (0.7, SEEDS, "confirmed", "row 5 minus row 6, batch "),
        (0.7, (0,), "undecided", "Undecided for 6 of 6: "),
        (4.0, (0,), "confirmed", "row 5 minus row 6, batch "),
        (-4.0, (0,), "contradicted", "Contradicted by 6 of 6: "),
    ],
)
def test_no_prototypes_are_to_be_worse(
    worse: float, seeds: tuple[int, ...], status: str, begins: str, tmp_path: Path
) -> None:
    for size in BATCH_SIZES:
        put(Results(tmp_path), row_config(DATASET, 5, size), 70.0, seeds=seeds)
        put(Results(tmp_path), row_config(DATASET, 6, size), 70.0 - worse, seeds=seeds)
    found = verdict(Results(tmp_path), "no-prototypes", seeds)
    assert found.status == status
    assert found.text.startswith(begins)


def test_rows_of_the_ablations_are_held_against_those_that_the_paper_names(tmp_path: Path) -> None:
    """Row 3 is above all rows by soft assignment, and under row 7 by the nearest centroid."""
    centroids = {3: 72.0, 4: 66.0, 5: 68.0, 6: 67.0, 7: 75.0}
    for size in BATCH_SIZES:
        for row, mean in centroids.items():
            soft = {Measurement("val", shot, "soft"): 69.0 if row == 3 else 65.0 for shot in (1, 5)}
            put(Results(tmp_path), row_config(DATASET, row, size), mean, means=soft)
    said = {name: verdict(Results(tmp_path), name) for name in ("no-separation", "together", "matching")}
    assert said["no-separation"].status == "confirmed"
    assert re.search("row 7 minus row 5, batch .*; and 6 more", said["no-separation"].text)  # row 6, which is lower
    assert said["together"].status == "contradicted"
    assert said["together"].text.startswith("Contradicted by 6 of 12: row 3 minus row 7, batch ")
    assert said["matching"].status == "confirmed"
    assert re.search("row 3 minus row [46], batch (128|256|512), soft, 5-shot: [+]4.00", said["matching"].text)


@pytest.mark.parametrize(
    ("better", "seeds", "status"),
    [
        (3.0, (0,), "confirmed"),
        (1.5, (0,), "undecided"),
        (1.5, SEEDS, "confirmed"),
        (0.5, SEEDS, "contradicted"),  # better, and not considerably
    ],
)
def test_the_papers_schedule_is_to_be_considerably_better(
    better: float, seeds: tuple[int, ...], status: str, tmp_path: Path
) -> None:
    for short in ("PN", "NCA"):
        put(Results(tmp_path), schedule_config(DATASET, f"{short} (SimpleShot's schedule)"), 60.0, seeds=seeds)
        put(Results(tmp_path), schedule_config(DATASET, f"{short} (the paper's)"), 60.0 + better, seeds=seeds)
    found = verdict(Results(tmp_path), "schedule", seeds)
    assert found.status == status
    assert "NCA, the paper's schedule minus SimpleShot's, 5-shot: +" in found.text


def test_nca_is_held_against_both_supervised_contrastive_losses(tmp_path: Path) -> None:
    for row, mean in zip(SUPCON_ROWS, (60.0, 66.0, 70.0), strict=True):
        put(Results(tmp_path), supcon_config(DATASET, row), mean)
    assert verdict(Results(tmp_path), "contrastive").status == "confirmed"
    put(Results(tmp_path), supcon_config(DATASET, "SupCon, Khosla et al.'s"), 75.0)
    found = verdict(Results(tmp_path), "contrastive")
    assert found.status == "contradicted"
    assert found.text.startswith("Contradicted by 2 of 4: NCA minus SupCon, Khosla et al.'s, ")


@pytest.mark.parametrize(
    ("one_shot", "five_shot", "status", "begins"),
    [
        (-12.0, -8.0, "confirmed", "It loses 8.0 to 12.0 points. NCA, DropBlock minus NCA, 5-shot: −8.00 "),
        (-4.0, -4.0, "confirmed", "It loses 4.0 points. "),
        (-4.0, 0.0, "undecided", "It loses 4.0 points in 1 of 2. Undecided for 1 of 2: "),
        (0.0, 0.0, "undecided", "Undecided for 2 of 2: "),
        (4.0, -4.0, "contradicted", "It loses 4.0 points in 1 of 2. Contradicted by 1 of 2: "),
    ],
)
def test_what_does_not_help_and_costs_says_so(
    one_shot: float, five_shot: float, status: str, begins: str, tmp_path: Path
) -> None:
    means = {Measurement("val", 1, "centroid"): 60.0 + one_shot, Measurement("val", 5, "centroid"): 60.0 + five_shot}
    put(Results(tmp_path), choice_config(DATASET, CHOICES[0]), 60.0)
    put(Results(tmp_path), choice_config(DATASET, CHOICES[3]), 60.0, means=means)
    found = verdict(Results(tmp_path), "dropblock")
    assert found.status == status
    assert found.text.startswith(begins)


def test_a_statement_is_judged_on_the_datasets_that_it_is_about(tmp_path: Path) -> None:
    found = Found(Results(tmp_path), PAPER, (0,))
    names = {
        dataset: {claim.name for claim, _ in check_claims(found, dataset)}
        for dataset in ("cifar-fs", "mini-imagenet", "tiered-imagenet")
    }
    assert names["cifar-fs"] == {claim.name for claim in CLAIMS}
    assert names["cifar-fs"] - names["mini-imagenet"] == {"epochs"}  # of which the paper says so on CIFAR-FS alone
    assert names["tiered-imagenet"] == {"more-pairs", "nca-on-test", "our-episodes"}


@pytest.mark.parametrize("dataset", ["cifar-fs", "mini-imagenet", "tiered-imagenet"])
def test_every_training_that_a_claim_looks_at_is_some_recipes(dataset: str) -> None:
    """A claim about trainings that no recipe runs could never be checked."""
    recipes = [recipe for recipe in RECIPES.values() if dataset in recipe.datasets]
    wanted = {run_id(one.config) for recipe in recipes for one in recipe.wanted(dataset)}
    asked: set[str] = set()

    class Listening(Found):
        def runs(self, config: TrainConfig) -> list[RunResult]:
            asked.add(run_id(self.scale.change(config)))
            return []

    check_claims(Listening(Results(Path("/nowhere")), PAPER, (0,)), dataset)
    assert asked
    assert asked <= wanted
