"""A recipe is a table or figure of the paper: the runs that it needs, and what it makes of their results."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Self

import scipy.stats

from nearshot.episode_shape import EpisodeShape
from nearshot.evaluation import Accuracy, PooledAccuracy, pool_seeds
from nearshot.paper.identity import run_id
from nearshot.paper.results import Measurement, Results, RunResult
from nearshot.paper.sizes import Size
from nearshot.paper.tables import Figure, Table
from nearshot.training import TrainConfig

ALL = "all"  # of a recipe's datasets
Side = tuple[TrainConfig, Measurement]  # of a comparison: a run, and what was measured of it
Wanted = Mapping[
    TrainConfig, Sequence[Measurement]
]  # runs for every seed, and what to measure beyond validation
STANDS_FOR = (
    "cifar-fs"  # a scale with a dataset of its own has the settings and statements of this one
)


@dataclass(frozen=True)
class FoundAccuracy(PooledAccuracy):
    """An accuracy over the available training seeds, which says so if they are fewer than were requested."""

    n_asked: int = 1
    runs: tuple[RunResult, ...] = field(default=(), repr=False, compare=False)

    def about_seeds(self, n_asked: int | None = None) -> str:
        """Return what the seeds are, compared with those that were requested."""
        return super().about_seeds(self.n_asked if n_asked is None else n_asked)


@dataclass(frozen=True, eq=False)
class Found:
    """The available results of a scale and some seeds: what a recipe's outputs are made from.

    Attributes:
        episode: the episode that `pairs` draws.
        n_asked: how many seeds were requested, if `seeds` are only those that were run.
    """

    results: Results
    scale: Size
    seeds: tuple[int, ...]
    episode: EpisodeShape | None = None
    n_asked: int | None = None

    def of_seeds_that_ran(self, configs: Iterable[TrainConfig]) -> Self:
        """Return this without the seeds that no run has, unless that is all of them; the label says how many."""
        ran = {run.seed for config in configs for run in self.runs(config)}
        seeds = tuple(seed for seed in self.seeds if seed in ran)
        return replace(self, seeds=seeds or self.seeds, n_asked=self.n_asked or len(self.seeds))

    def runs(self, config: TrainConfig) -> list[RunResult]:
        """Return the available results of a configuration, one per seed."""
        changed = self.scale.change(config)
        found = (
            self.results.get(replace(changed, seed=seed), self.scale.name) for seed in self.seeds
        )
        return [result for result in found if result is not None]

    def accuracies(self, config: TrainConfig, measurement: Measurement) -> dict[int, Accuracy]:
        """Return the available accuracies of a configuration, by seed."""
        return {
            run.seed: run.accuracy(measurement) for run in self.runs(config) if run.has(measurement)
        }

    def pooled(self, config: TrainConfig, measurement: Measurement) -> FoundAccuracy | None:
        """Return the accuracy over the seeds that were run, with its runs; None if there are none."""
        runs = tuple(run for run in self.runs(config) if run.has(measurement))
        if not runs:
            return None
        together = pool_seeds([run.accuracy(measurement) for run in runs])
        return FoundAccuracy(**vars(together), n_asked=len(self.seeds), runs=runs)

    def rank_correlation(self, sides: Sequence[Side], numbers: Sequence[float]) -> str:
        """Return Spearman's rank correlation of accuracies and other numbers; empty where one is missing."""
        means = [accuracy.mean for side in sides if (accuracy := self.pooled(*side)) is not None]
        if len(means) < len(sides) or len(set(means)) == 1:
            return ""
        return f"{scipy.stats.spearmanr(means, numbers).statistic:.2f}".replace("-", "−")

    def on(self, dataset: str) -> str:
        """Return the dataset of the runs: a scale may have its own."""
        return self.scale.dataset or dataset

    @property
    def label(self) -> str:
        """What every output says about its scale."""
        seeds = (
            f"{len(self.seeds)} training seeds"
            if len(self.seeds) > 1
            else f"training seed {self.seeds[0]}"
        )
        wanting = (
            f", of {self.n_asked} asked for" if self.n_asked not in (None, len(self.seeds)) else ""
        )
        return f"{self.scale.label}; {seeds}{wanting}"


@dataclass(frozen=True)
class Recipe:
    """One table or figure.

    Attributes:
        title: what it is, with the paper's table, figure or section.
        datasets: the datasets that it can be run on; the paper has it on the first, at least.
        wanted: the runs that it needs on a dataset, and what to measure of each beyond validation.
        tables: its tables, from the available results; and its figures.
    """

    name: str
    title: str
    datasets: tuple[str, ...]
    wanted: Callable[[str], Wanted]
    tables: Callable[[Found, str], Sequence[Table]]
    figures: Callable[[Found, str], Sequence[Figure]] = field(default=lambda found, dataset: ())

    def on(self, dataset: str | None, scale: Size | None = None) -> tuple[str, ...]:
        """Return the datasets to run on: for None the recipe's first, for "all" each that it has.

        A scale with a dataset of its own replaces them: all recipes have the same settings then,
            and share runs.
        """
        if scale is not None and scale.dataset is not None:
            return (STANDS_FOR if STANDS_FOR in self.datasets else self.datasets[0],)
        if dataset == ALL:
            return self.datasets
        return (self.datasets[0] if dataset is None else dataset,)


@dataclass(frozen=True, eq=False)
class RecipeOutputs:
    """What a recipe makes of the results on a dataset."""

    recipe: Recipe
    dataset: str
    found: Found  # with the seeds that were run
    runs: tuple[RunResult, ...]  # the available ones, of `n_wanted`
    n_wanted: int
    tables: tuple[Table, ...]  # without the rows that nothing was run for; none if nothing was run
    figures: tuple[Figure, ...]


def outputs_of(recipe: Recipe, found: Found, dataset: str) -> RecipeOutputs:
    """Return the tables and figures of a recipe on a dataset: the only place where results become tables."""
    configs = recipe.wanted(dataset)
    there = found.of_seeds_that_ran(configs)
    seeded = (
        replace(found.scale.change(config), seed=seed) for seed in there.seeds for config in configs
    )
    wanted = {run_id(config): config for config in seeded}
    runs = tuple(
        filter(None, (found.results.get(config, found.scale.name) for config in wanted.values()))
    )
    tables = recipe.tables(there, dataset) if runs or not configs else ()
    kept = tuple(
        table.without_empty_rows()
        for table in tables
        if table.has_ours or (not configs and table.rows)
    )
    figures = tuple(recipe.figures(there, dataset)) if kept else ()
    return RecipeOutputs(recipe, dataset, there, runs, len(wanted), kept, figures)


def like(where: str, dataset: str) -> str:
    """Return where the paper has something about miniImageNet; for another dataset, that it is like it."""
    return where if dataset == "mini-imagenet" else f"like {where}, which is about mini-imagenet"
