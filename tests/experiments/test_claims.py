"""Statements, checked on results that are made up so that the answer is known."""

from __future__ import annotations

import math
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
from made_up import DATASET, SEEDS, make_up, put, verdict

from nearshot.experiments.claims import CLAIMS, check_claims
from nearshot.experiments.identity import run_id
from nearshot.experiments.paper import BATCH_SIZE_TABLE, BATCH_SIZES
from nearshot.experiments.recipe import Found
from nearshot.experiments.recipes import RECIPES
from nearshot.experiments.recipes.ablations import row_config
from nearshot.experiments.recipes.batch_size import IN_FIGURE, METHODS, SETUPS, setup_config
from nearshot.experiments.recipes.choices import choice_config, schedule_config
from nearshot.experiments.recipes.comparison import SUPCON_ROWS, supcon_config
from nearshot.experiments.recipes.features import CLOSEST, LAYERS
from nearshot.experiments.recipes.pair_subsampling import FRACTIONS, share_of_pairs, subsampled
from nearshot.experiments.results import Measurement, Results, RunResult
from nearshot.experiments.scales import PAPER, QUICK
from nearshot.training import PRESETS, TrainConfig
from nearshot.training.config import differences

NCA = PRESETS[f"{DATASET}-nca"]
ONE = (0,)
Setup = tuple[int, int] | None


def test_what_was_judged_comes_first_and_in_the_papers_order(tmp_path: Path) -> None:
    def checked(results: Results) -> list[tuple[str, str]]:
        return [(claim.name, one.status) for claim, one in check_claims(Found(results, PAPER, ONE), DATASET)]

    order = [claim.name for claim in CLAIMS]
    nothing = checked(Results(tmp_path / "nothing"))
    assert nothing == [("more-pairs", "confirmed"), *((name, "not yet run") for name in order[1:])]  # which is counted
    some = checked(make_up(tmp_path, ["schedule", "floor"], PAPER, dataset=DATASET))
    judged, waiting = ([name for name, status in some if (status == "not yet run") == so] for so in (False, True))
    assert [name for name, _ in some] == judged + waiting
    assert "schedule" in judged
    for part in (judged, waiting):
        assert part == sorted(part, key=order.index)


@pytest.mark.parametrize("dataset", ["cifar-fs", "mini-imagenet", "tiered-imagenet"])
def test_every_training_that_a_claim_looks_at_is_some_recipes(dataset: str) -> None:
    """A claim about trainings that no recipe runs could never be checked."""
    recipes = [recipe for recipe in RECIPES.values() if dataset in recipe.datasets]
    wanted = {run_id(config) for recipe in recipes for config in recipe.wanted(dataset)}
    asked: set[str] = set()

    class Listening(Found):
        def runs(self, config: TrainConfig) -> list[RunResult]:
            asked.add(run_id(self.scale.change(config)))
            return []

    checked = check_claims(Listening(Results(Path("/nowhere")), PAPER, ONE), dataset)
    assert asked
    assert asked <= wanted
    skipped = {claim.name for claim in CLAIMS} - {claim.name for claim, _ in checked}
    if dataset == "tiered-imagenet":
        assert {claim.name for claim, _ in checked} == {"more-pairs", "nca-on-test", "competitive", "our-episodes"}
    else:  # that more epochs add so little is said of CIFAR-FS alone
        assert skipped == ({"epochs"} if dataset == "mini-imagenet" else set())


# What is compared, the first minus the second.
COMPARED: dict[str, tuple[list[TrainConfig], list[TrainConfig]]] = {
    "nca-best": (
        [setup_config(DATASET, "nca", size, None) for size in BATCH_SIZES],
        [setup_config(DATASET, method, size, one) for size in BATCH_SIZES for one in SETUPS for method in METHODS],
    ),
    "our-episodes": (
        [PRESETS[f"{DATASET}-{method}"] for method in METHODS],
        [PRESETS[f"{DATASET}-{method}-snell"] for method in METHODS],
    ),
    "schedule": (
        [schedule_config(DATASET, f"{short} (the paper's)") for short in ("PN", "NCA")],
        [schedule_config(DATASET, f"{short} (SimpleShot's schedule)") for short in ("PN", "NCA")],
    ),
}
for name, *rows in (("replacement", 1, 2), ("no-prototypes", 5, 6)):
    first, second = ([row_config(DATASET, row, size) for size in BATCH_SIZES] for row in rows)
    COMPARED[name] = first, second
