"""Statements, checked on results that are made up so that the answer is known."""

import math
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.helpers.made_up import DATASET, SEEDS, make_up, put, verdict

from nearshot.paper.claims import CLAIMS, check_claims, judge
from nearshot.paper.claims.verdict import ABOVE
from nearshot.paper.differences import Difference
from nearshot.paper.identity import run_id
from nearshot.paper.numbers import BATCH_SIZE_TABLE, BATCH_SIZES
from nearshot.paper.recipe import Found
from nearshot.paper.recipes import RECIPES
from nearshot.paper.recipes.ablations import row_config
from nearshot.paper.recipes.batches import (
    FRACTIONS,
    IN_FIGURE,
    METHODS,
    SETUPS,
    setup_config,
    share_of_pairs,
    subsampled,
)
from nearshot.paper.recipes.choices import choice_config, schedule_config
from nearshot.paper.recipes.comparison import SUPCON_ROWS, supcon_config
from nearshot.paper.recipes.features import CLOSEST, LAYERS
from nearshot.paper.results import Measurement, Results, RunResult
from nearshot.paper.sizes import PAPER
from nearshot.training import PRESETS, TrainConfig

NCA = PRESETS[f"{DATASET}-nca"]
ONE = (0,)
Setup = tuple[int, int] | None


def test_what_was_judged_comes_first_and_in_the_papers_order(tmp_path: Path) -> None:
    order = [claim.name for claim in CLAIMS]
    results = make_up(tmp_path, ["schedule", "floor"], PAPER, dataset=DATASET)
    checked = check_claims(Found(results, PAPER, ONE), DATASET)
    judged, waiting = (
        [claim.name for claim, one in checked if (one.status == "not yet run") == so]
        for so in (False, True)
    )
    assert [claim.name for claim, _ in checked] == judged + waiting
    assert {"more-pairs", "schedule"} <= set(judged)
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
        assert {claim.name for claim, _ in checked} == {
            "more-pairs",
            "nca-on-test",
            "competitive",
            "our-episodes",
        }
    else:  # that more epochs add so little is said of CIFAR-FS alone
        assert skipped == ({"epochs"} if dataset == "mini-imagenet" else set())


def points(where: Callable[[int, Setup], bool]) -> list[TrainConfig]:
    """Return the runs of both networks with some batch sizes and setups."""
    chosen = [(size, setup) for size in BATCH_SIZES for setup in SETUPS if where(size, setup)]
    return [setup_config(DATASET, method, *point) for point in chosen for method in METHODS]


def rows(*numbers: int, sizes: tuple[int, ...] = BATCH_SIZES) -> list[list[TrainConfig]]:
    return [[row_config(DATASET, row, size) for size in sizes] for row in numbers]


def choices(*names: str) -> list[list[TrainConfig]]:
    return [[choice_config(DATASET, name)] for name in names]


# Groups of runs, each with one accuracy: what is compared, mostly the first minus the second.
NCA_RUNS, BEST = [setup_config(DATASET, "nca", size, None) for size in BATCH_SIZES], (5, 16)
GROUPS: dict[str, list[list[TrainConfig]]] = {
    "nca-best": [NCA_RUNS, points(lambda *at: True)],
    "our-episodes": [
        [PRESETS[f"{DATASET}-{method}{name}"] for method in METHODS] for name in ("", "-snell")
    ],
    "schedule": [
        [schedule_config(DATASET, f"{short} ({whose})") for short in ("PN", "NCA")]
        for whose in ("the paper's", "SimpleShot's schedule")
    ],
    "replacement": rows(1, 2),
    "no-prototypes": rows(5, 6),
    "recovered": rows(3, 1, 5),
    "gap-closes": rows(3, 1, sizes=(128,)) + rows(3, 1, sizes=(512,)),
    "euclidean": choices("MN, Euclidean", "MN, cosine"),
    "projection": choices("NCA, projection to 128", "NCA"),
    "epochs": choices("NCA, 240 epochs", "NCA"),
    "contrastive": [[supcon_config(DATASET, row)] for row in reversed(SUPCON_ROWS)],
    "sensitivity": [points(lambda _, setup: setup == BEST), points(lambda _, setup: setup != BEST)],
    "best-setup": [points(lambda *at: at == (512, BEST)), points(lambda *at: at != (512, BEST))],
    "five-shots": [
        [setup_config(DATASET, method, size, (shot, 8)) for size in BATCH_SIZES]
        for method, shot in (
            ("prototypical", 5),
            ("matching", 5),
            ("matching", 1),
        )  # of one shot both are the same
    ],
    "subsampling": [[subsampled(DATASET, fraction)] for fraction in FRACTIONS],
    "along-the-curve": [[subsampled(DATASET, fraction)] for fraction in FRACTIONS],
}
RISING = tuple(75 + 2 * fraction for fraction in FRACTIONS)
FALLS_AT_LAST = "Contradicted by 3 of 18: NCA with 100 % minus 80 % of the pairs, "


