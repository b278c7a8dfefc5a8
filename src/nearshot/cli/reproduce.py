"""`nearshot reproduce`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Literal

import tyro
from rich.console import Console

from nearshot.cli._tables import Entry, print_entries
from nearshot.cli._warnings import print_warnings
from nearshot.episode_shape import EpisodeShape
from nearshot.errors import InputError, NearshotError
from nearshot.experiments.costs import cost_of
from nearshot.experiments.executors.base import Place, check_gpus_per_run
from nearshot.experiments.executors.local import LocalMachine
from nearshot.experiments.jobs import Job, chosen_jobs, jobs_of
from nearshot.experiments.plan import Plan, plan_of
from nearshot.experiments.recipe import Recipe
from nearshot.experiments.reproduce import chosen_recipes, collect, reproduce
from nearshot.experiments.results import LeftOutWarning, Results, RunResult
from nearshot.experiments.runner import Outcome
from nearshot.experiments.scales import OWN, Scale, smaller
from nearshot.experiments.tables import Table as Claims
from nearshot.text import counted
from nearshot.training.run_folder import run_name

__all__ = ["Reproduce"]


@dataclass(frozen=True)
class Reproduce:
    """Regenerate tables and figures of the paper: train what is missing, and write them with the paper's beside ours.

    Examples: nearshot reproduce --list; nearshot reproduce pairs;
    nearshot reproduce batch-size --dataset cifar-fs --seeds 3; nearshot reproduce --all --quick
    """

    names: Annotated[
        tyro.conf.Positional[tuple[str, ...]], tyro.conf.arg(metavar="[NAME ...]", help_behavior_hint="")
    ] = ()
    """Which tables or figures; --list shows all."""
    all: bool = False
    """All of them."""
    list: bool = False
    """Only list them, with what is done, what is left to train and about how long that takes; with --only '*' the
    trainings themselves, by name."""
    dataset: str | None = None
    """cifar-fs, mini-imagenet or tiered-imagenet, by default each recipe's first; or "all", each that a recipe has.
    With --all, recipes that are not about it are left out."""
    seeds: int | None = None
    """How many training seeds; by default 3, as in the paper, and 1 in the quick form."""
    quick: bool = False
    """A small form of everything, on the embedded glyphs and a CPU, a training on each core. Not a reproduction, and it
    says so."""
    input_size: int | None = None
    """Train on smaller images than the paper's 84×84, such as 32; the results are kept apart."""
    steps: int | None = None
    """Only so many steps a training, to try everything out; the results are kept apart."""
    collect: Annotated[Path | None, tyro.conf.arg(metavar="DIR")] = None
    """Take the finished runs under a folder, which `nearshot train` made, into the results; then stop."""
    tables_only: bool = False
    """Train nothing; make the tables and figures of what there is."""
    train_again: bool = True
    """Where something more is to be measured of a training and its weights are gone, train it again; with
    --no-train-again it is left as it is, and its cells stay empty."""
    episode: tuple[int, int, int] | None = None
    """For pairs: the ways, shots and queries of the episode to draw."""
    on: Literal["here", "ray"] = "here"
    """Run on this machine's GPUs (or its CPU), or on the Ray cluster that this machine belongs to (extra: ray)."""
    gpus_per_run: float = 1.0
    """How much of a GPU a training takes: with 0.5, two share one, which small ones do well; 0 for none."""
    only: Annotated[tuple[str, ...], tyro.conf.arg(metavar="[PATTERN ...]", help_behavior_hint="")] = ()
    """Run only the trainings whose names match, in this order, such as 'cifar-fs-nca,seed=*'; a pattern that matches
    none is answered with the names."""
    minutes: float | None = None
    """Begin no training that would probably not be done within so many minutes, by how long others took: for a GPU that
    is yours for a while. The same command goes on another time."""
    results: Annotated[Path, tyro.conf.arg(metavar="DIR")] = Path("results")
    """Where the results are, and where tables and figures go."""
    runs: Annotated[Path, tyro.conf.arg(metavar="DIR")] = Path("runs/experiments")
    """Where the trainings' folders are."""
    data_dir: Annotated[Path | None, tyro.conf.arg(metavar="DIR")] = None
    """Where prepared datasets live; by default $NEARSHOT_DATA, or ~/.cache/nearshot."""

    def run(self, console: Console) -> None:
        """Run, show the tables, and say where everything is; files that cannot be used are named, and left out."""
        with print_warnings(LeftOutWarning, others=True):
            self._run(console)

    def _run(self, console: Console) -> None:
        scale = smaller(self.input_size, self.steps, self.quick)
        seeds = self.seeds if self.seeds is not None else (1 if self.quick or self.steps else 3)
        if seeds < 1:
            raise InputError(f"--seeds must be at least 1, not {seeds}.")
        if self.list:
            _list(self, scale, seeds, console)
            return
        if self.collect is not None:
            found = collect(self.collect, self.results, scale)
            for name in dict.fromkeys(result.scale for result in found):
                _say_collected([result for result in found if result.scale == name], self.results, scale, console)
            console.print("nearshot report shows them all on one page.")
            return
        if not self.names and not self.all:
            raise InputError("Say which tables or figures to regenerate, or --all; --list shows them.")
        done = reproduce(
            self.names,
            dataset=self.dataset,
            seeds=seeds,
            scale=scale,
            results=self.results,
            runs=self.runs,
            data_dir=self.data_dir,
            place=self._place(scale),
            episode=EpisodeShape(*self.episode) if self.episode else None,
            train_missing=not self.tables_only,
            train_again=self.train_again,
            only=self.only,
            minutes=self.minutes,
            console=Console(stderr=True, highlight=False),
        )
        claims = map(_without_reasons, done.claims if self.all else ())
        for table in (*done.tables, *claims):
            console.print(table.for_terminal(), "")
        if done.not_run:
            console.print(f"Nothing has been run yet of: {', '.join(done.not_run)}.")
        if done.files:
            are = "is" if len(done.files) == 1 else "are"
            console.print(f"{counted(len(done.files), 'file')} {are} in {done.files[0].parent}.")
        _report_failures(done.outcome, console)

    def _place(self, scale: Scale) -> Place:
        if self.on == "here":
            where = (Results(self.results), self.runs, self.data_dir)
            return LocalMachine(*where, small=scale.is_small, gpus_per_run=self.gpus_per_run)
        from nearshot.experiments.executors.ray import RayCluster  # noqa: PLC0415

        return RayCluster(Results(self.results), self.runs, self.data_dir, gpus_per_run=self.gpus_per_run)


