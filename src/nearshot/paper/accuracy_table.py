"""The shape that most tables share: a row per run and a column per measurement, the paper's numbers beside ours."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from nearshot.paper.differences import difference_cell, difference_of
from nearshot.paper.numbers import SHOTS, Number
from nearshot.paper.recipe import Found, Recipe, Side, Wanted, like
from nearshot.paper.results import Measurement
from nearshot.paper.tables import Cell, Row, Table, cell, difference, marked
from nearshot.training import TrainConfig

PAPER_DATASETS = ("cifar-fs", "mini-imagenet")
BOTH_SHOTS = tuple(f"{shot}-shot" for shot in SHOTS)


class AccuracyRow(NamedTuple):
    """A row: its first cells, the run and measurement of each column, and the paper's numbers where it prints them.

    A row without any run is the paper's alone, and only shown at its scale. The label of a run is
    its backbone.
    """

    labels: tuple[str | TrainConfig, ...]
    sides: Sequence[Side | None]
    paper: Sequence[Number | None] = ()
    doubtful: bool = False  # whether the paper's numbers are: a note says why


def both_shots(config: TrainConfig, split: str = "val", classifier: str = "centroid") -> list[Side]:
    """Return a run's measurements with one shot and with five."""
    return [(config, Measurement(split, shot, classifier)) for shot in SHOTS]


@dataclass(frozen=True)
class AccuracyTable:
    """A table of accuracies; `{on}` in its name and title is the dataset, and `{where}` the place in the paper."""

    name: str  # of its file
    title: str
    labels: tuple[str, ...]  # the headings of the first columns
    lines: Callable[[str], Sequence[AccuracyRow]]  # on a dataset
    columns: tuple[str, ...] = BOTH_SHOTS  # the headings of the accuracies
    place: str = ""  # the section of the paper, where that is about miniImageNet alone
    measured: bool = False  # after training; otherwise validation accuracies are enough
    with_paper: bool = False  # the paper's number and the difference stand beside each accuracy
    # Its paired difference from the first row stands beside each accuracy. With the paper's number,
    # so does the paper's difference, instead of ours minus the paper's: rows may have other
    # episodes, so only these compare.
    paired: bool = False
    notes: tuple[
        str, ...
    ] = ()  # `{episodes}` are those of networks and features that adapt to each

    def wanted(self, dataset: str) -> Wanted:
        """Return the runs that it needs, and what to measure of them."""
        wanted: dict[TrainConfig, list[Measurement]] = {}
        for line in self.lines(dataset):
            for config, one in filter(None, line.sides):
                wanted.setdefault(config, []).extend([one] if self.measured else [])
        return wanted

    def table(self, found: Found, dataset: str) -> Table:
        """Return the table."""
        on = found.on(dataset)
        more = ("paper",) * self.with_paper + ("paired difference",) * self.paired
        more += ("paper's difference" if self.paired else "difference",) * self.with_paper
        lines = [line for line in self.lines(dataset) if any(line.sides) or found.scale.is_papers]
        return Table(
            self.name.format(on=on),
            self.title.format(on=on, where=like(self.place, dataset)),
            found.label,
            (*self.labels, *(heading for column in self.columns for heading in (column, *more))),
            tuple(self._row(found, line, lines[0]) for line in lines),
            tuple(note.format(episodes=found.scale.adapted_episodes) for note in self.notes),
        )

    def recipe(self, title: str, datasets: tuple[str, ...] = PAPER_DATASETS) -> Recipe:
        """Return a recipe with this table alone."""
        name = self.name.removesuffix("-{on}")
        return Recipe(
            name, title, datasets, self.wanted, lambda found, dataset: [self.table(found, dataset)]
        )

    def _row(self, found: Found, line: AccuracyRow, first: AccuracyRow) -> Row:
        paper = line.paper if line.paper and found.scale.is_papers else (None,) * len(line.sides)
        cells: list[Cell] = []
        of_first = (
            first.paper
            if line.paper and first.paper and line is not first
            else (None,) * len(line.sides)
        )
        for side, against, number, papers in zip(
            line.sides, first.sides, paper, of_first, strict=True
        ):
            ours = None if side is None else found.pooled(*side)
            cells.append(cell(ours if self.with_paper or side else number))
            beside = [cell(number)] if self.with_paper else []
            if self.paired:
                beside.append(
                    difference_cell(
                        difference_of(found, side, against) if side and against else None
                    )
                )
            if self.with_paper:
                beside.append(
                    difference(number, papers) if self.paired else difference(ours, number)
                )
            cells += map(marked, beside) if line.doubtful else beside
        labels = (
            one if isinstance(one, str) else found.scale.change(one).backbone for one in line.labels
        )
        return (*labels, *cells)