@pytest.mark.parametrize(
    ("name", "means", "seeds", "status", "text"),
    [
        ("nca-best", (62.0, 60), ONE, "confirmed", "NCA minus PN"),
        ("nca-best", (59.3, 60), ONE, "undecided", "Undecided for 72 of 72: "),
        ("nca-best", (56.0, 60), ONE, "contradicted", "Contradicted by 72 of 72: "),
        (
            "our-episodes",
            (62.0, 60),
            SEEDS,
            "confirmed",
            "PN, ours minus Snell's episodes, centroid, 1-shot: +",
        ),
        ("euclidean", (62.0, 60), SEEDS, "confirmed", "MN, Euclidean minus MN, cosine, soft, "),
        ("euclidean", (58.0, 60), SEEDS, "contradicted", ""),
        ("projection", (62.0, 60), SEEDS, "contradicted", ""),
        ("projection", (58.0, 60), SEEDS, "confirmed", ""),
        ("epochs", (62.0, 60), SEEDS, "contradicted", ""),
        ("epochs", (58.0, 60), SEEDS, "contradicted", ""),
        ("epochs", (60.5, 60), SEEDS, "confirmed", ""),
        ("replacement", (60.1, 60), SEEDS, "confirmed", ""),
        ("replacement", (63.0, 60), ONE, "contradicted", ""),
        ("no-prototypes", (60.7, 60), SEEDS, "confirmed", "row 5 minus row 6, batch "),
        ("no-prototypes", (56.0, 60), ONE, "contradicted", "Contradicted by 6 of 6: "),
        (
            "schedule",
            (63.0, 60),
            ONE,
            "confirmed",
            "NCA, the paper's schedule minus SimpleShot's, 5-shot: +",
        ),
        ("schedule", (61.5, 60), SEEDS, "confirmed", ""),
        ("schedule", (60.5, 60), SEEDS, "contradicted", ""),  # better, and not considerably
        ("recovered", (60, 60.0, 59.4), SEEDS, "confirmed", ""),
        ("recovered", (60, 60.7, 58.0), SEEDS, "confirmed", ""),  # not a point above
        ("recovered", (60, 63.0, 58.0), SEEDS, "contradicted", ""),
        ("recovered", (60, 60.0, 60.6), SEEDS, "contradicted", ""),
        ("gap-closes", (63.0, 60, 60.1, 60), SEEDS, "confirmed", ""),
        ("gap-closes", (63.0, 60, 63.0, 60), SEEDS, "contradicted", ""),
        ("gap-closes", (57.0, 60, 60.1, 60), SEEDS, "contradicted", ""),
        ("gap-closes", (63.0, 60, 57.0, 60), SEEDS, "contradicted", ""),
        ("contrastive", (70.0, 66.0, 60.0), ONE, "confirmed", ""),
        (
            "contrastive",
            (70.0, 75.0, 60.0),
            ONE,
            "contradicted",
            "by 2 of 4: NCA minus SupCon, Khosla et al.'s, ",
        ),
        ("sensitivity", (63.0, 60), ONE, "confirmed", ""),
        ("sensitivity", (57.0, 60), ONE, "contradicted", ""),
        ("best-setup", (63.0, 60), ONE, "confirmed", ""),
        ("best-setup", (57.0, 60), ONE, "contradicted", ""),
        (
            "five-shots",
            (58.0, 62, 60),
            ONE,
            "contradicted",
            "PN 5-shot minus 1-shot training, m+n=8, batch 128, cent",
        ),
        (
            "five-shots",
            (62.0, 58, 60),
            ONE,
            "contradicted",
            "MN 5-shot minus 1-shot training, m+n=8, batch 128, soft",
        ),
        ("subsampling", (*RISING[:-2], 80.0, 77.0), ONE, "contradicted", FALLS_AT_LAST),
        ("along-the-curve", (*RISING[:-2], 80.0, 77.0), ONE, "contradicted", FALLS_AT_LAST),
    ],
)
def test_a_statement_has_a_direction_and_needs_seeds(
    name: str,
    means: tuple[float, ...],
    seeds: tuple[int, ...],
    status: str,
    text: str,
    tmp_path: Path,
) -> None:
    results = Results(tmp_path)
    for number, (configs, mean) in enumerate(zip(GROUPS[name], means, strict=True)):
        for config in configs:
            put(
                results,
                config,
                mean,
                seeds=seeds,
                spread=0.01 if name == "recovered" and number else 0.0,
            )
    found = verdict(results, name, seeds)
    assert found.status == status
    assert text in found.text
    assert name == "along-the-curve" or "not run yet" not in found.text


