"""What tables say about their numbers: how many seeds, which intervals, which numbers of the paper are doubtful."""

import csv
import io
import re
import statistics
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import scipy.stats
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console
from tests.helpers.made_up import make_up

from nearshot.paper import RECIPES, Results
from nearshot.paper.differences import difference_of
from nearshot.paper.numbers import Number, figure_config
from nearshot.paper.recipe import Found, FoundAccuracy, outputs_of
from nearshot.paper.results import Measurement
from nearshot.paper.sizes import PAPER, at_input_size
from nearshot.paper.tables import Cell, Table, difference
from nearshot.training import PRESETS
from nearshot.training.run_folder import run_name

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Results:
    return make_up(
        tmp_path_factory.mktemp("tables"), ["batch-size"], PAPER, dataset="cifar-fs", seeds=2
    )


@pytest.mark.parametrize(
    ("asked", "there", "label", "cells"),
    [
        ((0, 1, 2), (0, 1), "; 2 training seeds, of 3 asked for", " (2 seeds: "),
        ((1, 5, 6), (1,), "; training seed 1, of 3 asked for", ""),
        ((1,), (1,), "; training seed 1", ""),
    ],
)
def test_seeds_that_no_training_has_are_told_once(
    results: Results, asked: tuple[int, ...], there: tuple[int, ...], label: str, cells: str
) -> None:
    outputs = outputs_of(RECIPES["batch-size"], Found(results, PAPER, asked), "cifar-fs")
    table, figure = outputs.tables[0], outputs.figures[0]
    assert table.label == figure.label == PAPER.label + label
    assert (
        table.rows == RECIPES["batch-size"].tables(Found(results, PAPER, there), "cifar-fs")[0].rows
    )
    accuracies = {
        str(item): item.accuracy for row in table.rows for item in row if isinstance(item, Cell)
    }
    shown = {
        text: accuracy
        for text, accuracy in accuracies.items()
        if "±" in text and accuracy is not None
    }
    assert all((" (" in text) == bool(cells) and cells in text for text in shown)
    for accuracy in shown.values():
        assert isinstance(accuracy, FoundAccuracy)
        assert tuple(run.seed for run in accuracy.runs) == there


def test_a_seed_that_one_training_has_is_missed_of_the_others(tmp_path: Path) -> None:
    results = make_up(tmp_path, ["batch-size"], PAPER, dataset="cifar-fs", seeds=2)
    only = figure_config("cifar-fs", "nca", 512)
    for run in list(results):
        if run.seed == 1 and replace(run.config, seed=only.seed) != only:
            results.path(run.config, "paper").unlink()
    table = outputs_of(RECIPES["batch-size"], Found(results, PAPER, (0, 1, 2)), "cifar-fs").tables[
        0
    ]
    assert table.label == f"{PAPER.label}; 2 training seeds, of 3 asked for"
    said = [
        "2 seeds" if "(2 seeds: " in str(row[2]) else str(row[2]).partition("(")[2]
        for row in table.rows
    ]
    assert said == ["2 seeds"] + ["1 of 2 seeds)"] * (len(table.rows) - 1)


def test_the_order_of_the_batch_sizes_is_held_against_the_papers(results: Results) -> None:
    own, of_matching = RECIPES["batch-size"].tables(Found(results, PAPER, (0, 1)), "cifar-fs")
    kept = [row for row in own.rows if not str(row[3]).endswith("*")]
    expected = []
    for place in (2, 5):
        ours, paper = (
            [float(str(row[side]).split(" ")[0]) for row in kept] for side in (place, place + 1)
        )
        ranks = [
            [sum(a > b for b in side) + (side.count(a) - 1) / 2 for a in side]
            for side in (ours, paper)
        ]
        expected.append(statistics.correlation(*ranks))
    assert len(kept) == 20
    said = [
        float(number)
        for number in re.findall(r"(-?\d\.\d\d) with", own.notes[-1].replace("−", "-"))
    ]
    assert said == pytest.approx(expected, abs=0.006)
    assert not any(
        "Rank" in note for note in of_matching.notes
    )  # of which the paper has no numbers


