"""What tables say about their numbers: seeds, intervals, doubtful numbers of the paper."""

import csv
import io
import statistics
from collections import Counter
from dataclasses import replace
from itertools import product
from pathlib import Path

import numpy as np
import pytest
import scipy.stats
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console
from tests.helpers.made_up import make_up, put

from nearshot.evaluation.statistics import Difference
from nearshot.paper import RECIPES, Results
from nearshot.paper.accuracy_table import rank_correlation
from nearshot.paper.numbers import FLOOR, Number, figure_config
from nearshot.paper.recipe import outputs_of
from nearshot.paper.recipes import batch_size
from nearshot.paper.results import Measurement, Side
from nearshot.paper.sizes import PAPER, at_input_size
from nearshot.paper.tables import (
    Cell,
    Table,
    TableRow,
    accuracy_cell,
    difference_cell,
    difference_from_paper_cell,
    paper_difference_cell,
)
from nearshot.training import PRESETS
from nearshot.training.methods import NCA
from nearshot.training.run_folder import run_name

ROOT = Path(__file__).parents[2]
NCA_512 = figure_config("cifar-fs", NCA(background=FLOOR), 512)
ONE_SHOT = Measurement("val", 1)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with two seeds of every run of Figure 2."""
    folder = tmp_path_factory.mktemp("tables")
    make_up(folder, ["batch-size"], PAPER, dataset="cifar-fs", seeds=2)
    return folder


def tables_of(name: str, results: Results, dataset: str = "cifar-fs") -> list[Table]:
    return list(RECIPES[name].tables(results, dataset))


def csv_rows(table: Table) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(table.as_csv())))


def by_first_cell(table: Table) -> dict[str, dict[str, Cell]]:
    """Return the cells of each row by their heading; the heading of a difference has no number."""
    rows = {}
    for row in table.rows:
        cells = dict(zip(table.columns, row.cells, strict=True))
        rows[str(row.cells[0])] = {
            heading: cell for heading, cell in cells.items() if isinstance(cell, Cell)
        }
    return rows


@pytest.mark.parametrize(
    ("requested", "available", "about"),
    [((0, 1, 2), (0, 1), "2 training seeds"), ((1, 5, 6), (1,), "training seed 1")],
)
def test_seeds_that_no_run_has_are_named_once(
    folder: Path, requested: tuple[int, ...], available: tuple[int, ...], about: str
) -> None:
    results = Results(folder, seeds=requested)
    outputs = outputs_of(RECIPES["batch-size"], results, "cifar-fs")
    table = outputs.tables[0]
    assert table.label == outputs.figures[0].label
    assert table.label.startswith(f"{PAPER.label}; {about}, of 3 ")
    expected = tables_of("batch-size", Results(folder, seeds=available))[0]
    assert table.rows == expected.rows


def test_a_seed_that_one_run_has_is_missing_from_the_others(tmp_path: Path) -> None:
    results = make_up(tmp_path, ["batch-size"], PAPER, dataset="cifar-fs", seeds=2)
    for run in list(results):
        if run.seed == 1 and replace(run.config, seed=NCA_512.seed) != NCA_512:
            results.path(run.config).unlink()
    table = outputs_of(RECIPES["batch-size"], results, "cifar-fs").tables[0]
    rows = csv_rows(table)
    assert [row["1-shot seeds"] for row in rows] == ["2"] + ["1"] * (len(rows) - 1)
    texts = [str(row.cells[2]) for row in table.rows]
    assert "2 seeds" in texts[0]
    assert all("1 of 2 seeds" in text for text in texts[1:])


def _ranks(values: list[float]) -> list[float]:
    """Return how many values are smaller than each; equal ones share their ranks."""
    return [sum(other < value for other in values) + values.count(value) / 2 for value in values]


def test_rank_correlation_is_that_of_ranks(folder: Path) -> None:
    results = Results(folder, seeds=[0, 1])
    rows = batch_size.table_rows("cifar-fs", batch_size.PN)
    sides = [(row.config, ONE_SHOT) for row in rows]
    numbers = [float(number) for number in range(len(rows))]
    accuracies = [results.accuracy(*side) for side in sides]
    means = [accuracy.mean for accuracy in accuracies if accuracy is not None]
    correlation = rank_correlation(results, sides, numbers)
    assert correlation == pytest.approx(statistics.correlation(_ranks(means), numbers))
    missing = (replace(NCA_512, seed=7), Measurement("val", 7))
    assert rank_correlation(results, [*sides, missing], [*numbers, 0]) is None


def test_the_batch_size_table_has_both_rank_correlations_of_the_paper(folder: Path) -> None:
    """With the paper's accuracies, without its doubtful row; and with the numbers of pairs."""
    results = Results(folder, seeds=[0, 1])
    table, of_matching = tables_of("batch-size", results)
    rows = [row for row in batch_size.table_rows("cifar-fs", batch_size.PN) if not row.doubtful]
    assert len(rows) == 20
    papers = [row.paper[0] for row in rows]
    expected = rank_correlation(
        results,
        [(row.config, ONE_SHOT) for row in rows],
        [number.mean for number in papers if number is not None],
    )
    correlations = [note for note in table.notes if "correlation" in note]
    assert len(correlations) == 2
    assert f"1-shot {expected:.2f}".replace("-0", "−0") in correlations[0].replace("-0", "−0")
    assert not any("correlation" in note for note in of_matching.notes)