for name, *choices in (
    ("euclidean", "MN, Euclidean", "MN, cosine"),
    ("projection", "NCA, projection to 128", "NCA"),
    ("dropblock", "NCA, DropBlock", "NCA"),
    ("epochs", "NCA, 240 epochs", "NCA"),
):
    first, second = ([choice_config(DATASET, choice)] for choice in choices)
    COMPARED[name] = first, second


@pytest.mark.parametrize(
    ("name", "shift", "seeds", "status", "text"),
    [
        ("nca-best", 2.0, ONE, "confirmed", "NCA minus PN"),
        ("nca-best", -0.7, ONE, "undecided", "Undecided for 72 of 72: "),
        ("nca-best", -4.0, ONE, "contradicted", "Contradicted by 72 of 72: "),
        ("our-episodes", 2.0, SEEDS, "confirmed", "PN, ours minus Snell's episodes, centroid, 1-shot: +"),
        ("our-episodes", -2.0, SEEDS, "contradicted", ""),
        ("euclidean", 2.0, SEEDS, "confirmed", "MN, Euclidean minus MN, cosine, soft, "),
        ("euclidean", -2.0, SEEDS, "contradicted", ""),
        ("projection", 2.0, SEEDS, "contradicted", ""),
        ("projection", -2.0, SEEDS, "confirmed", ""),
        ("epochs", 2.0, SEEDS, "contradicted", ""),
        ("epochs", -2.0, SEEDS, "contradicted", ""),
        ("epochs", 0.5, SEEDS, "confirmed", ""),
        ("epochs", 0.0, SEEDS, "undecided", ""),
        ("epochs", 1.6, ONE, "undecided", ""),  # of one seed, this may well be under one, and may be over two
        ("epochs", 1.6, SEEDS, "contradicted", ""),
        ("replacement", 0.1, SEEDS, "confirmed", ""),
        ("replacement", 3.0, ONE, "contradicted", ""),
        ("replacement", 0.1, ONE, "undecided", "). One seed cannot confirm this."),
        ("no-prototypes", 0.7, SEEDS, "confirmed", "row 5 minus row 6, batch "),
        ("no-prototypes", 0.7, ONE, "undecided", "Undecided for 6 of 6: "),
        ("no-prototypes", 4.0, ONE, "confirmed", "row 5 minus row 6, batch "),
        ("no-prototypes", -4.0, ONE, "contradicted", "Contradicted by 6 of 6: "),
        ("schedule", 3.0, ONE, "confirmed", "NCA, the paper's schedule minus SimpleShot's, 5-shot: +"),
        ("schedule", 1.5, ONE, "undecided", ""),
        ("schedule", 1.5, SEEDS, "confirmed", ""),
        ("schedule", 0.5, SEEDS, "contradicted", ""),  # better, and not considerably
    ],
)
def test_a_statement_has_a_direction_and_needs_seeds(
    name: str, shift: float, seeds: tuple[int, ...], status: str, text: str, tmp_path: Path
) -> None:
    results = Results(tmp_path)
    for configs, mean in zip(COMPARED[name], (60.0 + shift, 60.0), strict=True):
        for config in configs:
            put(results, config, mean, seeds=seeds)
    found = verdict(results, name, seeds)
    assert found.status == status
    assert text in found.text
    assert "not run yet" not in found.text


def measured(split: str, shots: tuple[int, ...], *kinds: dict[str, Any]) -> list[Measurement]:
    return [Measurement(split, shot, **{"classifier": "centroid"} | kind) for kind in kinds for shot in shots]


TREATED = [{"how": one} for one in ("raw", "centred", "normalised")]
TUNED = [{"layers": layers, "how": how} for layers in ((), LAYERS) for how in ("", CLOSEST)]
ORDERED = [Measurement(split, 5, one) for one in ("knn", "soft", "centroid") for split in ("val", "test")]