def test_every_training_tells_how_good_it_is(results: Results) -> None:
    table = RECIPES["runs"].tables(Found(results, PAPER, (0,)), "cifar-fs")[1]
    assert len(table.rows) == len(list(results)) > 20
    assert {str(row[1]) for row in table.rows} == {"0", "1"}  # whatever seeds were asked for
    config = replace(figure_config("cifar-fs", "nca", 256), seed=1)
    (row,) = [row for row in table.rows if row[0] == run_name(config)]
    run = results.get(config, "paper")
    assert run is not None
    for place, wanted in (
        (2, Measurement("val", 1, "centroid")),
        (4, Measurement("val", 5, "centroid")),
    ):
        assert str(row[place]) == str(run.accuracy(wanted)).removesuffix(" %")
        assert str(row[place + 1]) == str(run.epoch(wanted))


def test_csv_has_all_intervals_and_the_number_of_seeds(results: Results) -> None:
    found = Found(results, PAPER, (0, 1, 2))
    row = next(
        csv.DictReader(io.StringIO(RECIPES["batch-size"].tables(found, "cifar-fs")[0].as_csv()))
    )
    accuracy = found.pooled(
        figure_config("cifar-fs", "nca", 512), Measurement("val", 1, "centroid")
    )
    assert accuracy is not None
    assert float(row["1-shot ±"]) == accuracy.interval95
    assert float(row["1-shot ± between seeds"]) == accuracy.between_seeds95
    assert float(row["1-shot ± as the paper has it"]) == accuracy.paper95 < accuracy.interval95
    assert row["1-shot seeds"] == "2"
    one_seed = RECIPES["batch-size"].tables(Found(results, PAPER, (0,)), "cifar-fs")[0].as_csv()
    assert next(csv.DictReader(io.StringIO(one_seed)))["1-shot ± between seeds"] == ""
    assert "nan" not in one_seed


def test_the_doubtful_numbers_of_the_paper_are_marked_and_the_note_goes_with_their_row(
    results: Results, tmp_path: Path
) -> None:
    table, other = RECIPES["batch-size"].tables(Found(results, PAPER, (0,)), "cifar-fs")
    stars = [row for row in table.rows if any("*" in str(item) for item in row)]
    assert [row[:2] for row in stars] == [("batch 512", "PN 1-shot m+n=16")]
    assert [("*" in str(item)) for item in stars[0][2:]] == [False, True, True] * 2
    assert str(stars[0][3]) == "51.75 ± 0.13 *"
    assert [
        note
        for note in table.without_empty_rows().notes
        if note.startswith("* ") and "51.75 / 65.77" in note
    ]
    assert "*" not in other.as_csv()
    assert "Erratum" in table.as_latex()
    few = make_up(tmp_path, ["schedule"], PAPER, dataset="cifar-fs")  # which has two of the runs
    table = (
        RECIPES["batch-size"].tables(Found(few, PAPER, (0,)), "cifar-fs")[0].without_empty_rows()
    )
    assert [str(row[1]) for row in table.rows] == ["NCA", "PN 5-shot m+n=16"]
    assert table.notes == ("19 rows are not run yet, and left out.",)
    empty = RECIPES["batch-size"].tables(
        Found(Results(tmp_path / "empty"), PAPER, (0,)), "mini-imagenet"
    )[0]
    assert "*" not in empty.as_csv()


def _shown(table: Table, width: int) -> str:
    console = Console(width=width, file=(text := io.StringIO()))
    console.print(table.for_terminal(), crop=False)
    return text.getvalue()


