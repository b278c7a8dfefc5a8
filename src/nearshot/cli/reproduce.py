"""`nearshot reproduce`."""

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

import tyro
from rich.console import Console

from nearshot.cli._tables import print_entries
from nearshot.errors import InputError, NearshotError
from nearshot.paper.executors.local import LocalMachine
from nearshot.paper.jobs import (
    AGAIN,
    DONE,
    TRAIN,
    Job,
    JobPlan,
    chosen_jobs,
    describe_cost,
    jobs_of,
    plan_of,
)
from nearshot.paper.reproduce import ReproductionOptions, chosen_recipes, collect, reproduce
from nearshot.paper.results import Results
from nearshot.paper.scales import OWN, Scale, smaller
from nearshot.text import counted
from nearshot.training.run_folder import run_name

WIDTH_OF_FILES = 120  # of tables that are not printed to a terminal


@dataclass(frozen=True, kw_only=True)
class Reproduce(ReproductionOptions):
    """Regenerate tables and figures of the paper: run what is missing, and write them with the paper's numbers.

    Examples: nearshot reproduce --list; nearshot reproduce pairs;
    nearshot reproduce batch-size --dataset cifar-fs --seeds 3; nearshot reproduce --all --quick
    """

    names: Annotated[
        tyro.conf.Positional[tuple[str, ...]],
        tyro.conf.arg(metavar="[NAME ...]", help_behavior_hint=""),
    ] = ()
    """The tables or figures; --list shows all."""
    all: bool = False
    """All of them."""
    list: bool = False
    """Only list them, with what is done, what is left to run and about how long that takes; with
    --only '*' list the runs, by name."""
    quick: bool = False
    """A small form of everything, on the embedded glyphs and a CPU, one run per core. It is
    labelled as no reproduction."""
    input_size: int | None = None
    """Train on smaller images than the paper's 84×84, such as 32; the results are kept apart."""
    steps: int | None = None
    """Only so many steps per run, to try everything out; the results are kept apart."""
    collect: Annotated[Path | None, tyro.conf.arg(metavar="DIR")] = None
    """Copy the finished runs of `nearshot train` under a folder into the results, then stop."""

    def run(self, console: Console) -> None:
        """Run, print the tables, and name the files; unreadable files are named and skipped."""
        scale = smaller(self.input_size, self.steps, self.quick)
        if self.list:
            self._list(scale, console)
        elif self.collect is not None:
            self._collect(self.collect, scale, console)
        elif self.names or self.all:
            self._reproduce(scale, console)
        else:
            raise InputError("names must be given, or --all; --list shows them.")

    def _reproduce(self, scale: Scale, console: Console) -> None:
        progress = Console(stderr=True, highlight=False)
        done = reproduce(self.names, self, scale=scale, console=progress)
        if not console.is_terminal and "COLUMNS" not in os.environ:
            console.width = WIDTH_OF_FILES
        tables = list(done.tables)
        for claims in done.claims if self.all else ():  # without the reasons, which are long
            note = f"The reasons are in {claims.name}.md, and in the page of `nearshot report`."
            short = tuple(row[:3] for row in claims.rows)
            tables.append(
                replace(
                    claims, headings=claims.headings[:3], rows=short, notes=(*claims.notes, note)
                )
            )
        for table in tables:
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

    def _collect(self, folder: Path, scale: Scale, console: Console) -> None:
        """Collect runs; print their validation accuracies and where they are now."""
        found = collect(folder, self.results, scale)
        for result in found:
            best = [
                f"{name.removeprefix('val ')} {a['mean']:.2f}"
                for name, a in result.content["accuracies"].items()
            ]
            console.print(
                f"{run_name(result.config)} ({result.id}){': ' if best else ''}{', '.join(best)}"
            )
        for name in dict.fromkeys(result.scale for result in found):
            n_runs = sum(result.scale == name for result in found)
            why = (
                f"; not of this scale ({scale.label}), they are in no table of the paper"
                if name == OWN
                else ""
            )
            console.print(
                f"{counted(n_runs, 'run')} copied to the results in {self.results / name}{why}."
            )
        console.print("nearshot report shows them all on one page.")

    def _list(self, scale: Scale, console: Console) -> None:
        """Print the recipes, or the runs that --only chooses, and what is left to do."""
        results, seeds = Results(self.results), range(self.seeds or scale.n_seeds)
        n_at_once = LocalMachine(results, self.runs, small=True).n_at_once if scale.is_small else 1
        recipes = chosen_recipes(self.names, self.dataset, scale)

        def plan(jobs: Sequence[Job]) -> JobPlan:
            return plan_of(jobs, results, self.runs, train_again=self.train_again)

        def state(jobs: Sequence[Job]) -> str:
            if not jobs:
                return "nothing to run"
            planned = plan(jobs)
            left = [*planned[TRAIN], *planned[AGAIN]]
            again = f", {len(planned[AGAIN])} {AGAIN}" if planned[AGAIN] else ""
            cost = f"; left: {describe_cost(left, results, n_at_once)}" if left else ""
            return f"{len(planned[DONE])} of {counted(len(jobs), 'run')} done{again}{cost}"

        jobs = chosen_jobs(jobs_of(recipes, self.dataset, scale, seeds), self.only)
        if self.only:
            states = {job.id: name for name, alike in plan(jobs).items() for job in alike}
            entries = [
                (job.name, states[job.id], f"for {', '.join(job.wanted_by)}") for job in jobs
            ]
            about_all = "Without --list, those that are not done are run."
        else:
            entries = []
            for recipe in recipes:
                datasets = scale.dataset or ", ".join(recipe.on(self.dataset))
                others = "" if self.dataset or scale.dataset else ", ".join(recipe.datasets[1:])
                about = f"{recipe.title} ({datasets}{f'; with --dataset also {others}' if others else ''})"
                entries.append(
                    (recipe.name, state(jobs_of([recipe], self.dataset, scale, seeds)), about)
                )
            about_all = "Recipes share runs, so that all cost less than their sum."
        if len(entries) > 1:
            entries.append(("Together", state(jobs), about_all))
        print_entries(f"{scale.label}; {counted(len(seeds), 'seed')}", entries, console)
