"""What there is to report: the runs, and the recipes that have a number from them, by scale and dataset."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from nearshot.evaluation import PooledAccuracy
from nearshot.experiments.identity import run_id
from nearshot.experiments.jobs import jobs_of
from nearshot.experiments.recipe import ALL, Found, FoundAccuracy, Recipe
from nearshot.experiments.recipes import RECIPES
from nearshot.experiments.results import Measurement, Results, RunResult
from nearshot.experiments.scales import OWN, PAPER, Scale, scale_named
from nearshot.experiments.tables import Figure, Table
from nearshot.training import TrainConfig

__all__ = ["Collected", "Part", "Traced", "collect", "counted_parts"]


class _ReadOnce(Results):
    """Results that are read from the disk once: a page asks for each of them many times."""

    def __init__(self, results: Results) -> None:
        super().__init__(results.folder)
        self.all = list(results)
        self._by_id = {(result.scale, run_id(result.config)): result for result in self.all}

    def get(self, config: TrainConfig, scale: str) -> RunResult | None:
        """Return a training's result, or None where it has not been run."""
        return self._by_id.get((scale, run_id(config)))


class _Nothing(Results):
    """No results."""

    def __init__(self) -> None:
        super().__init__("nothing")

    def get(self, config: TrainConfig, scale: str) -> RunResult | None:
        """Return None."""
        return None

    def __iter__(self) -> Iterator[RunResult]:
        return iter(())


@dataclass(frozen=True, eq=False)
class Traced(Found):
    """What was found, remembering which runs each accuracy came from."""

    _sources: dict[int, tuple[PooledAccuracy, list[RunResult]]] = field(default_factory=dict)

    def pooled(self, config: TrainConfig, measurement: Measurement) -> FoundAccuracy | None:
        """Return the accuracy over seeds, and remember its runs."""
        accuracy = super().pooled(config, measurement)
        if accuracy is not None:
            # Beside the accuracy itself, so that it lives and its id stays its own.
            self._sources[id(accuracy)] = accuracy, [run for run in self.runs(config) if run.has(measurement)]
        return accuracy

    def behind(self, accuracy: PooledAccuracy | None) -> list[RunResult]:
        """Return the runs that an accuracy of a table's cell came from."""
        return self._sources[id(accuracy)][1] if id(accuracy) in self._sources else []


@dataclass(frozen=True, eq=False)
class Part:
    """A recipe on a dataset at a scale: its tables and figures, and the runs behind them."""

    recipe: Recipe
    dataset: str
    found: Traced
    n_trainings: int
    runs: tuple[RunResult, ...]
    tables: tuple[Table, ...]
    figures: tuple[Figure, ...]


@dataclass(frozen=True, eq=False)
class Collected:
    """Everything of one scale.

    Attributes:
        name: the scale's folder.
        scale: the scale, or None for one that is not known; then there are runs only.
        runs: all its runs.
        parts: the recipes with a number.
    """

    name: str
    scale: Scale | None
    runs: tuple[RunResult, ...]
    parts: tuple[Part, ...]

    @property
    def label(self) -> str:
        """What is to be said about the scale."""
        if self.name == OWN:
            return "runs of your own, each with its own settings; not a reproduction"
        return self.scale.label if self.scale else f"{self.name}: an unknown scale; not a reproduction"

    @property
    def is_papers(self) -> bool:
        """Whether numbers may be compared with the paper's."""
        return self.scale is not None and self.scale.is_papers


def collect(results: Results, scales: Sequence[Scale] = ()) -> list[Collected]:
    """Return what there is, the paper's scale first.

    Args:
        results: the folder.
        scales: scales of one's own, beside those that names are known of.
    """
    once = _ReadOnce(results)
    own = {scale.name: scale for scale in scales}
    names = sorted({result.scale for result in once.all}, key=lambda name: (name != PAPER.name, name))
    return [_collect_scale(once, name, own.get(name) or scale_named(name)) for name in names]


def counted_parts() -> list[Part]:
    """Return the recipes that need no training, nor results of any."""
    found = Traced(_Nothing(), PAPER, (0,))
    parts = [_part(recipe, found, recipe.datasets[0], 0, ()) for recipe in RECIPES.values() if not _trains(recipe)]
    return [part for part in parts if any(table.rows for table in part.tables)]


def _collect_scale(results: _ReadOnce, name: str, scale: Scale | None) -> Collected:
    runs = tuple(result for result in results.all if result.scale == name)
    parts = [] if scale is None else [part for recipe in RECIPES.values() for part in _parts(recipe, results, scale)]
    return Collected(name, scale, runs, tuple(parts))


def _parts(recipe: Recipe, results: _ReadOnce, scale: Scale) -> list[Part]:
    """Return a recipe's parts, a dataset each, as far as there are runs for it."""
    seeds = sorted({result.seed for result in results.all if result.scale == scale.name})
    parts = []
    for dataset in recipe.on(ALL, scale):
        jobs = jobs_of([recipe], dataset, scale, seeds)
        there = [run for job in jobs if (run := results.get(job.config, scale.name)) is not None]
        if there:
            own_seeds = tuple(sorted({run.seed for run in there}))
            n_trainings = len(jobs_of([recipe], dataset, scale, own_seeds))
            parts.append(_part(recipe, Traced(results, scale, own_seeds), dataset, n_trainings, there))
    return parts


def _part(recipe: Recipe, found: Traced, dataset: str, n_trainings: int, runs: Sequence[RunResult]) -> Part:
    tables, figures = recipe.tables(found, dataset), recipe.figures(found, dataset)
    return Part(recipe, dataset, found, n_trainings, tuple(runs), tuple(tables), tuple(figures))


def _trains(recipe: Recipe) -> bool:
    return any(recipe.wanted(dataset) for dataset in recipe.datasets)
