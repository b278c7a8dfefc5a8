"""A recipe is a table or figure of the paper: which trainings it needs, and what it makes of their results."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Self

from nearshot.episode_shape import EpisodeShape
from nearshot.errors import InputError
from nearshot.evaluation import Accuracy, PooledAccuracy, pool_seeds
from nearshot.experiments.results import Measurement, Results, RunResult
from nearshot.experiments.scales import Scale
from nearshot.experiments.tables import Figure, Table
from nearshot.training import TrainConfig

__all__ = ["ALL", "Found", "FoundAccuracy", "Recipe", "Wanted", "like"]

ALL = "all"  # of a recipe's datasets
# Whose settings a scale takes that has a dataset of its own, and whose statements it is held to.
STANDS_FOR = "cifar-fs"


@dataclass(frozen=True)
class Wanted:
    """A training that a recipe needs, whatever its seed, and what is to be measured of it.

    Attributes:
        config: the settings; the seed is filled in.
        measurements: beyond the validation accuracies, which every training has.
    """

    config: TrainConfig
    measurements: tuple[Measurement, ...] = ()


@dataclass(frozen=True)
class FoundAccuracy(PooledAccuracy):
    """An accuracy over the training seeds that there are, which says so where they are fewer than were asked for.

    Attributes:
        n_asked: how many seeds were asked for.
    """

    n_asked: int = 1

    def about_seeds(self, n_asked: int | None = None) -> str:
        """Say it by what was asked for."""
        return super().about_seeds(self.n_asked if n_asked is None else n_asked)


@dataclass(frozen=True, eq=False)
class Found:
    """The results there are, for a scale and seeds: what a recipe's outputs are made from.

    Attributes:
        results: the folder.
        scale: which size of experiment.
        seeds: which training seeds.
        episode: for a picture of the pairs of an episode, which.
        n_asked: how many seeds were asked for, where `seeds` are those of them that there are.
    """

    results: Results
    scale: Scale
    seeds: tuple[int, ...]
    episode: EpisodeShape | None = None
    n_asked: int | None = None

    def of_seeds_that_ran(self, configs: Iterable[TrainConfig]) -> Self:
        """Return this without the seeds that none of some trainings has, if any has one; the label tells how many."""
        ran = {run.seed for config in configs for run in self.runs(config)}
        seeds = tuple(seed for seed in self.seeds if seed in ran)
        return replace(self, seeds=seeds or self.seeds, n_asked=self.n_asked or len(self.seeds))

    def runs(self, config: TrainConfig) -> list[RunResult]:
        """Return the results of a training, a seed each; those that are missing are left out."""
        changed = self.scale.change(config)
        found = (self.results.get(replace(changed, seed=seed), self.scale.name) for seed in self.seeds)
        return [result for result in found if result is not None]

    def accuracies(self, config: TrainConfig, measurement: Measurement) -> list[Accuracy]:
        """Return an accuracy for each seed that has it."""
        return [run.accuracy(measurement) for run in self.runs(config) if run.has(measurement)]

    def pooled(self, config: TrainConfig, measurement: Measurement) -> FoundAccuracy | None:
        """Return the accuracy over the seeds that were run, or None where none was."""
        accuracies = self.accuracies(config, measurement)
        if not accuracies:
            return None
        try:
            together = pool_seeds(accuracies)
        except InputError as error:
            runs = [run for run in self.runs(config) if run.has(measurement)]
            files = ", ".join(str(self.results.path(run.config, self.scale.name)) for run in runs)
            raise InputError(
                f"Some seeds of a training were measured otherwise than the others. Move their files away and measure "
                f"them again: {files}. {error}"
            ) from error
        return FoundAccuracy(**vars(together), n_asked=len(self.seeds))

    def on(self, dataset: str) -> str:
        """Return the dataset that this is really about: a scale may have its own."""
        return self.scale.dataset or dataset

    @property
    def label(self) -> str:
        """What every output says about its scale."""
        seeds = f"{len(self.seeds)} training seeds" if len(self.seeds) > 1 else f"training seed {self.seeds[0]}"
        wanting = f", of {self.n_asked} asked for" if self.n_asked not in (None, len(self.seeds)) else ""
        return f"{self.scale.label}; {seeds}{wanting}"


@dataclass(frozen=True)
class Recipe:
    """One table or figure.

    Attributes:
        name: what `nearshot reproduce` is told.
        title: what it is, with the paper's table, figure or section.
        datasets: on which datasets it can be run; on the first, at least, the paper has it.
        wanted: the trainings it needs on a dataset.
        tables: its tables, from what was found.
        figures: its figures.
    """

    name: str
    title: str
    datasets: tuple[str, ...]
    wanted: Callable[[str], Sequence[Wanted]]
    tables: Callable[[Found, str], Sequence[Table]]
    figures: Callable[[Found, str], Sequence[Figure]] = field(default=lambda found, dataset: ())

    def on(self, dataset: str | None, scale: Scale | None = None) -> tuple[str, ...]:
        """Return the datasets that somebody means by one: by None the recipe's first, by "all" each that it has.

        A scale with a dataset of its own puts it in the place of each, so one stands for all, whatever is meant: the
        same for every recipe, so that they share trainings and statements are judged by what was run.
        """
        if scale is not None and scale.dataset is not None:
            return (STANDS_FOR if STANDS_FOR in self.datasets else self.datasets[0],)
        if dataset == ALL:
            return self.datasets
        return (self.datasets[0] if dataset is None else dataset,)


def like(where: str, dataset: str, papers: str) -> str:
    """Say where the paper has something; of another dataset than the paper's, that it is like it.

    >>> like("Figure 3", "mini-imagenet", "mini-imagenet"), like("Figure 3", "cifar-fs", "mini-imagenet")
    ('Figure 3', 'like Figure 3, which is about mini-imagenet')
    """
    return where if dataset == papers else f"like {where}, which is about {papers}"
