"""Regenerate tables and figures: run what is missing, then write what is available."""

import time
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Annotated, Any, Literal

import torch
import tyro
from rich.console import Console

from nearshot.devices import chosen_device
from nearshot.episode_shape import EpisodeShape
from nearshot.errors import InputError, look_up
from nearshot.io import write_json
from nearshot.paper.claims import claims_as_table
from nearshot.paper.executors.base import Executor
from nearshot.paper.executors.local import LocalMachine, n_cores
from nearshot.paper.executors.ray import RayCluster
from nearshot.paper.identity import validation_id
from nearshot.paper.jobs import AGAIN, DONE, MEASURE, TRAIN, JobPlan, chosen_jobs, jobs_of, plan_of
from nearshot.paper.recipe import ALL, Found, Recipe, outputs_of
from nearshot.paper.recipes import RECIPES
from nearshot.paper.results import DAMAGED, LeftOutWarning, Results, RunResult, result_of
from nearshot.paper.runner import Outcome, run_jobs
from nearshot.paper.scales import OWN, PAPER, PAPER_SIZE, Scale
from nearshot.paper.tables import Figure, Table
from nearshot.text import counted, format_list, print_line
from nearshot.training import RunFolder, TrainConfig
from nearshot.training.run_folder import describe_environment

__all__ = ["Reproduction", "ReproductionOptions", "chosen_recipes", "collect", "reproduce"]

Folder = Annotated[Path, tyro.conf.arg(metavar="DIR")]


@dataclass(frozen=True, kw_only=True)
class ReproductionOptions:
    """What to regenerate and what to run for it: the options of `reproduce` and of `nearshot reproduce`."""

    dataset: str | None = None
    """cifar-fs, mini-imagenet or tiered-imagenet, by default each recipe's first; or "all", each
    that a recipe has. Without names, recipes that do not run on it are skipped."""
    seeds: int | None = None
    """The number of training seeds; by default 3, as in the paper, and 1 in the quick form and in trials."""
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
    on: Literal["here", "ray"] = "here"
    """Run on this machine's GPUs (or its CPU), or on the Ray cluster that this machine belongs to (extra: ray)."""
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


@dataclass(frozen=True, eq=False)
class Reproduction:
    """What was regenerated: how the runs ended, tables, figures, and all files that were written.

    Attributes:
        claims: the paper's statements and our verdicts, one table per dataset with runs.
        not_run: recipes without any run, with the datasets, such as "supcon (mini-imagenet)".
    """

    outcome: Outcome
    tables: tuple[Table, ...]
    figures: tuple[Figure, ...]
    files: tuple[Path, ...]
    claims: tuple[Table, ...] = ()
    not_run: tuple[str, ...] = ()


def reproduce(
    names: Sequence[str] = (),
    options: ReproductionOptions | None = None,
    *,
    scale: Scale = PAPER,
    executor: Executor | None = None,
    console: Console | None = None,
    **settings: Any,
) -> Reproduction:
    """Run what is missing for some tables and figures, and write them, with the paper's numbers beside ours.

    Args:
        names: the names of recipes; none for all.
        options: what to regenerate and what to run for it.
        scale: the paper's setting, or one of `nearshot.paper.scales.smaller`, such as the quick
            form.
        executor: where to run, instead of what the options say.
        console: where to show progress.
        settings: fields of `ReproductionOptions`, as keywords.
    """
    options = replace(options or ReproductionOptions(), **settings)
    for name, number in (("seeds", options.seeds), ("minutes", options.minutes)):
        if number is not None and number <= 0:
            raise InputError(f"{name} must be positive (got {number}).")
    recipes, seeds = (
        chosen_recipes(names, options.dataset, scale),
        range(options.seeds or scale.n_seeds),
    )
    results, runs = Results(options.results), Path(options.runs)
    outcome = Outcome()
    if not options.tables_only:
        jobs = chosen_jobs(jobs_of(recipes, options.dataset, scale, seeds), options.only)
        plan = plan_of(jobs, results, runs, train_again=options.train_again)
        if executor is None:
            kind = RayCluster if options.on == "ray" else LocalMachine
            shares: dict[str, Any] = {"gpus_per_run": options.gpus_per_run, "small": scale.is_small}
            executor = kind(results, runs, options.data_dir, **shares)
        summary = results.folder / scale.name / "last-run.json"
        outcome = _run(plan, executor, console or Console(stderr=True), summary, options.minutes)
    found = Found(
        results, scale, tuple(seeds), EpisodeShape(*options.episode) if options.episode else None
    )
    made = [
        outputs_of(recipe, found, on)
        for recipe in recipes
        for on in recipe.on(options.dataset, scale)
    ]
    tables = tuple(table for one in made for table in one.tables)
    figures = tuple(figure for one in made for figure in one.figures)
    claims = tuple(
        claims_as_table(found, about)
        for about in dict.fromkeys(one.dataset for one in made if one.runs)
    )
    folder = results.folder / "tables" / scale.name
    folder.mkdir(parents=True, exist_ok=True)
    outputs: list[Table | Figure] = [*tables, *claims, *figures]
    files = tuple(file for output in outputs for file in output.write(folder))
    missing: dict[str, list[str]] = {}
    for one in made:
        if not one.tables:
            missing.setdefault(one.recipe.name, []).append(found.on(one.dataset))
    not_run = tuple(f"{name} ({', '.join(on)})" for name, on in missing.items())
    return Reproduction(outcome, tables, figures, files, claims, not_run)


