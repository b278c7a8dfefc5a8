"""Regenerate tables and figures: run what is missing, then write what is available."""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch
from rich.console import Console

from nearshot.devices import chosen_device
from nearshot.episode_shape import EpisodeShape
from nearshot.errors import InputError, look_up
from nearshot.io import write_json
from nearshot.paper.executors.base import Executor
from nearshot.paper.executors.local import LocalMachine, n_cores
from nearshot.paper.executors.ray import RayCluster
from nearshot.paper.jobs import JobPlan, choose_jobs, jobs_of, plan_jobs
from nearshot.paper.recipe import ALL, Recipe, outputs_of
from nearshot.paper.recipes import RECIPES, pairs
from nearshot.paper.results import Results
from nearshot.paper.runner import Outcome, run_jobs
from nearshot.paper.sizes import PAPER, Size, usual_size
from nearshot.paper.tables import Figure, Table
from nearshot.text import counted, format_list, print_line
from nearshot.training.run_folder import describe_environment

__all__ = ["Reproduction", "choose_recipes", "reproduce"]


@dataclass(frozen=True, eq=False)
class Reproduction:
    """What was regenerated: how the runs ended, tables, figures, and all files that were written.

    Attributes:
        not_run: recipes without any run, with the datasets, such as "supcon (mini-imagenet)".
    """

    outcome: Outcome
    tables: tuple[Table, ...]
    figures: tuple[Figure, ...]
    files: tuple[Path, ...]
    not_run: tuple[str, ...] = ()


def reproduce(
    names: Sequence[str] = (),
    *,
    size: Size | None = None,
    dataset: str | None = None,
    seeds: int | None = None,
    tables_only: bool = False,
    train_again: bool = True,
    only: Sequence[str] = (),
    minutes: float | None = None,
    executor: Literal["local", "ray"] | Executor = "local",
    gpus_per_run: float = 1.0,
    episode: EpisodeShape | None = None,
    results: str | Path = "results",
    runs: str | Path = "runs/experiments",
    data_dir: str | Path | None = None,
    console: Console | None = None,
) -> Reproduction:
    """Run what is missing for some tables and figures, and write them beside the paper's numbers.

    Args:
        names: the names of recipes; none for all.
        size: `PAPER`, `QUICK` or `at_input_size(n)`; by default the paper's, and on a dataset that
            the paper does not have its own.
        dataset: by default each recipe's first; "all" for each of the paper's that a recipe has.
            Without names, recipes that do not run on it are skipped.
        seeds: the number of training seeds, by default the size's.
        tables_only: train nothing; make the tables and figures of the available results.
        train_again: train a run again if more is to be measured and its weights are gone.
        only: run only the runs whose names match one of these patterns, in this order.
        minutes: save and stop all runs after so many minutes; the same call resumes them.
        executor: "local" for this machine, "ray" for the Ray cluster that it belongs to (extra:
            ray), or an executor of your own.
        gpus_per_run: the share of a GPU that a run takes; 0 for none.
        episode: another episode to draw as Figure 1, which is the recipe `pairs`.
        results: the folder of results, tables and figures.
        runs: the folder of run folders.
        data_dir: the folder of prepared datasets; by default $NEARSHOT_DATA, or
            ~/.cache/nearshot.
        console: where to show progress, by default standard error.
    """
    if seeds is not None and seeds < 1:
        raise InputError(f"seeds must be at least 1 (got {seeds}).")
    if minutes is not None and minutes <= 0:
        raise InputError(f"minutes must be positive (got {minutes}).")
    if size is None:
        size = usual_size(dataset)
    recipes = choose_recipes(names, dataset, size)
    seed_range = range(seeds or size.n_seeds)
    store = Results(results, size, seed_range)
    outcome = Outcome()
    if not tables_only:
        jobs = choose_jobs(jobs_of(recipes, dataset, size, seed_range), only)
        plan = plan_jobs(jobs, store, runs, train_again=train_again)
        if isinstance(executor, str):
            kind = {"local": LocalMachine, "ray": RayCluster}[executor]
            executor = kind(
                store, Path(runs), data_dir, gpus_per_run=gpus_per_run, small=size.is_small
            )
        summary = store.folder / size.name / "last-run.json"
        outcome = _run(plan, executor, console or Console(stderr=True), summary, minutes)
    tables: list[Table] = []
    figures: list[Figure] = []
    not_run: dict[str, list[str]] = {}
    for recipe in recipes:
        for recipe_dataset in recipe.datasets_for(dataset, size):
            output = outputs_of(recipe, store, recipe_dataset)
            tables.extend(output.tables)
            figures.extend(output.figures)
            if not output.tables:
                not_run.setdefault(recipe.name, []).append(store.dataset(recipe_dataset))
    if episode is not None:
        figures.append(pairs.figure(episode))
    folder = store.folder / "tables" / size.name
    folder.mkdir(parents=True, exist_ok=True)
    files: list[Path] = []
    for table in tables:
        files.extend(table.write(folder))
    for figure in figures:
        files.extend(figure.write(folder))
    return Reproduction(
        outcome,
        tuple(tables),
        tuple(figures),
        tuple(files),
        tuple(f"{name} ({', '.join(datasets)})" for name, datasets in not_run.items()),
    )