def test_every_run_has_its_accuracy_and_epoch(folder: Path) -> None:
    results = Results(folder, seeds=[0])
    table = tables_of("runs", results)[1]
    assert len(table.rows) == len(list(results)) > 20
    # Whatever seeds were requested.
    assert {str(row.cells[1]) for row in table.rows} == {"0", "1"}
    config = replace(figure_config("cifar-fs", NCA(background=FLOOR), 256), seed=1)
    (row,) = [row for row in table.rows if row.cells[0] == run_name(config)]
    run = results.get(config)
    assert run is not None
    five_shots = Measurement("val", 5)
    expected = [run.accuracy(ONE_SHOT).mean, run.epoch(ONE_SHOT)]
    expected += [run.accuracy(five_shots).mean, run.epoch(five_shots)]
    shown = [cell.value for cell in row.cells[2:6] if isinstance(cell, Cell)]
    assert shown == pytest.approx(expected)


def test_csv_has_all_intervals_and_the_number_of_seeds(folder: Path) -> None:
    results = Results(folder)
    row = csv_rows(tables_of("batch-size", results)[0])[0]
    accuracy = results.accuracy(NCA_512, ONE_SHOT)
    assert accuracy is not None
    assert float(row["1-shot"]) == accuracy.mean
    assert float(row["1-shot ±"]) == accuracy.interval95
    assert float(row["1-shot ± between seeds"]) == accuracy.between_seeds95
    assert float(row["1-shot ± as the paper has it"]) == accuracy.paper95 < accuracy.interval95
    assert row["1-shot seeds"] == "2"
    one_seed = tables_of("batch-size", Results(folder, seeds=[0]))[0]
    assert csv_rows(one_seed)[0]["1-shot ± between seeds"] == ""
    assert "nan" not in one_seed.as_csv()


def test_doubtful_numbers_of_the_paper_are_marked_and_the_note_goes_with_their_row(
    folder: Path, tmp_path: Path
) -> None:
    table, of_matching = tables_of("batch-size", Results(folder, seeds=[0]))
    (marked,) = [row for row in table.rows if row.is_marked]
    assert marked.cells[:2] == ("batch 512", "PN 1-shot m+n=16")
    assert [str(cell).endswith(" *") for cell in marked.cells[2:]] == [False, True, True] * 2
    assert str(marked.cells[3]) == "51.75 ± 0.13 *"
    assert any(note.startswith("* ") for note in table.without_empty_rows().notes)
    assert not any(row.is_marked for row in of_matching.rows)
    # Without its run, the row and its note are skipped.
    few = make_up(tmp_path, ["schedule"], PAPER, dataset="cifar-fs")
    shown = tables_of("batch-size", few)[0].without_empty_rows()
    assert [row.cells[1] for row in shown.rows] == ["NCA", "PN 5-shot m+n=16"]
    assert not any(note.startswith("* ") for note in shown.notes)
    assert shown.notes[-1].startswith("19 rows ")