def test_numbers_are_whole_in_a_terminal() -> None:
    """Our own tables are as wide as the terminal, but for those with ten columns and more."""
    found = [
        Found(Results(ROOT / "results"), scale, (0, 1, 2)) for scale in (PAPER, at_input_size(32))
    ]
    tables = [
        table
        for one in found
        for name in RECIPES
        for table in outputs_of(RECIPES[name], one, "cifar-fs").tables
    ]
    assert len(tables) > 15
    for table in tables:
        shown = _shown(table, 80)
        if not table.name.startswith("runs"):
            assert max(len(line.rstrip()) for line in shown.splitlines()) <= 82, table.name
        numbers = [
            str(item).replace("± ", "±")
            for row in table.rows
            for item in row
            if isinstance(item, Cell)
        ]
        assert {word for text in numbers for word in text.split()} <= set(shown.split()), table.name


@given(
    st.lists(
        st.tuples(
            st.text("abc -,", max_size=30), st.sampled_from(["1.23 ± 0.04", "–", "9 (2 of 3)"])
        ),
        min_size=1,
    ),
    st.integers(20, 60),
)
def test_nothing_is_lost_in_a_terminal_however_narrow(
    rows: list[tuple[str, str]], width: int
) -> None:
    table = Table(
        "t",
        "a title",
        "a label",
        ("what", "number"),
        tuple((text, Cell(number)) for text, number in rows),
    )
    lines = _shown(table, width).splitlines()
    shown = Counter("".join(lines[4:]).replace(" ", ""))
    assert shown == Counter("".join(text + number for text, number in rows).replace(" ", ""))


def test_differences_that_wait_for_a_training_are_left_out(tmp_path: Path) -> None:
    results = make_up(tmp_path, ["comparison"], PAPER, dataset="cifar-fs")
    for run in list(results):
        if run.config.method not in ("nca", "prototypical") or run.config.n_way is not None:
            results.path(run.config, "paper").unlink()
    found = Found(results, PAPER, (0,))
    differences = outputs_of(RECIPES["comparison"], found, "cifar-fs").tables[1]
    assert [row[0] for row in differences.rows] == ["NCA − PN"]
    assert differences.notes[-1] == "4 rows are not run yet, and left out."
    results.path(PRESETS["cifar-fs-nca"], "paper").unlink()
    alone = outputs_of(RECIPES["comparison"], Found(results, PAPER, (0,)), "cifar-fs")
    assert [table.name for table in alone.tables] == ["comparison-cifar-fs"]
    assert len(alone.runs) == 1


def test_csv_has_the_intervals_of_differences(tmp_path: Path) -> None:
    made_up = make_up(tmp_path, ["comparison", "adaptation"], PAPER, dataset="cifar-fs", seeds=2)
    sides = [
        (PRESETS[f"cifar-fs-{name}"], Measurement("test", 5, "centroid"))
        for name in ("nca", "prototypical")
    ]
    for seeds, over in (((0, 1), "training seeds"), ((1,), "episodes")):
        found = Found(made_up, PAPER, seeds)
        expected = difference_of(found, *sides)
        assert expected is not None
        differences = RECIPES["comparison"].tables(found, "cifar-fs")[1]
        row = next(csv.DictReader(io.StringIO(differences.as_csv())))
        assert float(row["5-shot test"]) == expected.difference
        assert float(row["5-shot test ±"]) == expected.interval95
        assert (row["5-shot test ± is over"], row["5-shot test seeds"]) == (over, str(len(seeds)))
        assert "5-shot test paper ±" not in row
        assert str(differences.rows[1][3]) == "+0.63"  # 72.49 less 71.86
        adapted = RECIPES["adaptation"].tables(found, "cifar-fs")[0].as_csv()
        plain, gained, *_ = csv.DictReader(io.StringIO(adapted))
        column = "1-shot paired difference"
        assert float(gained[f"{column} ±"]) > 0
        assert len(gained[f"{column} by seed"].split()) == len(seeds)
        assert (gained[f"{column} ± is over"], gained[f"{column} seeds"]) == (over, str(len(seeds)))
        assert plain[f"{column} ±"] == ""


