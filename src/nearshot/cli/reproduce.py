"""`nearshot reproduce`."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import tyro
from rich.console import Console

from nearshot.cli._tables import print_entries
from nearshot.episode_shape import EpisodeShape
from nearshot.errors import InputError, NearshotError
from nearshot.paper.jobs import Job, JobPlan, choose_jobs, jobs_of, plan_jobs
from nearshot.paper.recipe import Recipe
from nearshot.paper.reproduce import choose_recipes, reproduce
from nearshot.paper.results import Results
from nearshot.paper.sizes import QUICK, Size, at_input_size, usual_size
from nearshot.text import counted

# The width of tables that are not printed to a terminal.
WIDTH_OF_FILES = 120

Folder = Annotated[Path, tyro.conf.arg(metavar="DIR")]


@dataclass(frozen=True, kw_only=True)
class Reproduce:
    """Regenerate tables and figures of the paper, with its numbers; train what is missing.

    Examples:
      nearshot reproduce --list
      nearshot reproduce pairs
      nearshot reproduce batch-size --dataset cifar-fs --seeds 3
      nearshot reproduce --all --quick
    """

    names: Annotated[
        tyro.conf.Positional[tuple[str, ...]],
        tyro.conf.arg(metavar="[NAME ...]", help_behavior_hint=""),
    ] = ()
    """The tables or figures; --list shows all."""
    all: bool = False
    """All of them."""
    list: bool = False
    """Only list them, with what is done and what is left to run; with --only '*' list the runs, by
    name."""
    quick: bool = False
    """A small form of everything, on the embedded glyphs and a CPU, one run per core. It is
    labelled as no reproduction."""
    input_size: int | None = None
    """Train on smaller images than the paper's 84×84 (tiny-tiered's 64×64), such as 32; the results
    are kept apart."""
    dataset: str | None = None
    """cifar-fs, mini-imagenet, tiered-imagenet or tiny-tiered, by default each recipe's first; or
    "all", each of the paper's (not tiny-tiered) that a recipe has. With --all, recipes that do not
    run on it are skipped."""
    seeds: int | None = None
    """The number of training seeds; by default 3, as in the paper, and 1 in the quick form."""
    tables_only: bool = False
    """Train nothing; make the tables and figures of the available results."""
    train_again: bool = True
    """Train a run again if more is to be measured and its weights are gone; with --no-train-again
    it is skipped, and its cells stay empty."""
    only: Annotated[
        tuple[str, ...], tyro.conf.arg(metavar="[PATTERN ...]", help_behavior_hint="")
    ] = ()
    """Run only the runs whose names match, in this order, such as 'cifar-fs-nca,seed=*'. The error
    for a pattern without a match lists the names."""
    minutes: float | None = None
    """Save and stop all runs after so many minutes: for a GPU that you have for a while. The same
    command resumes later."""
    executor: Literal["local", "ray"] = "local"
    """Run on this machine's GPUs (or its CPU), or on the Ray cluster that this machine belongs to
    (extra: ray)."""
    gpus_per_run: float = 1.0
    """The share of a GPU that a run takes: with 0.5, two small runs share one; 0 for none."""
    episode: tuple[int, int, int] | None = None
    """For pairs: the ways, shots and queries of the episode to draw."""
    results: Folder = Path("results")
    """The folder of results, tables and figures."""
    runs: Folder = Path("runs/experiments")
    """The folder of run folders."""
    data_dir: Annotated[Path | None, tyro.conf.arg(metavar="DIR")] = None
    """The folder of prepared datasets; by default $NEARSHOT_DATA, or ~/.cache/nearshot."""

    @property
    def size(self) -> Size:
        """The size that the options choose."""
        if self.quick and self.input_size is not None:
            raise InputError(
                "input_size must be left out with quick, which has its own "
                f"(got {self.input_size})."
            )
        if self.quick:
            return QUICK
        if self.input_size is None:
            return usual_size(self.dataset)
        return at_input_size(self.input_size)

    def run(self, console: Console) -> None:
        """Run, print the tables, and name the files."""
        if self.list:
            self._list(console)
        elif self.names or self.all:
            self._reproduce(console)
        else:
            raise InputError("names must be given, or --all; --list shows them.")

    def _reproduce(self, console: Console) -> None:
        done = reproduce(
            self.names,
            size=self.size,
            dataset=self.dataset,
            seeds=self.seeds,
            tables_only=self.tables_only,
            train_again=self.train_again,
            only=self.only,
            minutes=self.minutes,
            executor=self.executor,
            gpus_per_run=self.gpus_per_run,
            episode=None if self.episode is None else EpisodeShape(*self.episode),
            results=self.results,
            runs=self.runs,
            data_dir=self.data_dir,
            console=Console(stderr=True, highlight=False),
        )
        if not console.is_terminal and "COLUMNS" not in os.environ:
            console.width = WIDTH_OF_FILES
        for table in done.tables:
            console.print(table.for_terminal(), soft_wrap=False, crop=False)
            console.print()
        if done.not_run:
            console.print(f"Nothing has been run yet for: {', '.join(done.not_run)}.")
        if done.files:
            console.print(f"{counted(len(done.files), 'file')} in {done.files[0].parent}.")
        failed = done.outcome.failed
        for failure in failed:
            console.print(f"Failed: {failure.job.name}: {failure.text} (log: {failure.log})")
        if failed:
            raise NearshotError(
                f"{counted(len(failed), 'run')} failed. The same command tries again."
            )

    def _list(self, console: Console) -> None:
        """Print the recipes, or the runs that --only chooses, and what is left to do."""
        size = self.size
        seeds = range(self.seeds or size.n_seeds)
        recipes = choose_recipes(self.names, self.dataset, size)
        jobs = choose_jobs(jobs_of(recipes, self.dataset, size, seeds), self.only)
        plan = self._plan(jobs)
        entries = []
        if self.only:
            states = {}
            for state, alike in plan.by_state.items():
                for job in alike:
                    states[job.id] = state
            entries = [(job.name, states[job.id], f"for {', '.join(job.recipes)}") for job in jobs]
        else:
            for recipe in recipes:
                recipe_plan = self._plan(jobs_of([recipe], self.dataset, size, seeds))
                entries.append((recipe.name, _progress(recipe_plan), self._about(recipe)))
        if len(entries) > 1:
            entries.append(("Together", _progress(plan), "Recipes share runs."))
        print_entries(f"{size.label}; {counted(len(seeds), 'seed')}", entries, console)

    def _plan(self, jobs: Sequence[Job]) -> JobPlan:
        results = Results(self.results, self.size)
        return plan_jobs(jobs, results, self.runs, train_again=self.train_again)

    def _about(self, recipe: Recipe) -> str:
        """Return a recipe's title with its datasets."""
        if self.size.dataset is not None:
            return f"{recipe.title} ({self.size.dataset})"
        datasets = ", ".join(recipe.datasets_for(self.dataset))
        others = ", ".join(recipe.datasets[1:])
        if self.dataset is None and others:
            datasets += f"; with --dataset also {others}"
        return f"{recipe.title} ({datasets})"


def _progress(plan: JobPlan) -> str:
    """Return how many runs of a plan are done, and what is left of the others."""
    n_jobs = sum(len(jobs) for jobs in plan.by_state.values())
    if not n_jobs:
        return "nothing to run"
    others = [f"{len(jobs)} {state}" for state, jobs in plan.by_state.items() if jobs]
    if plan.done:
        others = others[1:]
    return ", ".join([f"{len(plan.done)} of {counted(n_jobs, 'run')} done", *others])