def _without_reasons(claims: Claims) -> Claims:
    """Return the claims with their verdicts alone; the reasons are long."""
    note = f"The numbers behind them are in {claims.name}.md, and in the page that `nearshot report` makes."
    rows = tuple(row[:3] for row in claims.rows)
    return replace(claims, headings=claims.headings[:3], rows=rows, notes=(*claims.notes, note))


def _say_collected(found: Sequence[RunResult], results: Path, scale: Scale, console: Console) -> None:
    """Say which runs were taken, how good they are on the validation split, and where they are now."""
    for result in found:
        best = [f"{name.removeprefix('val ')} {one['mean']:.2f}" for name, one in result.content["accuracies"].items()]
        console.print(f"{run_name(result.config)} ({result.id}){': ' if best else ''}{', '.join(best)}")
    are, they = ("is", "It is") if len(found) == 1 else ("are", "They are")
    where = results / found[0].scale
    console.print(f"{counted(len(found), 'run')} {are} now among the results of {where}.")
    if found[0].scale == OWN:
        console.print(
            f"{they} not of this scale ({scale.label}): of another input size, or validated otherwise. So no table of "
            "the paper has them."
        )


def _report_failures(outcome: Outcome, console: Console) -> None:
    for failure in outcome.failed:
        console.print(f"Failed: {failure.job.name}: {failure.text} (log: {failure.log})")
    for job in outcome.stopped:
        console.print(f"Stopped: {job.name}; the same command goes on with it.")
    if outcome.failed or outcome.stopped:
        raise NearshotError(f"{_how_it_ended(len(outcome.failed), len(outcome.stopped))}: run the command again.")


def _how_it_ended(n_failed: int, n_stopped: int) -> str:
    """Say how many trainings failed and were stopped, of which there are some.

    >>> _how_it_ended(1, 2), _how_it_ended(0, 1)
    ('1 training failed and 2 were stopped', '1 training was stopped')
    """
    were = "was" if n_stopped == 1 else "were"
    if not n_failed:
        return f"{counted(n_stopped, 'training')} {were} stopped"
    return f"{counted(n_failed, 'training')} failed" + (f" and {n_stopped} {were} stopped" if n_stopped else "")


def _list(command: Reproduce, scale: Scale, seeds: int, console: Console) -> None:
    """Print a list of the recipes, or of the trainings that --only chooses: what they are, and what is left to do."""
    results = Results(command.results)
    check_gpus_per_run(command.gpus_per_run)
    n_at_once = LocalMachine(results, command.runs, small=scale.is_small).n_at_once if scale.is_small else 1
    recipes = chosen_recipes(command.names, command.dataset, scale)

    def wanted_by(*chosen: Recipe) -> list[Job]:
        return jobs_of(chosen, command.dataset, scale, range(seeds))

    def plan_for(jobs: Sequence[Job]) -> Plan:
        plan = plan_of(jobs, results, command.runs)
        return plan if command.train_again else plan.without_again()

    def state(jobs: Sequence[Job]) -> str:
        if not jobs:
            return "nothing to train"
        plan = plan_for(jobs)
        cost = cost_of((*plan.trained, *plan.again), results, n_at_once)
        return (
            f"{len(plan.done)} of {counted(len(jobs), 'training')} done"
            + (f", {len(plan.again)} to train again" if plan.again else "")
            + (f"; left: {_short(cost.images)} images, {cost}" if cost.images else "")
        )

    def recipe_entry(recipe: Recipe) -> Entry:
        chosen = (scale.dataset,) if scale.dataset else recipe.on(command.dataset)
        others = [] if scale.dataset or command.dataset else recipe.datasets[1:]
        datasets = ", ".join(chosen) + (f"; with --dataset also {', '.join(others)}" if others else "")
        return Entry(recipe.name, state(wanted_by(recipe)), f"{recipe.title} ({datasets})")

    jobs = wanted_by(*recipes)
    if command.only:
        jobs = chosen_jobs(jobs, command.only)
        states = plan_for(jobs).states()
        entries = [Entry(job.name, states[job.id], f"for {', '.join(job.wanted_by)}") for job in jobs]
        together = "What is not done of these is what runs without --list."
    else:
        entries = [recipe_entry(recipe) for recipe in recipes]
        together = "Recipes share trainings, so that all cost less than their sum."
        if command.dataset is None and scale.dataset is None:
            together += " Each is on its first dataset here; --dataset all is every one of them."
    if len(entries) > 1:
        entries.append(Entry("Together", state(jobs), together))
    print_entries(f"{scale.label}; {counted(seeds, 'seed')}", entries, console)


def _short(number: int) -> str:
    return f"{number / 1e6:,.1f} M" if number >= 1e6 else f"{number / 1e3:,.0f} k"