def measured(split: str, shots: tuple[int, ...], *kinds: dict[str, Any]) -> list[Measurement]:
    return [
        Measurement(split, shot, **{"classifier": "centroid"} | kind)
        for kind in kinds
        for shot in shots
    ]


TREATED = [{"how": one} for one in ("raw", "centred", "normalised")]
TUNED = [{"layers": layers, "how": how} for layers in ((), LAYERS) for how in ("", CLOSEST)]
ORDERED = [
    Measurement(split, 5, one) for one in ("knn", "soft", "centroid") for split in ("val", "test")
]


FROZEN = [{**one, "how": "fine-tuned"} for one in TUNED[1::2]]
MEDIANS = {
    1: (70.76 + 71.5) / 2,
    5: (84.2 + 84.7) / 2,
}  # of the four quoted methods that have CIFAR-FS


@pytest.mark.parametrize(
    ("name", "measurements", "means", "status", "text"),
    [
        ("treatment", measured("val", (1, 5), {}, *TREATED), (62, 62, *[60] * 6), "confirmed", ""),
        (
            "treatment",
            measured("val", (1, 5), {}, *TREATED),
            (58, 58, *[60] * 6),
            "contradicted",
            "",
        ),
        (
            "layers",
            measured("test", (1, 5), {"layers": LAYERS}, {}),
            (62, 62, 60, 60),
            "confirmed",
            "",
        ),
        (
            "layers",
            measured("test", (1, 5), {"layers": LAYERS}, {}),
            (58, 58, 60, 60),
            "contradicted",
            "",
        ),
        (
            "mahalanobis",
            measured("test", (5,), {"how": "mahalanobis 5 steps"}, {}),
            (62, 60),
            "contradicted",
            "",
        ),
        (
            "mahalanobis",
            measured("test", (5,), {"how": "mahalanobis 5 steps"}, {}),
            (58, 60),
            "confirmed",
            "",
        ),
        ("classifiers", ORDERED, (60, 60, 61, 61, 62, 62), "confirmed", ""),
        ("classifiers", ORDERED, (61, 61, 60, 60, 62, 62), "contradicted", ""),
        (
            "fine-tuning",
            measured("test", (5,), *TUNED),
            (80, 82, 82, 80),
            "contradicted",
            "",
        ),  # with several layers
        ("fine-tuning", measured("test", (5,), *TUNED), (80, 82, 82, 84), "confirmed", ""),
        (
            "fine-tuning",
            measured("test", (5,), *FROZEN),
            (40, 40),
            "not yet run",
            "batch norm",
        ),  # says what is judged
        ("competitive", measured("test", (1, 5), {}), (75, 87), "confirmed", f"{MEDIANS[1]:.2f}"),
        (
            "competitive",
            measured("test", (1, 5), {}),
            (75, 81),
            "contradicted",
            f"{MEDIANS[5]:.2f}",
        ),
    ],
)
def test_a_statement_about_measurements_has_a_direction(
    name: str,
    measurements: list[Measurement],
    means: tuple[float, ...],
    status: str,
    text: str,
    tmp_path: Path,
) -> None:
    results = Results(tmp_path)
    put(results, NCA, 50.0, means=dict(zip(measurements, means, strict=True)))
    found = verdict(results, name)
    assert found.status == status
    assert text in found.text