def test_a_row_without_results_is_skipped_and_a_quoted_one_stays() -> None:
    table = Table("t", "a title", ("trained with", "5-shot"), "a label")
    table.add_row("ours", Cell("62.00", 62.0, is_ours=True))
    table.add_row("missing", Cell("–"))
    table.add_row("theirs", Cell("61.00", 61.0), is_quoted=True)
    shown = table.without_empty_rows()
    assert [row.cells[0] for row in shown.rows] == ["ours", "theirs"]
    assert "missing" in shown.notes[0]
    nothing = replace(table, rows=[TableRow(("missing", Cell("–")))])
    assert nothing.without_empty_rows() is nothing
    with pytest.raises(ValueError, match="2"):
        table.add_row("one cell only")


def _in_terminal(table: Table, width: int) -> str:
    console = Console(width=width, file=(text := io.StringIO()))
    console.print(table.for_terminal(), crop=False)
    return text.getvalue()


def test_numbers_are_whole_in_a_terminal() -> None:
    """Our own tables are as wide as the terminal, but for those with ten columns and more."""
    tables: list[Table] = []
    for size in (PAPER, at_input_size(32)):
        results = Results(ROOT / "results", size)
        for recipe in RECIPES.values():
            tables += outputs_of(recipe, results, "cifar-fs").tables
    assert len(tables) > 15
    for table in tables:
        shown = _in_terminal(table, 80)
        if not table.name.startswith("runs"):
            assert max(len(line.rstrip()) for line in shown.splitlines()) <= 82, table.name
        numbers = []
        for row in table.rows:
            numbers += [str(cell) for cell in row.cells if isinstance(cell, Cell)]
        words = {word for text in numbers for word in text.replace("± ", "±").split()}
        assert words <= set(shown.split()), table.name


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
    table = Table("t", "a title", ("what", "number"), "a label")
    for text, number in rows:
        table.add_row(text, Cell(number))
    lines = _in_terminal(table, width).splitlines()
    shown = Counter("".join(lines[4:]).replace(" ", ""))
    assert shown == Counter("".join(text + number for text, number in rows).replace(" ", ""))


def test_every_form_has_all_rows() -> None:
    table = Table("t", "a title", ("what", "number"), "a label", ["a note"])
    table.add_row("first", Cell("1.00", 1.0))
    table.add_row("second", Cell("2.00", 2.0))
    markdown = table.as_markdown()
    assert markdown.count("\n| ") == len(table.rows) + 2
    assert "---:" in markdown
    assert "a note" in markdown
    assert [row["number"] for row in csv_rows(table)] == ["1.0", "2.0"]


def test_the_papers_numbers_are_shown_at_its_size_only(tmp_path: Path) -> None:
    at_84 = tables_of("comparison", make_up(tmp_path, ["comparison"], PAPER))[0]
    size = at_input_size(32)
    at_32 = tables_of("comparison", make_up(tmp_path, ["comparison"], size))[0]
    assert any(row.is_quoted for row in at_84.rows)
    assert not any(row.is_quoted for row in at_32.rows)
    for table, has_paper in ((at_84, True), (at_32, False)):
        ours = [row for row in table.rows if row.is_ours]
        assert len(ours) == 7
        papers = [str(row.cells[2]) != "–" for row in ours]
        assert papers == [has_paper] * 7