def choose_recipes(
    names: Sequence[str], dataset: str | None = None, size: Size = PAPER
) -> list[Recipe]:
    """Return recipes by name; without names all, or all that run on the dataset."""
    if dataset is not None and size.dataset is not None:
        raise InputError(
            f"dataset must be None at the size {size.name}, which runs on {size.dataset} "
            f"(got {dataset!r})."
        )
    recipes = list(RECIPES.values())
    if names:
        recipes = [look_up(RECIPES, name, "recipe") for name in names]
    if dataset is None:
        return recipes
    if names:
        for recipe in recipes:
            look_up(dict.fromkeys((*recipe.datasets, ALL)), dataset, f"dataset of {recipe.name}")
        return recipes
    datasets = dict.fromkeys(name for recipe in recipes for name in recipe.datasets)
    look_up({**datasets, ALL: None}, dataset, "dataset of the paper")
    return [recipe for recipe in recipes if dataset in (ALL, *recipe.datasets)]


def _run(
    plan: JobPlan, executor: Executor, console: Console, summary: Path, minutes: float | None
) -> Outcome:
    """Log the plan, run it, and write a summary with its duration."""
    jobs = plan.left
    if jobs or plan.skipped:
        states = [f"{len(alike)} {state}" for state, alike in plan.by_state.items() if alike]
        print_line(console, f"Runs: {'; '.join(states)}.")
    if plan.to_train_again:
        names = format_list([job.name for job in plan.to_train_again], str)
        print_line(
            console,
            f"More is to be measured of {names}, and the weights are not in {executor.runs}.",
        )
    if not jobs:
        return Outcome(done=plan.done)
    # Fail before anything is trained.
    summary.parent.mkdir(parents=True, exist_ok=True)
    began = time.perf_counter()
    outcome = run_jobs([*plan.done, *jobs], executor, console=console, minutes=minutes)
    seconds = time.perf_counter() - began
    n_new = len(outcome.done) - len(plan.done)
    print_line(
        console, f"Done: {n_new} of {counted(len(jobs), 'run')} in {seconds / 60:.1f} minutes."
    )
    if outcome.left:
        print_line(console, f"Not done within the time: {counted(len(outcome.left), 'run')}.")
    device = torch.device("cpu") if executor.accelerator == "cpu" else chosen_device()
    content = {
        "seconds": round(seconds, 1),
        "done_before": len(plan.done),
        "done": n_new,
        "trained_again": len(plan.to_train_again),
        "failed": len(outcome.failed),
        "left": len(outcome.left),
        "at_once": executor.n_at_once,
        "cores": n_cores(),
        "environment": describe_environment(device),
    }
    write_json(summary, content)
    return outcome