@pytest.mark.parametrize(
    ("name", "measurements", "means", "status"),
    [
        ("treatment", measured("val", (1, 5), {}, *TREATED), (62, 62, *[60] * 6), "confirmed"),
        ("treatment", measured("val", (1, 5), {}, *TREATED), (58, 58, *[60] * 6), "contradicted"),
        ("layers", measured("test", (1, 5), {"layers": LAYERS}, {}), (62, 62, 60, 60), "confirmed"),
        ("layers", measured("test", (1, 5), {"layers": LAYERS}, {}), (58, 58, 60, 60), "contradicted"),
        ("mahalanobis", measured("test", (5,), {"how": "mahalanobis 5 steps"}, {}), (62, 60), "contradicted"),
        ("mahalanobis", measured("test", (5,), {"how": "mahalanobis 5 steps"}, {}), (58, 60), "confirmed"),
        ("classifiers", ORDERED, (60, 60, 61, 61, 62, 62), "confirmed"),
        ("classifiers", ORDERED, (61, 61, 60, 60, 62, 62), "contradicted"),
        ("fine-tuning", measured("test", (5,), *TUNED), (80, 82, 82, 80), "contradicted"),  # with several layers
        ("fine-tuning", measured("test", (5,), *TUNED), (80, 82, 82, 84), "confirmed"),
        ("fine-tuning", measured("test", (5,), *TUNED), (80, 80.8, 82, 82.8), "undecided"),  # of one network
    ],
)
def test_a_statement_about_measurements_has_a_direction(
    name: str, measurements: list[Measurement], means: tuple[float, ...], status: str, tmp_path: Path
) -> None:
    results = Results(tmp_path)
    put(results, NCA, 50.0, means=dict(zip(measurements, means, strict=True)))
    assert verdict(results, name).status == status


@pytest.mark.parametrize(
    ("at_128", "at_512", "seeds", "status"),
    [
        (3.0, 0.1, ONE, "undecided"),
        (3.0, 0.1, SEEDS, "confirmed"),
        (3.0, 3.0, SEEDS, "contradicted"),
        (-3.0, 0.1, SEEDS, "contradicted"),
        (3.0, -3.0, SEEDS, "contradicted"),
        (0.0, 0.0, SEEDS, "undecided"),
    ],
)
def test_the_gap_between_rows_1_and_3_closes(
    at_128: float, at_512: float, seeds: tuple[int, ...], status: str, tmp_path: Path
) -> None:
    results = Results(tmp_path)
    for size, shift in ((128, at_128), (512, at_512)):
        put(results, row_config(DATASET, 1, size), 60.0, seeds=seeds)
        put(results, row_config(DATASET, 3, size), 60.0 + shift, seeds=seeds)
    assert verdict(results, "gap-closes", seeds).status == status


@pytest.mark.parametrize(
    ("row_1", "row_5", "status"),
    [
        (60.0, 59.4, "confirmed"),
        (60.7, 58.0, "confirmed"),  # not a point above
        (63.0, 58.0, "contradicted"),
        (60.0, 60.6, "contradicted"),
        (60.0, 60.0, "undecided"),
    ],
)
def test_row_3_recovers_what_row_5_lost(row_1: float, row_5: float, status: str, tmp_path: Path) -> None:
    results = Results(tmp_path)
    for size in BATCH_SIZES:
        for row, mean in ((1, row_1), (3, 60.0), (5, row_5)):
            config = row_config(DATASET, row, size)
            put(results, config, mean, seeds=SEEDS, spread=0.0 if row == 3 else 0.01)
    assert verdict(results, "recovered", SEEDS).status == status


def test_rows_of_the_ablations_are_held_against_those_that_the_paper_names(tmp_path: Path) -> None:
    """Row 3 is above all rows by soft assignment, and under row 7 by the nearest centroid."""
    results = Results(tmp_path)
    centroids = {3: 72.0, 4: 66.0, 5: 68.0, 6: 67.0, 7: 75.0}
    for size in BATCH_SIZES:
        for row, mean in centroids.items():
            soft = {Measurement("val", shot, "soft"): 69.0 if row == 3 else 65.0 for shot in (1, 5)}
            put(results, row_config(DATASET, row, size), mean, means=soft)
    for name, status, text in (
        ("no-separation", "confirmed", "row 7 minus row 5, batch .*; and 6 more"),  # row 6, which is lower
        ("together", "contradicted", "^Contradicted by 6 of 12: row 3 minus row 7, batch "),
        ("matching", "confirmed", "row 3 minus row [46], batch (128|256|512), soft, 5-shot: [+]4.00"),
    ):
        found = verdict(results, name)
        assert found.status == status
        assert re.search(text, found.text)


@pytest.fixture(scope="module")
def papers_table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Results with the accuracies of Appendix E's table, and those of Matching Networks with five shots above."""
    folder = tmp_path_factory.mktemp("table")
    results = Results(folder)
    for row in BATCH_SIZE_TABLE:
        setup = None if row.shape is None else (row.shape.n_shot, row.shape.images_per_class)
        config = setup_config(DATASET, "prototypical", row.batch_size, setup)
        put(results, config, row.accuracy[1].mean, seeds=SEEDS)
    for size in BATCH_SIZES:  # with one shot both networks are one
        for setup in IN_FIGURE[:3]:
            put(results, setup_config(DATASET, "matching", size, setup), 78.0)
    return folder