def test_differences_whose_runs_are_missing_are_skipped(tmp_path: Path) -> None:
    results = make_up(tmp_path, ["comparison"], PAPER, dataset="cifar-fs")
    kept = [PRESETS["cifar-fs-nca"], PRESETS["cifar-fs-prototypical"]]
    for run in list(results):
        if replace(run.config, seed=kept[0].seed) not in kept:
            results.path(run.config).unlink()
    differences = outputs_of(RECIPES["comparison"], results, "cifar-fs").tables[1]
    assert [row.cells[0] for row in differences.rows] == ["NCA − PN"]
    results.path(PRESETS["cifar-fs-nca"]).unlink()
    alone = outputs_of(RECIPES["comparison"], results, "cifar-fs")
    assert [table.name for table in alone.tables] == ["comparison-cifar-fs"]


@pytest.mark.parametrize(
    ("seeds", "over"), [((0, 1), "training seeds"), ((1,), "episodes")], ids=str
)
def test_csv_has_the_intervals_of_differences(
    seeds: tuple[int, ...], over: str, tmp_path: Path
) -> None:
    make_up(tmp_path, ["comparison", "adaptation"], PAPER, dataset="cifar-fs", seeds=2)
    results = Results(tmp_path, seeds=seeds)
    measurement = Measurement("test", 5)
    expected = results.difference(
        (PRESETS["cifar-fs-nca"], measurement), (PRESETS["cifar-fs-prototypical"], measurement)
    )
    assert expected is not None
    differences = tables_of("comparison", results)[1]
    row = csv_rows(differences)[0]
    assert float(row["5-shot test"]) == expected.mean
    assert float(row["5-shot test ±"]) == expected.half_width
    assert (row["5-shot test ± is over"], row["5-shot test seeds"]) == (over, str(len(seeds)))
    assert "5-shot test paper ±" not in row
    assert str(differences.rows[1].cells[3]) == "+0.63"  # 72.49 less 71.86
    plain, adapted, *_ = csv_rows(tables_of("adaptation", results)[0])
    column = "1-shot paired difference"
    assert float(adapted[f"{column} ±"]) > 0
    assert (adapted[f"{column} ± is over"], adapted[f"{column} seeds"]) == (over, str(len(seeds)))
    assert plain[f"{column} ±"] == ""


def test_what_adapting_gains_is_on_the_episodes_that_both_have() -> None:
    """On our own results: adapted networks were measured on the first 600 of 10,000 episodes."""
    results = Results(ROOT / "results", seeds=[0])
    rows = tables_of("adaptation", results)[0].without_empty_rows().rows
    gains = {str(row.cells[0]): row.cells[-2] for row in rows}
    (papers,) = [row.cells[-1] for row in rows if row.cells[0] == "NCA multi-layer"]
    assert str(papers) == "+0.29"  # 85.42 less 85.13
    run = results.runs(PRESETS["cifar-fs-nca"])[0]
    plain = run.accuracy(Measurement("test", 5)).per_episode
    adapted = run.accuracy(Measurement("test", 5, how="fine-tuned")).per_episode
    assert len(adapted) < len(plain)
    gain = gains["NCA + support set, frozen batch norm, 5 steps"]
    assert isinstance(gain, Cell)
    assert gain.value == pytest.approx(float((adapted - plain[: len(adapted)]).double().mean()))
    assert [label for label, cell in gains.items() if str(cell) == "–"] == ["NCA"]


def test_a_difference_has_no_more_digits_than_the_papers_number(folder: Path) -> None:
    ours = Results(folder, seeds=[0]).accuracy(NCA_512, Measurement("val", 5))
    assert ours is not None
    paper = Number(f"{ours.mean + 1.17:.1f} ± 0.14")
    cell = difference_from_paper_cell(ours, paper)
    assert cell.value == ours.mean - paper.mean  # in CSV
    assert str(cell) == f"−{paper.mean - ours.mean:.1f}"
    assert str(difference_from_paper_cell(ours, None)) == "–"
    assert str(paper_difference_cell(Number("72.49"), Number("70.4 ± 0.1"))) == "+2.1"


