"""Regenerating tables and figures: run what is missing, then write what there is."""

from __future__ import annotations

import json
import time
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryFile
from typing import NamedTuple

import torch
from rich.console import Console

from nearshot.checks import is_integer
from nearshot.devices import chosen_device
from nearshot.episode_shape import EpisodeShape
from nearshot.errors import InputError, NearshotError, look_up
from nearshot.experiments.budget import TimeLimit
from nearshot.experiments.claims import claims_as_table
from nearshot.experiments.costs import seconds_of
from nearshot.experiments.executors.base import Place
from nearshot.experiments.executors.local import LocalMachine, n_cores
from nearshot.experiments.identity import WATCHING
from nearshot.experiments.jobs import Job, chosen_jobs, jobs_of
from nearshot.experiments.plan import Plan, plan_of
from nearshot.experiments.recipe import ALL, Found, Recipe
from nearshot.experiments.recipes import RECIPES
from nearshot.experiments.results import DAMAGED, LeftOutWarning, Results, RunResult, reason_of, result_of
from nearshot.experiments.runner import Outcome, run_jobs
from nearshot.experiments.scales import OWN, PAPER, PAPER_SIZE, Scale
from nearshot.experiments.tables import Figure, Table
from nearshot.io import atomic_write
from nearshot.text import counted, print_line
from nearshot.training import RunFolder, TrainConfig
from nearshot.training.run_folder import describe_environment

__all__ = ["Outputs", "Reproduction", "chosen_recipes", "collect", "outputs_of", "reproduce", "write_outputs"]


@dataclass(frozen=True, eq=False)
class Reproduction:
    """What was regenerated.

    Attributes:
        outcome: what became of the trainings.
        tables: the tables.
        figures: the figures.
        files: all that was written.
        claims: what the paper says and what was found, a table for each dataset that something was run on.
        not_run: recipes that nothing has been run of yet, with the datasets, such as "supcon (mini-imagenet)".
    """

    outcome: Outcome
    tables: tuple[Table, ...]
    figures: tuple[Figure, ...]
    files: tuple[Path, ...]
    claims: tuple[Table, ...] = ()
    not_run: tuple[str, ...] = ()


def chosen_recipes(names: Sequence[str], dataset: str | None = None, scale: Scale = PAPER) -> list[Recipe]:
    """Return recipes by name; for no name all of them, or all that run on the dataset, where one is meant."""
    if dataset is not None and scale.dataset is not None:
        raise InputError(f"The quick form runs on {scale.dataset}; leave the dataset out.")
    named = [look_up(RECIPES, name, "recipe") for name in names]
    for recipe in named:
        if dataset not in (None, ALL, *recipe.datasets):
            raise InputError(f"{recipe.name} is about {', '.join(recipe.datasets)}, not about {dataset!r}.")
    if named:
        return named
    if dataset is not None:
        known = dict.fromkeys((*(one for recipe in RECIPES.values() for one in recipe.datasets), ALL))
        look_up(known, dataset, "dataset of the paper")
    return [recipe for recipe in RECIPES.values() if dataset in (None, ALL, *recipe.datasets)]