def test_rows_of_the_ablations_are_held_against_those_that_the_paper_names(tmp_path: Path) -> None:
    """Row 3 is above all rows by soft assignment, and under row 7 by the nearest centroid."""
    results = Results(tmp_path)
    centroids = {3: 72.0, 4: 66.0, 5: 68.0, 6: 67.0, 7: 75.0}
    for size in BATCH_SIZES:
        for row, mean in centroids.items():
            soft = {Measurement("val", shot, "soft"): 69.0 if row == 3 else 65.0 for shot in (1, 5)}
            put(results, row_config(DATASET, row, size), mean, means=soft)
    for name, status, text in (
        (
            "no-separation",
            "confirmed",
            "row 7 minus row 5, batch .*; and 6 more",
        ),  # row 6, which is lower
        ("together", "contradicted", "^Contradicted by 6 of 12: row 3 minus row 7, batch "),
        (
            "matching",
            "confirmed",
            "row 3 minus row [46], batch (128|256|512), soft, 5-shot: [+]4.00",
        ),
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
        config = setup_config(DATASET, "prototypical", row.batch_size, row.setup)
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
            (256, (1, 32)),
            73.5,
            "ranking",
            "contradicted",
            "m+n=32 minus PN 1-shot m+n=32, batch 256, 1-shot: −0.9",
        ),
        (
            (256, (1, 8)),
            72.53,
            "ranking",
            "undecided",
            "",
        ),  # as 5-shot m+n=32, which has more pairs
        # Now below 5-shot m+n=32, as its pairs would have it: no exception.
        ((128, (1, 8)), 60.0, "ranking", "confirmed", ""),
        (
            (128, (1, 8)),
            60.0,
            "ranking-exceptions",
            "contradicted",
            "PN 1-shot m+n=8 minus PN 5-shot m+n=32, batch ",
        ),
        (None, 0, "left-out-setups", "confirmed", ""),
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


@pytest.mark.parametrize(
    ("one_shot", "five_shot", "status", "begins"),
    [
        (
            -12.0,
            -8.0,
            "confirmed",
            "It loses 8.0 to 12.0 points. NCA, DropBlock minus NCA, 5-shot: −8.00 ",
        ),
        (-4.0, 0.0, "undecided", "It loses 4.0 points in 1 of 2. Undecided for 1 of 2: "),
        (4.0, -4.0, "contradicted", "It loses 4.0 points in 1 of 2. Contradicted by 1 of 2: "),
    ],
)
def test_what_does_not_help_and_costs_says_so(
    one_shot: float, five_shot: float, status: str, begins: str, tmp_path: Path
) -> None:
    results = Results(tmp_path)
    means = {
        Measurement("val", 1, "centroid"): 60.0 + one_shot,
        Measurement("val", 5, "centroid"): 60.0 + five_shot,
    }
    put(results, choice_config(DATASET, "NCA"), 60.0)
    put(results, choice_config(DATASET, "NCA, DropBlock"), 60.0, means=means)
    found = verdict(results, "dropblock")
    assert found.status == status
    assert found.text.startswith(begins)


def test_a_projection_is_to_help_on_one_dataset_alone(tmp_path: Path) -> None:
    results = Results(tmp_path)
    for choice, mean in (("NCA, projection to 128", 62.0), ("NCA", 60.0)):
        put(results, choice_config("mini-imagenet", choice), mean, seeds=SEEDS)
    assert verdict(results, "projection", SEEDS, "mini-imagenet").status == "confirmed"


@pytest.mark.parametrize(
    ("off", "status"), [(0.0, "confirmed"), (3.0, "contradicted"), (-3.0, "contradicted")]
)
def test_episodes_are_held_against_the_curve_at_their_share_of_pairs(
    off: float, status: str, tmp_path: Path
) -> None:
    results = Results(tmp_path)

    def height(
        share: float,
    ) -> float:  # a straight line over the logarithm, which is what is drawn between points
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
        assert {
            verdict(results, name, SEEDS).status for name in ("subsampling", "along-the-curve")
        } == {"confirmed"}
        for method in METHODS:  # better than m+n=8 with its more pairs: an exception of Appendix E
            put(results, setup_config(DATASET, method, 256, (5, 16)), 72.0, seeds=SEEDS)
        assert verdict(results, "along-the-curve", SEEDS).status == "confirmed"


@pytest.mark.parametrize(
    ("differences", "status", "reason", "decides"),
    [
        ((2.0, 0.6, 3.0), "confirmed", "3 of 3 in favour", "b"),
        ((2.0, 0.1, 3.0), "undecided", "1 of 3 undecided", "b"),
        ((-2.0, 0.1, -3.0), "contradicted", "2 of 3 against", "c"),
        ((2.0, 0.6, None), "undecided", "2 of 2 in favour, 1 not run", "b"),
    ],
)
def test_a_reason_says_how_many_comparisons_and_the_one_that_decides_is_first(
    differences: tuple[float | None, ...], status: str, reason: str, decides: str
) -> None:
    named = zip("abc", differences, strict=True)
    found = judge(
        ([None if one is None else Difference(name, one, 0.5, 3) for name, one in named], ABOVE)
    )
    assert (found.status, found.reason(), found.judged[0].name) == (
        status,
        f"{reason}, 3 seeds",
        decides,
    )
    assert found.reason(3) == reason