def test_an_accuracy_of_two_seeds_shows_both(tmp_path: Path) -> None:
    results = Results(tmp_path, seeds=[0, 1])
    put(results, NCA_512, 60.0, seeds=[0, 1], spread=4 / 3)
    accuracy = results.accuracy(NCA_512, ONE_SHOT)
    assert accuracy is not None
    text = str(accuracy_cell(accuracy, n_seeds=3))
    assert "2 of 3 seeds" in text
    assert all(f"{mean:.2f}" in text for mean in accuracy.per_seed)


def test_a_column_never_mixes_intervals_between_seeds_with_those_over_episodes(
    tmp_path: Path,
) -> None:
    """In a table of several seeds, a result of one seed has no interval."""
    three = make_up(tmp_path, ["comparison"], PAPER, dataset="cifar-fs", seeds=3)
    accuracy = three.accuracy(*_comparison_side())
    assert accuracy is not None
    one = Results(tmp_path, seeds=[0]).accuracy(*_comparison_side())
    assert one is not None
    assert str(accuracy_cell(accuracy, n_seeds=3)).endswith(f"± {accuracy.between_seeds95:.2f}")
    assert str(accuracy_cell(one, n_seeds=1)) == f"{one.mean:.2f} ± {one.interval95:.2f}"
    assert "±" not in str(accuracy_cell(one, n_seeds=3))
    difference = Difference(1.0, 0.1, 1, 1)
    assert "±" in str(difference_cell(difference, n_seeds=1))
    assert "±" not in str(difference_cell(difference, n_seeds=3))
    assert "±" in str(difference_cell(Difference(1.0, 0.1, 3, 3), n_seeds=3))


def _comparison_side() -> Side:
    row = RECIPES["comparison"].rows("cifar-fs")[0]
    side = row.cell(0)
    assert side is not None
    return side


def test_accuracy_by_epoch_is_read_from_the_logs_of_all_seeds(tmp_path: Path) -> None:
    results = make_up(tmp_path, ["epochs"], PAPER, dataset="cifar-fs", seeds=3)
    (table,) = tables_of("epochs", results)
    columns = [f"{n_shot}-shot, epoch {epoch}" for n_shot, epoch in product((1, 5), (90, 120))]
    assert list(table.columns[1:]) == columns
    rows = by_first_cell(table)
    accuracies: dict[str, list[float]] = {}
    for label, preset in (
        ("NCA nearest centroid", "nca"),
        ("PN (our episodes)", "prototypical"),
    ):
        accuracies[label] = []
        for run in results.runs(PRESETS[f"cifar-fs-{preset}"]):
            (epoch_90,) = [epoch for epoch in run.history if epoch["epoch"] == 90]
            accuracies[label].append(epoch_90["validation"]["5-shot centroid"])
        cell = rows[label]["5-shot, epoch 90"]
        assert cell.value == pytest.approx(statistics.fmean(accuracies[label]))
        assert all(f"{accuracy:.2f}" in cell.text for accuracy in accuracies[label])
    test = scipy.stats.ttest_ind(*accuracies.values(), equal_var=False)
    expected = test.confidence_interval(0.95)
    difference = rows["NCA − PN"]["5-shot, epoch 90"]
    assert difference.value == pytest.approx((expected.low + expected.high) / 2)
    half_width = float(difference.details["±"])
    assert half_width == pytest.approx((expected.high - expected.low) / 2)
    (figure,) = RECIPES["epochs"].figures(results, "cifar-fs")
    for axes in figure.draw().axes:
        assert len(axes.get_legend_handles_labels()[1]) == 4
        curves = [line for line in axes.lines if np.size(line.get_xdata()) == 12]
        assert len(curves) == 4 * (1 + 3)