def test_what_adapting_gains_is_on_the_episodes_that_both_have() -> None:
    """On our own results: adapted networks were measured on the first 600 of 10,000 episodes."""
    found = Found(Results(ROOT / "results"), PAPER, (0,))
    table = RECIPES["adaptation"].tables(found, "cifar-fs")[0].without_empty_rows()
    gains = {str(row[0]): row[-2] for row in table.rows}
    assert table.headings[-2:] == ("paired difference", "paper's difference")
    assert [str(row[-1]) for row in table.rows if row[0] == "NCA multi-layer"] == [
        "+0.29"
    ]  # 85.42 less 85.13
    run = found.runs(PRESETS["cifar-fs-nca"])[0]
    plain, adapted = (
        run.accuracy(Measurement("test", 5, "centroid", (), kind)).per_episode
        for kind in ("", "fine-tuned")
    )
    assert len(adapted) < len(plain)
    gained = gains["NCA + support set, frozen batch norm, 5 steps"]
    assert isinstance(gained, Cell)
    assert gained.value == pytest.approx(float((adapted - plain[: len(adapted)]).double().mean()))
    assert str(gains["NCA"]) == "–"
    assert sum(str(gain) != "–" for gain in gains.values()) == len(gains) - 1


def test_a_difference_has_no_more_digits_than_the_papers_number(results: Results) -> None:
    ours = Found(results, PAPER, (0,)).pooled(
        figure_config("cifar-fs", "nca", 512), Measurement("val", 5, "centroid")
    )
    assert ours is not None
    paper = Number(f"{ours.mean + 1.17:.1f} ± 0.14")
    assert difference(ours, paper).value == ours.mean - paper.mean  # in CSV
    assert str(difference(ours, paper)) == f"−{paper.mean - ours.mean:.1f}"
    assert str(difference(ours, Number(f"{paper.mean:.2f}"))) == f"−{paper.mean - ours.mean:.2f}"


def test_accuracy_by_epoch_is_read_from_the_logs_of_all_seeds(tmp_path: Path) -> None:
    made_up = make_up(tmp_path, ["epochs"], PAPER, dataset="cifar-fs", seeds=3)
    found = Found(made_up, PAPER, (0, 1, 2))
    (table,) = RECIPES["epochs"].tables(found, "cifar-fs")
    assert table.headings[1:] == tuple(
        f"{shot}-shot, epoch {epoch}" for shot in (1, 5) for epoch in (90, 120)
    )
    rows = {str(row[0]): row[1:] for row in table.rows}
    seeds = {
        row: [
            next(
                line["validation"]["5-shot centroid"] for line in run.history if line["epoch"] == 90
            )
            for run in found.runs(PRESETS[f"cifar-fs-{method}"])
        ]
        for row, method in (("NCA nearest centroid", "nca"), ("PN (our episodes)", "prototypical"))
    }
    for row, accuracies in seeds.items():
        shown = rows[row][2]
        assert isinstance(shown, Cell)
        assert shown.value == pytest.approx(sum(accuracies) / 3)
        assert all(f"{accuracy:.2f}" in shown.text for accuracy in accuracies)
    expected = scipy.stats.ttest_ind(*seeds.values(), equal_var=False).confidence_interval(0.95)
    ahead = rows["NCA − PN"][2]
    assert isinstance(ahead, Cell)
    assert ahead.value == pytest.approx((expected.low + expected.high) / 2)
    assert float(ahead.details["±"]) == pytest.approx((expected.high - expected.low) / 2)
    (figure,) = RECIPES["epochs"].figures(found, "cifar-fs")
    for axes in figure.draw().axes:
        assert len(axes.get_legend_handles_labels()[1]) == 4
        assert len([line for line in axes.lines if np.size(line.get_xdata()) == 12]) == 4 * (1 + 3)
