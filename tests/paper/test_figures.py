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
from nearshot.paper.numbers import FLOOR, figure_config
from nearshot.paper.recipes import pairs
from nearshot.paper.recipes.pair_subsampling import FRACTIONS
from nearshot.paper.results import Measurement
from nearshot.paper.sizes import PAPER
from nearshot.training.methods import NCA

SHAPES = [EpisodeShape(2, 4, 1), EpisodeShape(5, 2, 3), EpisodeShape(3, 1, 1)]
FIGURES = ("batch-size", "pair-subsampling", "ablations")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("figures")
    make_up(folder, FIGURES, PAPER, dataset="cifar-fs", seeds=2)
    return folder


def drawn(name: str, results: Results) -> Drawing:
    drawing = RECIPES[name].figures(results, "cifar-fs")[0].draw()
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
def test_figure_1_has_a_line_for_every_distance_and_cuts_nothing_off(shape: EpisodeShape) -> None:
    drawing = pairs.figure(shape).draw()
    drawing.draw_without_rendering()
    assert is_whole(drawing)
    for axes, (prototypes, separate) in zip(drawing.axes, pairs.LOSSES.values(), strict=True):
        n_lines = []
        for style in (POSITIVE, NEGATIVE):
            lines = [line for line in axes.lines if line.get_color() == style["color"]]
            n_lines.append(sum(len(ends(line)) == 2 for line in lines))
        numbers = [int(number) for number in re.findall(r"\d+", axes.get_title())]
        counts = count_pairs(shape, prototypes=prototypes, separate=separate)
        assert numbers[:2] == n_lines
        assert tuple(numbers[-2:]) == counts
        everything = np.concatenate([ends(line) for line in axes.lines])
        # Markers have a size.
        left, bottom = everything.min(0) - 0.2
        right, top = everything.max(0) + 0.2
        assert axes.get_xlim()[0] < left < right < axes.get_xlim()[1]
        assert axes.get_ylim()[0] < bottom < top < axes.get_ylim()[1]


def test_figure_1_tells_support_query_and_prototypes_apart() -> None:
    shape = EpisodeShape(2, 4, 1)
    pn_points, pn_roles, _ = pairs.drawn_pairs(shape, prototypes=True, separate=True)
    mn_points, mn_roles, _ = pairs.drawn_pairs(shape, prototypes=False, separate=True)
    _, nca_roles, _ = pairs.drawn_pairs(shape, prototypes=False, separate=False)
    assert [role.split()[0] for role in pn_roles] == ["query"] * 2 + ["prototype:"] * 2
    assert [role.split()[0] for role in mn_roles] == ["query"] * 2 + ["support"] * 8
    assert nca_roles == ["image without a role"] * 10
    means = mn_points[2:].view(2, 4, 2).mean(1)
    assert torch.allclose(pn_points, torch.cat([mn_points[:2], means]))


@pytest.mark.parametrize(
    ("name", "seeds", "over"),
    [
        ("batch-size", (0,), "over episodes"),
        ("pair-subsampling", (0, 1), "from one training seed to the other"),
        ("ablations", (0, 1, 2), "between training seeds"),
    ],
)
def test_no_text_is_cut_off_or_overlaps_and_the_title_says_what_intervals_are_over(
    name: str, seeds: tuple[int, ...], over: str, folder: Path
) -> None:
    drawing = drawn(name, Results(folder, seeds=seeds))
    assert over in drawing.get_suptitle()
    assert is_whole(drawing)
    for axes in drawing.axes:
        labels = [label for label in axes.get_xticklabels() if label.get_text()]
        boxes = [label.get_window_extent() for label in labels]
        assert len(boxes) > 2
        if name == "pair-subsampling":
            ticks = [f"{100 * fraction:g}" for fraction in FRACTIONS]
            assert [label.get_text() for label in labels] == ticks
        assert not any(first.overlaps(second) for first, second in itertools.combinations(boxes, 2))


@pytest.mark.parametrize(
    ("per_seed", "half"), [((62.0,), 0.3), ((61.5, 63.5), 1.0), ((61.0, 62.0, 63.0), 2.5)]
)
def test_a_band_is_an_interval_or_goes_from_one_of_two_seeds_to_the_other(
    per_seed: tuple[float, ...], half: float, folder: Path
) -> None:
    config = figure_config("cifar-fs", NCA(background=FLOOR), 512)
    of_one_seed = Results(folder, seeds=[0]).accuracy(config, Measurement("val", 5))
    assert of_one_seed is not None
    accuracy = replace(
        of_one_seed,
        mean=float(np.mean(per_seed)),
        interval95=0.3,
        between_seeds95=2.5,
        per_seed=per_seed,
    )
    axes = Drawing().subplots()
    line_with_band(axes, [(0.0, accuracy), (0.5, None), (1.0, accuracy)], "", style_of(0))
    heights = np.asarray(axes.collections[0].get_paths()[0].vertices, float)[:, 1]
    expected = (accuracy.mean - half, accuracy.mean + half)
    assert (heights.min(), heights.max()) == pytest.approx(expected)


def test_rows_of_the_ablations_that_were_not_run_are_skipped(tmp_path: Path, folder: Path) -> None:
    # Figure 2 has four of them.
    make_up(tmp_path, ["batch-size"], PAPER, dataset="cifar-fs")
    drawing = drawn("ablations", Results(tmp_path, seeds=[0]))
    rows = [label.get_text()[0] for label in drawing.axes[0].get_yticklabels()]
    assert rows == ["1", "4", "5", "6"]
    assert "skipped" in drawing.get_suptitle()
    assert "skipped" not in drawn("ablations", Results(folder, seeds=[0])).get_suptitle()