def reproduce(
    names: Sequence[str] = (),
    *,
    dataset: str | None = None,
    seeds: int = 3,
    scale: Scale = PAPER,
    results: str | Path = "results",
    runs: str | Path = "runs/experiments",
    data_dir: str | Path | None = None,
    place: Place | None = None,
    episode: EpisodeShape | None = None,
    train_missing: bool = True,
    train_again: bool = True,
    only: Sequence[str] = (),
    minutes: float | None = None,
    console: Console | None = None,
) -> Reproduction:
    """Run what is missing of some tables and figures, and write them, with our numbers beside the paper's.

    Args:
        names: of recipes; none for all.
        dataset: which dataset; by default each recipe's first, and with "all" each that it has.
        seeds: how many training seeds; the paper uses 3.
        scale: the paper's setting, or one that `nearshot.experiments.scales.smaller` gives, such as the quick form.
        results: the folder of result files, which tables and figures are made from.
        runs: where the trainings' folders are.
        data_dir: where prepared datasets live.
        place: where to run; by default this machine.
        episode: for `pairs`, the episode to draw.
        train_missing: whether to train at all; False makes tables and figures of what there is.
        train_again: whether to train those again of which something more is wanted, and whose weights are gone.
        only: patterns of trainings' names, such as `*,seed=1`: only these are run, in this order; by default all are.
        minutes: begin no training that would probably not be done by then; by default there is no limit.
        console: where to show progress.
    """
    for name, several in (("names", names), ("only", only)):
        if isinstance(several, str):
            raise InputError(f"{name} must be several; for one, write [{several!r}].")
    if not isinstance(scale, Scale):
        raise InputError(f"scale must be one that nearshot.experiments.scales.smaller(…) gives, not {scale!r}.")
    if not is_integer(seeds) or seeds < 1:
        raise InputError(f"There must be at least 1 training seed, not {seeds}.")
    if minutes is not None and not minutes > 0:
        raise InputError(f"There must be some time, not {minutes:g} minutes.")
    recipes = chosen_recipes(names, dataset, scale)
    store, console = Results(results), console or Console(stderr=True)
    folder = Path(results) / "tables" / scale.name
    outcome = Outcome()
    if train_missing:
        plan = plan_of(chosen_jobs(jobs_of(recipes, dataset, scale, range(seeds)), only), store, runs)
        plan = plan if train_again else plan.without_again()
        place = place or LocalMachine(store, Path(runs), data_dir, small=scale.is_small)
        limit = None if minutes is None else _limit(minutes, store, place, Path(runs))
        outcome = _run(plan, store, place, console, Path(results) / scale.name / "last-run.json", limit)
    found = Found(store, scale, tuple(range(seeds)), episode)
    outputs = outputs_of(recipes, found, dataset)
    claims = [claims_as_table(found, about) for about in outputs.datasets]
    files = write_outputs([*outputs.tables, *claims], outputs.figures, folder)
    tables, figures = tuple(outputs.tables), tuple(outputs.figures)
    return Reproduction(outcome, tables, figures, tuple(files), tuple(claims), tuple(outputs.not_run))


def _limit(minutes: float, results: Results, place: Place, runs: Path) -> TimeLimit:
    """Return a limit that judges trainings by how long others took, which it looks up as they are done."""
    device = str(describe_environment(_device_of(place))["device"])

    def expected(jobs: Sequence[Job]) -> list[float]:
        return [seconds * place.n_sharing for seconds in seconds_of(jobs, results, runs, device)]

    return TimeLimit(60 * minutes, expected)


def _run(
    plan: Plan, results: Results, place: Place, console: Console, note: Path, limit: TimeLimit | None = None
) -> Outcome:
    """Say what is going to happen, let it happen, and write down how long it took."""
    for sentence in plan.sentences():
        print_line(console, sentence)
    started, began = time.perf_counter(), time.monotonic()
    if plan.left and isinstance(place, LocalMachine):
        place.prepare(plan.left if limit is None else limit.allowed(plan.left, 0.0))
    if plan.left:
        _check_writable(note.parent)
    outcome = run_jobs([*plan.done, *plan.left], results, plan.runs, place, console=console, limit=limit, began=began)
    if plan.left:
        seconds = time.perf_counter() - started
        n_new = len(outcome.done) - len(plan.done)
        were = "was" if n_new == 1 else "were"
        print_line(
            console, f"{n_new} of {counted(len(plan.left), 'training')} {were} done in {seconds / 60:.1f} minutes."
        )
        if outcome.left:
            were = "was" if len(outcome.left) == 1 else "were"
            print_line(
                console, f"{len(outcome.left)} would have taken longer than there was time for, and {were} not begun."
            )
        if outcome.elsewhere:
            print_line(console, f"Another process is still at {counted(len(outcome.elsewhere), 'training')}.")
        content = {
            "seconds": round(seconds, 1),
            "done_before": len(plan.done),
            "done": n_new,
            "trained_again": len(plan.again),
            "failed": len(outcome.failed),
            "left": len(outcome.left) + len(outcome.elsewhere),
            "at_once": place.n_at_once,
            "cores": n_cores(),
            "environment": describe_environment(_device_of(place)),
        }
        with atomic_write(note) as file:
            file.write((json.dumps(content, indent=2) + "\n").encode())
    return outcome