@pytest.mark.parametrize(
    ("changed", "mean", "name", "status", "text"),
    [
        (None, 0, "ranking", "confirmed", "Batch 512, 5-shot: rank correlation 0.96."),
        (None, 0, "ranking-exceptions", "confirmed", ""),
        # Above some that are no neighbours of it, below others.
        (
            *((256, (1, 32)), 73.5, "ranking", "contradicted"),
            "PN 5-shot m+n=32 minus PN 1-shot m+n=32, batch 256, 1-shot: −0.9",
        ),
        ((256, (1, 8)), 72.53, "ranking", "undecided", ""),  # as 5-shot m+n=32, which has more pairs
        # Now below 5-shot m+n=32, as its pairs would have it: no exception.
        ((128, (1, 8)), 60.0, "ranking", "confirmed", ""),
        (
            (128, (1, 8)),
            60.0,
            "ranking-exceptions",
            "contradicted",
            "PN 1-shot m+n=8 minus PN 5-shot m+n=32, batch 128",
        ),
        (None, 0, "left-out-setups", "confirmed", ""),
        ((256, (1, 16)), 71.0, "left-out-setups", "undecided", "PN 1-shot m+n=8 minus PN 1-shot m+n=16, batch 256, "),
        ((256, (1, 16)), 74.0, "left-out-setups", "contradicted", "batch 256, centroid, 1-shot: "),
    ],
)
def test_episodes_are_ranked_by_their_pairs(
    changed: tuple[int, Setup] | None,
    mean: float,
    name: str,
    status: str,
    text: str,
    papers_table: Path,
    tmp_path: Path,
) -> None:
    results = Results(shutil.copytree(papers_table, tmp_path / "results"))
    if changed:
        put(results, setup_config(DATASET, "prototypical", *changed), mean, seeds=SEEDS)
    found = verdict(results, name, ONE if name == "left-out-setups" else SEEDS)
    assert found.status == status
    assert text in found.text


@pytest.mark.parametrize(("worse", "what"), [("prototypical", "PN centroid"), ("matching", "MN soft")])
def test_five_shots_have_to_be_better_for_both_networks(worse: str, what: str, tmp_path: Path) -> None:
    results = Results(tmp_path)
    for size in BATCH_SIZES:
        put(results, setup_config(DATASET, "prototypical", size, (1, 8)), 60.0)  # the same for both
        for method in METHODS:
            put(results, setup_config(DATASET, method, size, (5, 8)), 58.0 if method == worse else 62.0)
    found = verdict(results, "five-shots")
    assert found.status == "contradicted"
    assert found.text.startswith("Contradicted by 6 of 12: ")
    short, classifier = what.split()
    assert f"{short} 5-shot minus 1-shot training, m+n=8, batch 128, {classifier}, 1-shot: −" in found.text


def test_dropblock_is_judged_on_one_architecture() -> None:
    without, with_it = (choice_config(DATASET, choice) for choice in ("NCA", "NCA, DropBlock"))
    assert differences(without, with_it) == {"backbone": ("resnet12", "resnet12-dropblock")}
    small = [QUICK.change(config) for config in (without, with_it)]
    assert differences(*small) == {"backbone": ("conv4-32", "conv4-32-dropblock")}


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
    results = Results(tmp_path)
    means = {Measurement("val", 1, "centroid"): 60.0 + one_shot, Measurement("val", 5, "centroid"): 60.0 + five_shot}
    put(results, choice_config(DATASET, "NCA"), 60.0)
    put(results, choice_config(DATASET, "NCA, DropBlock"), 60.0, means=means)
    found = verdict(results, "dropblock")
    assert found.status == status
    assert found.text.startswith(begins)


def test_a_projection_is_to_help_on_one_dataset_alone(tmp_path: Path) -> None:
    results = Results(tmp_path)
    (claim,) = (one for one in CLAIMS if one.name == "projection")
    for choice, mean in (("NCA, projection to 128", 62.0), ("NCA", 60.0)):
        put(results, choice_config("mini-imagenet", choice), mean, seeds=SEEDS)
    assert claim.check(Found(results, PAPER, SEEDS), "mini-imagenet").status == "confirmed"


