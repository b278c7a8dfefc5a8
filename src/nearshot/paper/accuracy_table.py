"""The tables that most recipes share: a row per run, a column per measurement."""

from collections.abc import Sequence
from dataclasses import dataclass

import scipy.stats

from nearshot.paper.numbers import SHOTS, Number
from nearshot.paper.recipe import Row
from nearshot.paper.results import Measurement, Results, Side
from nearshot.paper.tables import (
    MISSING,
    Cell,
    Table,
    about_intervals,
    accuracy_cell,
    difference_cell,
    difference_from_paper_cell,
    marked,
    paper_cell,
    paper_difference_cell,
)

PAPER_DATASETS = ("cifar-fs", "mini-imagenet")
BOTH_SHOTS = tuple(f"{n_shot}-shot" for n_shot in SHOTS)


@dataclass(frozen=True)
class QuotedRow:
    """A row of numbers that the paper quotes from a publication."""

    name: str
    numbers: Sequence[Number | None]
    more_labels: tuple[str, ...] = ()


def both_shots(split: str = "val", classifier: str = "centroid") -> list[Measurement]:
    """Return the measurements with one shot and with five."""
    return [Measurement(split, n_shot, classifier) for n_shot in SHOTS]


def our_cell(results: Results, side: Side | None) -> Cell:
    """Return the cell of our accuracy; a dash where there is none."""
    return accuracy_cell(None if side is None else results.accuracy(*side), len(results.seeds))


def accuracy_table(
    name: str,
    title: str,
    results: Results,
    rows: Sequence[Row],
    *,
    labels: Sequence[str] = ("trained with",),
    columns: Sequence[str] = BOTH_SHOTS,
    with_paper: bool = False,
    quoted: Sequence[QuotedRow] = (),
    notes: Sequence[str] = (),
) -> Table:
    """Return a table of accuracies.

    Args:
        name: the name of its files.
        title: its title.
        results: where the accuracies come from.
        rows: the rows, in order.
        labels: the headings of the columns before the accuracies.
        columns: the headings of the accuracies, one per measurement of a row.
        with_paper: whether the paper's number and the difference stand beside each accuracy.
        quoted: rows of numbers that the paper quotes; they come first, at the paper's size only.
        notes: sentences below the table.
    """
    headings = list(labels)
    for column in columns:
        headings += [column, "paper", "difference"] if with_paper else [column]
    notes = [about_intervals(len(results.seeds)), *notes]
    table = Table(name, title, headings, results.label, notes)
    if results.size.is_papers:
        for quoted_row in quoted:
            table.add_row(*_quoted_cells(quoted_row, with_paper), is_quoted=True)
    for row in rows:
        cells: list[Cell] = []
        for number in range(len(columns)):
            side = row.cell(number)
            cells.append(our_cell(results, side))
            if with_paper:
                paper = _paper(results, row, number)
                ours = None if side is None else results.accuracy(*side)
                beside = [paper_cell(paper), difference_from_paper_cell(ours, paper)]
                cells += [marked(cell) for cell in beside] if row.doubtful else beside
        table.add_row(*row.labels, *cells)
    return table


def paired_table(
    name: str,
    title: str,
    results: Results,
    rows: Sequence[Row],
    *,
    labels: Sequence[str] = ("trained with",),
    with_paper: bool = False,
    notes: Sequence[str] = (),
) -> Table:
    """Return a table of accuracies with one shot and five, and differences from the first row.

    With the paper's number beside each accuracy stands the paper's own difference from its first
    row: rows may have other episodes, so only differences compare.
    """
    headings = list(labels)
    for column in BOTH_SHOTS:
        if with_paper:
            headings += [column, "paper", "paired difference", "paper's difference"]
        else:
            headings += [column, "paired difference"]
    notes = [about_intervals(len(results.seeds)), *notes]
    table = Table(name, title, headings, results.label, notes)
    for row in rows:
        cells: list[Cell] = []
        for number in range(len(BOTH_SHOTS)):
            side = row.cell(number)
            first = rows[0].cell(number)
            difference = None
            if side is not None and first is not None:
                difference = results.difference(side, first)
            cells.append(our_cell(results, side))
            if with_paper:
                paper = _paper(results, row, number)
                papers_first = None if row is rows[0] else _paper(results, rows[0], number)
                cells.append(paper_cell(paper))
                cells.append(difference_cell(difference, len(results.seeds)))
                cells.append(paper_difference_cell(paper, papers_first))
            else:
                cells.append(difference_cell(difference, len(results.seeds)))
        table.add_row(*row.labels, *cells)
    return table


def rank_correlation(
    results: Results, sides: Sequence[Side], numbers: Sequence[float]
) -> float | None:
    """Return Spearman's rank correlation with other numbers; None if an accuracy is missing."""
    means = []
    for side in sides:
        accuracy = results.accuracy(*side)
        if accuracy is None:
            return None
        means.append(accuracy.mean)
    if len(set(means)) == 1:
        return None
    return float(scipy.stats.spearmanr(means, numbers).statistic)


def _paper(results: Results, row: Row, column: int) -> Number | None:
    """Return the paper's number, which is compared at its size only."""
    return row.paper[column] if row.paper and results.size.is_papers else None


def _quoted_cells(row: QuotedRow, with_paper: bool) -> list[Cell | str]:
    cells: list[Cell | str] = [f"{row.name} (quoted)", *row.more_labels]
    for number in row.numbers:
        if with_paper:
            cells += [Cell(MISSING), paper_cell(number), Cell(MISSING)]
        else:
            cells.append(paper_cell(number))
    return cells
