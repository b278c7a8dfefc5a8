"""A recipe is a table or figure of the paper: its runs, and what it makes of their results."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from nearshot.paper.numbers import Number
from nearshot.paper.results import Measurement, Results, Side
from nearshot.paper.sizes import OWN_SIZES, Size
from nearshot.paper.tables import Figure, Table
from nearshot.training import TrainConfig

ALL = "all"  # of a recipe's datasets
STANDS_FOR = "cifar-fs"  # a size with a dataset of its own has this one's settings and claims


@dataclass(frozen=True)
class Row:
    """A row of a table: its label, a run, what to measure of it, and the paper's numbers.

    Attributes:
        label: the text in the table's first column, or one for each of the first columns.
        measurements: what each column shows; None for a column that the row does not have.
        paper: the paper's numbers for the same columns; empty where it has none.
        from_validation: whether validation during training is enough; otherwise everything is
            measured after training, in one precision.
        doubtful: whether the paper's numbers are; a note of the table says why.
    """

    label: str | tuple[str, ...]
    config: TrainConfig
    measurements: Sequence[Measurement | None] = ()
    paper: Sequence[Number | None] = ()
    from_validation: bool = False
    doubtful: bool = False

    @property
    def labels(self) -> tuple[str, ...]:
        """The texts in the table's first columns."""
        return (self.label,) if isinstance(self.label, str) else self.label

    @property
    def to_measure(self) -> tuple[Measurement, ...]:
        """What is measured after training."""
        if self.from_validation:
            return ()
        return tuple(measurement for measurement in self.measurements if measurement is not None)

    def cell(self, column: int) -> Side | None:
        """Return the run and the measurement of a column; None if the row does not have it."""
        measurement = self.measurements[column]
        return None if measurement is None else (self.config, measurement)


def _no_figures(results: Results, dataset: str) -> list[Figure]:
    return []


@dataclass(frozen=True)
class Recipe:
    """One table or figure.

    Attributes:
        title: what it is, with the paper's table, figure or section.
        datasets: the datasets that it can be run on; the paper has it on the first, at least.
        rows: the runs that it needs on a dataset, in the order of training, with what is measured
            of each. Several rows may share a run.
        tables: its tables, from the available results; and its figures.
    """

    name: str
    title: str
    datasets: tuple[str, ...]
    rows: Callable[[str], Sequence[Row]]
    tables: Callable[[Results, str], Sequence[Table]]
    figures: Callable[[Results, str], Sequence[Figure]] = _no_figures

    def datasets_for(self, dataset: str | None, size: Size | None = None) -> tuple[str, ...]:
        """Return the datasets to run on: for None the recipe's first, for "all" the paper's.

        A size with a dataset of its own replaces them: all recipes have the same settings then, and
        share runs.
        """
        if size is not None and size.dataset is not None:
            return (STANDS_FOR if STANDS_FOR in self.datasets else self.datasets[0],)
        if dataset == ALL:
            return tuple(name for name in self.datasets if name not in OWN_SIZES)
        return (self.datasets[0] if dataset is None else dataset,)


@dataclass(frozen=True, eq=False)
class RecipeOutputs:
    """What a recipe makes of the results on a dataset: nothing if nothing was run for it."""

    tables: tuple[Table, ...] = ()
    figures: tuple[Figure, ...] = ()


def outputs_of(recipe: Recipe, results: Results, dataset: str) -> RecipeOutputs:
    """Return the figures of a recipe and its tables, without rows that were not run."""
    configs = [row.config for row in recipe.rows(dataset)]
    seen = results.with_seeds_that_ran(configs)
    was_run = any(seen.runs(config) for config in configs)
    if configs and not was_run:
        return RecipeOutputs()
    tables = recipe.tables(seen, dataset)
    if configs:
        kept = [table.without_empty_rows() for table in tables if table.has_ours]
    else:
        kept = [table.without_empty_rows() for table in tables if table.rows]
    if not kept:
        return RecipeOutputs()
    return RecipeOutputs(tuple(kept), tuple(recipe.figures(seen, dataset)))


def like(where: str, dataset: str) -> str:
    """Return a place of the paper that is about miniImageNet; of another dataset, a twin of it."""
    return where if dataset == "mini-imagenet" else f"like {where}, which is about mini-imagenet"