@pytest.mark.parametrize(("off", "status"), [(0.0, "confirmed"), (3.0, "contradicted"), (-3.0, "contradicted")])
def test_episodes_are_held_against_the_curve_at_their_share_of_pairs(off: float, status: str, tmp_path: Path) -> None:
    results = Results(tmp_path)

    def height(share: float) -> float:  # a straight line over the logarithm, which is what is drawn between points
        return 70 + 5 * math.log10(share)

    for fraction in FRACTIONS:
        put(results, subsampled(DATASET, fraction), height(fraction), seeds=SEEDS)
    for method in METHODS:
        for setup in IN_FIGURE:
            config = setup_config(DATASET, method, 256, setup)
            put(results, config, height(share_of_pairs(config)) + off, seeds=SEEDS)
    found = verdict(results, "on-the-curve", SEEDS)
    assert found.status == status
    assert re.search(" minus the curve at (22|26|43|47) % of the pairs, ", found.text)
    if not off:  # a curve that rises, whatever lies on it
        assert {verdict(results, name, SEEDS).status for name in ("subsampling", "along-the-curve")} == {"confirmed"}
        for method in METHODS:  # better than m+n=8 with its more pairs: an exception of Appendix E
            put(results, setup_config(DATASET, method, 256, (5, 16)), 72.0, seeds=SEEDS)
        assert verdict(results, "along-the-curve", SEEDS).status == "confirmed"


@pytest.mark.parametrize("name", ["subsampling", "along-the-curve"])
def test_a_fraction_that_is_better_than_all_pairs_contradicts(name: str, tmp_path: Path) -> None:
    results = Results(tmp_path)
    for fraction in FRACTIONS:
        put(results, subsampled(DATASET, fraction), 80.0 if fraction == 0.8 else 75 + 2 * fraction)
    found = verdict(results, name)
    assert found.status == "contradicted"
    assert "Contradicted by 3 of 18: NCA with 100 % minus 80 % of the pairs, " in found.text
    put(results, subsampled(DATASET, 0.8), 77.5)
    assert verdict(results, name).status == "undecided"  # one seed, and half a point


def test_nca_is_held_against_both_supervised_contrastive_losses(tmp_path: Path) -> None:
    results = Results(tmp_path)
    for row, mean in zip(SUPCON_ROWS, (60.0, 66.0, 70.0), strict=True):
        put(results, supcon_config(DATASET, row), mean)
    assert verdict(results, "contrastive").status == "confirmed"
    put(results, supcon_config(DATASET, "SupCon, Khosla et al.'s"), 75.0)
    found = verdict(results, "contrastive")
    assert found.status == "contradicted"
    assert found.text.startswith("Contradicted by 2 of 4: NCA minus SupCon, Khosla et al.'s, ")


def test_fine_tuning_is_judged_by_the_procedure_that_is_closest_to_the_published(tmp_path: Path) -> None:
    results, frozen = (
        Results(tmp_path),
        measured("test", (5,), *({**one, "how": "fine-tuned"} for one in TUNED[1::2])),
    )
    put(results, NCA, 50.0, means=dict.fromkeys(frozen, 40.0))
    status, text = verdict(results, "fine-tuning")
    assert status == "not yet run"
    assert "batch norm" in text  # says what is judged


@pytest.mark.parametrize(
    ("one", "five", "status"),
    [(75.0, 87.0, "confirmed"), (75.0, 81.0, "contradicted"), (72.0, 87.0, "undecided")],
)
def test_competitive_is_above_the_median_of_the_quoted_methods(
    one: float, five: float, status: str, tmp_path: Path
) -> None:
    medians = {1: (70.76 + 71.5) / 2, 5: (84.2 + 84.7) / 2}  # of the four that have CIFAR-FS
    results = Results(tmp_path)
    put(results, NCA, 50.0, means={Measurement("test", 1, "centroid"): one, Measurement("test", 5, "centroid"): five})
    found = verdict(results, "competitive")
    assert found.status == status
    assert f"{medians[5 if status == 'contradicted' else 1]:.2f}" in found.text


@pytest.mark.parametrize(
    ("name", "better", "status"),
    [("sensitivity", 3.0, "confirmed"), ("sensitivity", -3.0, "contradicted"), ("sensitivity", 1.5, "undecided"),
     ("best-setup", 3.0, "confirmed"), ("best-setup", -3.0, "contradicted"), ("best-setup", 0.5, "undecided")],
)  # fmt: skip
def test_the_papers_best_episodes_are_compared_with_the_others(
    name: str, better: float, status: str, tmp_path: Path
) -> None:
    results = Results(tmp_path)
    for method in METHODS:
        for size in BATCH_SIZES:
            for setup in IN_FIGURE:
                is_best = setup == (5, 16) and (size == 512 or name == "sensitivity")
                put(results, setup_config(DATASET, method, size, setup), 60.0 + better * is_best)
    assert verdict(results, name).status == status