def chosen_recipes(
    names: Sequence[str], dataset: str | None = None, scale: Scale = PAPER
) -> list[Recipe]:
    """Return recipes by name; without names all, or all that run on the dataset."""
    if dataset is not None and scale.dataset is not None:
        raise InputError(
            f"dataset must be left out here: the quick form runs on {scale.dataset} (got {dataset!r})."
        )
    recipes = [look_up(RECIPES, name, "recipe") for name in names] or list(RECIPES.values())
    if dataset is None:
        return recipes
    known = [recipe.datasets for recipe in recipes]
    for datasets in known if names else [tuple(chain(*known))]:
        look_up(dict.fromkeys((*datasets, ALL)), dataset, "dataset of the paper")
    return [recipe for recipe in recipes if dataset in (ALL, *recipe.datasets)]


def collect(folder: str | Path, results: str | Path, scale: Scale) -> list[RunResult]:
    """Copy finished runs of `nearshot train`, from this or another machine, into the results.

    Only the run's own files are read. A warning names damaged runs. Runs of another input size or
    validation than the scale's go into the folder "own": they are in the report, and in no table of
    the paper.
    """
    store = Results(results)
    found: list[RunResult] = []
    for path in sorted(Path(folder).glob("**/result.json")):
        run = RunFolder(path.parent)
        try:
            result = result_of(run, scale.name if _fits(run.read_config(), scale) else OWN, {})
        except DAMAGED as error:
            message = f"{path.parent} is skipped ({type(error).__name__}: {error})."
            warnings.warn(message, LeftOutWarning, stacklevel=2)
            continue
        store.put(result)
        found.append(result)
    if not found:
        raise InputError(f"There is no finished run under {folder}.")
    return found


def _fits(config: TrainConfig, scale: Scale) -> bool:
    """Return whether a run has the input size and the validation of a scale."""
    expected = scale.change(replace(config, input_size=PAPER_SIZE))
    defaults = scale.change(TrainConfig(input_size=PAPER_SIZE))
    return expected.input_size == config.input_size and validation_id(config) == validation_id(
        defaults
    )


def _run(
    plan: JobPlan, executor: Executor, console: Console, summary: Path, minutes: float | None
) -> Outcome:
    """Log the plan, run it, and write a summary with its duration."""
    states = "; ".join(f"{len(alike)} {state}" for state, alike in plan.items() if alike)
    if len(plan[DONE]) < sum(map(len, plan.values())):
        print_line(console, f"Runs: {states}.")
    if plan[AGAIN]:
        names = format_list([job.name for job in plan[AGAIN]], str)
        print_line(
            console,
            f"More is to be measured of {names}, and the weights are not in {executor.runs}.",
        )
    jobs = [*plan[MEASURE], *plan[TRAIN], *plan[AGAIN]]  # measuring first, since it is quick
    if not jobs:
        return Outcome(done=plan[DONE])
    summary.parent.mkdir(parents=True, exist_ok=True)  # fails before anything is trained
    began = time.perf_counter()
    outcome = run_jobs([*plan[DONE], *jobs], executor, console=console, minutes=minutes)
    seconds, n_new = time.perf_counter() - began, len(outcome.done) - len(plan[DONE])
    print_line(
        console, f"Done: {n_new} of {counted(len(jobs), 'run')} in {seconds / 60:.1f} minutes."
    )
    if outcome.left:
        print_line(
            console, f"Not done, as the time was too short: {counted(len(outcome.left), 'run')}."
        )
    device = torch.device("cpu") if executor.accelerator == "cpu" else chosen_device()
    content = {
        "seconds": round(seconds, 1),
        "done_before": len(plan[DONE]),
        "done": n_new,
        "trained_again": len(plan[AGAIN]),
        "failed": len(outcome.failed),
        "left": len(outcome.left),
        "at_once": executor.n_at_once,
        "cores": n_cores(),
        "environment": describe_environment(device),
    }
    write_json(summary, content)
    return outcome