def _check_writable(folder: Path) -> None:
    """Make a folder, and refuse one that cannot be written to: trainings take hours, and their results come last."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise NearshotError(f"Results cannot be written to {folder}: {error.strerror}.") from error


def _device_of(place: Place) -> torch.device:
    """Return what trainings in a place run on, as far as this machine knows."""
    return torch.device("cpu") if isinstance(place, LocalMachine) and not place.uses_gpus else chosen_device()


def collect(folder: str | Path, results: str | Path, scale: Scale) -> list[RunResult]:
    """Take finished runs that `nearshot train` made, here or on another machine, into the results.

    Only their own files are read: settings, log, times and the accuracies of their best epochs. A warning names those
    that are damaged. What is not of the scale, as it has another input size or was validated otherwise, is kept apart
    in the folder "own": in the report, and in no table of the paper.
    """
    if not Path(folder).is_dir():
        raise InputError(f"There is no folder {folder}.")
    store = Results(results)
    found: list[RunResult] = []
    for path in sorted(Path(folder).glob("**/result.json")):
        run = RunFolder(path.parent)
        try:
            result = result_of(run, scale.name if _fits(run.read_config(), scale) else OWN, {})
            result.check()
        except DAMAGED as error:
            warnings.warn(f"{path.parent} is left out: {reason_of(error)}.", LeftOutWarning, stacklevel=2)
            continue
        store.put(result)
        found.append(result)
    if not found:
        raise InputError(f"There is no finished run under {folder}.")
    return found


def _fits(config: TrainConfig, scale: Scale) -> bool:
    """Whether a run is of a scale: of its input size, and validated as its runs are."""
    expected = scale.change(replace(config, input_size=PAPER_SIZE))
    defaults = scale.change(TrainConfig(input_size=PAPER_SIZE))
    return expected.input_size == config.input_size and all(
        getattr(config, name) == getattr(defaults, name) for name in WATCHING
    )


class Outputs(NamedTuple):
    """What recipes make of what was found.

    Attributes:
        tables: with the rows that something was run for.
        figures: of what was run.
        datasets: those that recipes were trained on.
        not_run: recipes that there is nothing of, with the datasets.
    """

    tables: list[Table]
    figures: list[Figure]
    datasets: list[str]
    not_run: list[str]


def outputs_of(recipes: Sequence[Recipe], found: Found, dataset: str | None) -> Outputs:
    """Return the tables and figures of some recipes, made from what was found; none where nothing was run."""
    tables: list[Table] = []
    figures: list[Figure] = []
    datasets: list[str] = []
    missing: dict[str, list[str]] = {}
    for recipe in recipes:
        for chosen in recipe.on(dataset, found.scale):
            wanted = recipe.wanted(chosen)
            there = found.of_seeds_that_ran(one.config for one in wanted)
            made: list[Table] = []
            if not wanted:
                made = [table for table in recipe.tables(there, chosen) if table.rows]
            elif any(there.runs(one.config) for one in wanted):
                datasets.append(chosen)
                made = [table.without_empty_rows() for table in recipe.tables(there, chosen) if table.has_ours]
            if made:
                tables += made
                figures += recipe.figures(there, chosen)
            else:
                missing.setdefault(recipe.name, []).append(found.on(chosen))
    not_run = [f"{name} ({', '.join(on)})" for name, on in missing.items()]
    return Outputs(tables, figures, list(dict.fromkeys(datasets)), not_run)


def write_outputs(tables: Sequence[Table], figures: Sequence[Figure], folder: Path) -> list[Path]:
    """Write tables as Markdown, LaTeX and CSV and figures as PNG and SVG."""
    folder.mkdir(parents=True, exist_ok=True)
    files = [file for table in tables for file in table.write(folder)]
    return files + [file for figure in figures for file in figure.write(folder)]
