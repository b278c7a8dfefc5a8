"""What figures show: nothing is cut off, no labels overlap, and the titles say what is drawn."""

import itertools
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from matplotlib.figure import Figure as Drawing
from matplotlib.lines import Line2D
from tests.helpers.made_up import make_up

from nearshot.episode_shape import EpisodeShape
from nearshot.losses import count_pairs
from nearshot.paper import RECIPES, Results
from nearshot.paper.figures import NEGATIVE, POSITIVE, line_with_band, style_of
from nearshot.paper.numbers import figure_config
from nearshot.paper.recipe import Found
from nearshot.paper.recipes.batches import FRACTIONS
from nearshot.paper.recipes.pairs import drawn_pairs
from nearshot.paper.results import Measurement
from nearshot.paper.sizes import PAPER

SHAPES = [EpisodeShape(2, 4, 1), EpisodeShape(5, 2, 3), EpisodeShape(3, 1, 1)]
FIGURES = ("batch-size", "pair-subsampling", "ablations")


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Results:
    return make_up(tmp_path_factory.mktemp("figures"), FIGURES, PAPER, dataset="cifar-fs", seeds=2)


def drawn(name: str, found: Found) -> Drawing:
    drawing = RECIPES[name].figures(found, "cifar-fs")[0].draw()
    drawing.draw_without_rendering()
    return drawing


def is_whole(drawing: Drawing) -> bool:
    """Say whether all that is drawn is on the paper."""
    used = drawing.get_tightbbox()  # in inches
    width, height = drawing.get_size_inches()
    return bool(min(used.x0, used.y0) >= 0 and used.x1 <= width and used.y1 <= height)


def ends(line: Line2D) -> np.ndarray[tuple[int, int], np.dtype[np.float64]]:
    return np.column_stack(
        [np.asarray(line.get_xdata(), float), np.asarray(line.get_ydata(), float)]
    )


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_figure_1_says_how_many_lines_it_draws_and_cuts_nothing_off(
    shape: EpisodeShape, tmp_path: Path
) -> None:
    drawing = drawn("pairs", Found(Results(tmp_path), PAPER, (0,), shape))
    assert is_whole(drawing)
    for axes, (prototypes, separate) in zip(
        drawing.axes, [(True, True), (False, True), (False, False)], strict=True
    ):
        lines = [
            sum(line.get_color() == look["color"] for line in axes.lines if len(ends(line)) == 2)
            for look in (POSITIVE, NEGATIVE)
        ]
        said = [int(number) for number in re.findall(r"\d+", axes.get_title())]
        counts = count_pairs(shape, prototypes=prototypes, separate=separate)
        assert (said[:2], tuple(said[-2:])) == (lines, counts)
        assert len(said) == (4 if sum(lines) != counts.total else 2)
        everything = np.concatenate([ends(line) for line in axes.lines])
        (left, bottom), (right, top) = (
            everything.min(0) - 0.2,
            everything.max(0) + 0.2,
        )  # markers have a size
        assert axes.get_xlim()[0] < left < right < axes.get_xlim()[1]
        assert axes.get_ylim()[0] < bottom < top < axes.get_ylim()[1]


def test_figure_1_tells_support_query_and_prototypes_apart() -> None:
    (pn_points, pn_roles, _), (mn_points, mn_roles, _), (_, nca_roles, _) = (
        drawn_pairs(EpisodeShape(2, 4, 1), prototypes=prototypes, separate=separate)
        for prototypes, separate in ((True, True), (False, True), (False, False))
    )
    assert [role.split()[0] for role in pn_roles] == ["query"] * 2 + ["prototype:"] * 2
    assert [role.split()[0] for role in mn_roles] == ["query"] * 2 + ["support"] * 8
    assert nca_roles == ["image without a role"] * 10
    means = mn_points[2:].view(2, 4, 2).mean(1)
    assert torch.allclose(pn_points, torch.cat([mn_points[:2], means]))


@pytest.mark.parametrize(
    ("name", "seeds", "said"),
    [
        ("batch-size", (0,), "95 % intervals over episodes"),
        ("pair-subsampling", (0, 1), "from one training seed to the other"),
        ("ablations", (0, 1, 2), "95 % intervals between training seeds"),
    ],
)
def test_no_text_is_cut_off_or_overlaps_and_the_title_says_what_intervals_are_over(
    name: str, seeds: tuple[int, ...], said: str, results: Results
) -> None:
    drawing = drawn(name, Found(results, PAPER, seeds))
    assert said in drawing.get_suptitle()
    assert is_whole(drawing)
    for axes in drawing.axes:
        boxes = [label.get_window_extent() for label in axes.get_xticklabels() if label.get_text()]
        assert len(boxes) > 2
        if name == "pair-subsampling":
            assert [label.get_text() for label in axes.get_xticklabels()] == [
                f"{100 * one:g}" for one in FRACTIONS
            ]
        assert not any(one.overlaps(other) for one, other in itertools.combinations(boxes, 2))


@pytest.mark.parametrize(
    ("per_seed", "half"), [((62.0,), 0.3), ((61.5, 63.5), 1.0), ((61.0, 62.0, 63.0), 2.5)]
)
def test_a_band_is_an_interval_or_goes_from_one_of_two_seeds_to_the_other(
    per_seed: tuple[float, ...], half: float, results: Results
) -> None:
    found = Found(results, PAPER, (0,)).pooled(
        figure_config("cifar-fs", "nca", 512), Measurement("val", 5, "centroid")
    )
    assert found is not None
    one = replace(
        found, mean=float(np.mean(per_seed)), interval95=0.3, between_seeds95=2.5, per_seed=per_seed
    )
    axes = Drawing().subplots()
    line_with_band(axes, [(0.0, one), (1.0, one)], "", style_of(0))
    heights = np.asarray(axes.collections[0].get_paths()[0].vertices, float)[:, 1]
    assert (heights.min(), heights.max()) == pytest.approx((one.mean - half, one.mean + half))


def test_rows_of_the_ablations_that_were_not_run_are_left_out_and_it_is_said(
    tmp_path: Path, results: Results
) -> None:
    some = make_up(tmp_path, ["batch-size"], PAPER, dataset="cifar-fs")  # which has four of them
    drawing = drawn("ablations", Found(some, PAPER, (0,)))
    assert [label.get_text()[0] for label in drawing.axes[0].get_yticklabels()] == [
        "1",
        "4",
        "5",
        "6",
    ]
    assert drawing.get_suptitle().endswith("rows not run yet are left out")
    assert "left out" not in drawn("ablations", Found(results, PAPER, (0,))).get_suptitle()
