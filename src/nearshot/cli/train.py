"""`nearshot train`."""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace
from pathlib import Path
from shlex import quote
from typing import Annotated

import torch
import tyro
from rich.console import Console

from nearshot.cli import description
from nearshot.errors import InputError, did_you_mean
from nearshot.models import build_backbone
from nearshot.text import counted, print_line
from nearshot.training import PRESETS, Hardware, TrainConfig, train
from nearshot.training.assembly import open_splits, with_resolved_path
from nearshot.training.autoconfig import TRAINING, fitted
from nearshot.training.batches import compositions, make_batches
from nearshot.training.methods import batch_kind, resolve_method
from nearshot.training.run_folder import run_name
from nearshot.training.validation import validation_queries

__all__ = ["Train", "chosen_preset", "fitted_settings", "options_of_episodes", "parse"]

STOPPED = 143  # as the shell has it for what SIGTERM has ended, so that nobody takes the run for finished


@dataclass(frozen=True)
class Train:
    """Train a network, validate it as it learns, and keep its best epochs in a run's folder.

    Without a preset, batches and episodes that you do not choose are made to fit what you do and the pictures that
    there are, which is said.

    Examples: nearshot train --preset glyphs-nca;
    nearshot train --preset cifar-fs-prototypical --batch-size 256 --seed 1;
    nearshot train --preset cifar-fs-nca --resume; nearshot train --dataset ./my-photos --epochs 50
    """

    config: tyro.conf.OmitArgPrefixes[TrainConfig] = field(default_factory=TrainConfig)
    hardware: tyro.conf.OmitArgPrefixes[Hardware] = field(default_factory=Hardware)
    preset: str | None = None
    """Start from named settings: a dataset (cifar-fs, mini-imagenet, tiered-imagenet, omniglot, glyphs) and a method
    (nca, prototypical, matching, simpleshot, and on the first three also prototypical-snell, matching-snell, supcon),
    such as cifar-fs-nca. Other options change them, and --help then shows their values. Without a preset or dataset it
    is glyphs-nca, which takes a minute or two."""
    output: Annotated[Path | None, tyro.conf.arg(metavar="DIR")] = None
    """The run's folder; by default runs/ and a name that says what differs from a preset."""
    data_dir: Annotated[Path | None, tyro.conf.arg(metavar="DIR")] = None
    """Where prepared datasets live; by default $NEARSHOT_DATA, or ~/.cache/nearshot."""
    resume: bool = False
    """Go on from the run's checkpoint; the result is what it would have been without the interruption."""
    overwrite: bool = False
    """Throw a run in the same folder away, and start again."""
    checkpoint_seconds: float = 10.0
    """How old the last checkpoint must be for a new one at the end of an epoch: what a killed run can lose, beside the
    epoch that it was in."""
    dry_run: bool = False
    """Only print the settings, and what the training costs in steps and images. (A folder that is not prepared yet is
    prepared for that, and stays so.)"""
    wandb: Annotated[str | None, tyro.conf.arg(metavar="PROJECT")] = None
    """Log to a Weights & Biases project too."""
    fit: tyro.conf.Suppress[tuple[str, ...]] = ()  # the settings that may give way to the data
    of_episodes: tyro.conf.Suppress[tuple[str, ...]] = ()  # the options among those given that only episodes have

    def run(self, console: Console) -> None:
        """Train, and say how good it is and where it lies."""
        if self.of_episodes and (kind := batch_kind(self.config)) != "episodes":
            does = "does" if len(self.of_episodes) == 1 else "do"
            told = f"{' and '.join(self.of_episodes)} {does} nothing here: {kind} batches have no episodes."
            print_line(Console(stderr=True), told)
        if self.dry_run:
            _describe(self, console)
            return
        result = train(
            self.config,
            folder=self.output,
            data_dir=self.data_dir,
            hardware=self.hardware,
            fit=self.fit,
            resume=self.resume,
            overwrite=self.overwrite,
            checkpoint_seconds=self.checkpoint_seconds,
            wandb=self.wandb,
        )
        if torch.distributed.is_available() and torch.distributed.is_initialized():
            torch.distributed.destroy_process_group()
        if result.rank:
            return  # the first rank says it for all
        if not result.finished:
            console.print(f"Stopped, and saved. Go on with the same command and --resume: {result.folder}")
            if result.best:
                where = "" if self.data_dir is None else f" --data-dir {quote(str(self.data_dir))}"
                run = quote(str(result.folder))
                console.print(f"How good it is so far: nearshot evaluate {run} --split val{where}")
            raise SystemExit(STOPPED)
        for name, accuracy in result.best.items():
            console.print(f"{name}: {accuracy} % on the validation split, best at epoch {result.best_epochs[name]}")
        console.print(f"The run is in {result.folder}. Next: nearshot evaluate {quote(str(result.folder))}")


def parse(arguments: list[str]) -> Train:
    """Return the command that the arguments describe; they override the settings of the preset among them."""
    start = Train(
        config=chosen_preset(arguments), fit=fitted_settings(arguments), of_episodes=options_of_episodes(arguments)
    )
    return tyro.cli(Train, prog="nearshot train", args=arguments, default=start, description=description(Train))


def chosen_preset(arguments: list[str]) -> TrainConfig:
    """Return the settings that the arguments start from."""
    for place, argument in enumerate(arguments):
        option, _, value = argument.partition("=")
        if option == "--preset":
            name = value or (arguments[place + 1] if place + 1 < len(arguments) else "")
            if name not in PRESETS:
                said = f"There is no preset {name!r}." if name else "--preset needs a name."
                nearly = did_you_mean(name, PRESETS)
                raise InputError(said + (nearly or f" There are: {', '.join(PRESETS)}."))
            return PRESETS[name]
    other_data = any(argument.partition("=")[0] == "--dataset" for argument in arguments)
    return TrainConfig() if other_data else PRESETS["glyphs-nca"]


def fitted_settings(arguments: list[str]) -> tuple[str, ...]:
    """Return the settings that may give way to each other and to the data: those that neither one nor a preset gives.

    >>> fitted_settings(["train", "--dataset", "./my-photos", "--batch-size", "64", "--validation-way=2"])
    ('images_per_class', 'n_shot', 'least_images', 'validation_shots', 'validation_queries')
    >>> fitted_settings(["train", "--dataset", "./my-photos", "--preset", "cifar-fs-nca"])
    ()
    """
    given = _options(arguments)
    if "--preset" in given:
        return ()
    return tuple(name for name in TRAINING if f"--{name.replace('_', '-')}" not in given)


def options_of_episodes(arguments: list[str]) -> tuple[str, ...]:
    """Return the options among the arguments that shape episodes, and do nothing where batches are none.

    >>> options_of_episodes(["train", "--images_per_class=8", "--batch-size", "64", "--n-shot", "1"])
    ('--n-shot', '--images-per-class')
    """
    given = _options(arguments)
    return tuple(option for option in ("--n-way", "--n-shot", "--n-query", "--images-per-class") if option in given)


def _options(arguments: list[str]) -> set[str]:
    return {argument.partition("=")[0].replace("_", "-") for argument in arguments}


def _describe(command: Train, console: Console) -> None:
    """Say what would be trained; all that a training refuses before its first step is refused here."""
    config = with_resolved_path(command.config)
    method = resolve_method(config, command.fit)
    fabric = command.hardware.fabric(config)
    stores = open_splits(config, command.data_dir)
    store = stores["train"]
    input_size = config.input_size or store.images.shape[1]
    backbone = build_backbone(config.backbone, input_size=input_size)
    config, changes = fitted(config, stores, command.fit, n_ranks=fabric.world_size)
    n_query = validation_queries(config, stores)
    batches = make_batches(config, store.labels, store.class_names, n_ranks=fabric.world_size)
    n_steps = config.epochs * len(batches)
    command.hardware.resolved(fabric.device, config, backbone, n_ranks=fabric.world_size, n_steps=n_steps)
    config = replace(
        config,
        batches=batch_kind(config),
        input_size=input_size,
        warm_up=config.warm_up_epochs,
        validation_queries=n_query,
    )
    first_epoch = store.labels[batches.epoch_indices()].view(-1, batches.batch_size)
    made_of = compositions(first_epoch, config, method)
    console.print(json.dumps(config.as_dict(), indent=2, ensure_ascii=False))
    console.print(
        f"{method.title} on {config.dataset}: {len(store):,} images of {len(store.class_names):,} classes, "
        f"{type(batches).__name__}, {batches.batch_size} images a batch"
    )
    if made_of:
        positives, negatives = (sum(one[i] for one in made_of) / len(made_of) for i in (1, 2))
        console.print(f"pairs a batch: {positives:,.0f} positive, {negatives:,.0f} negative")
        unpaired = sum(one.anchors_without_positive for one in made_of) / len(made_of)
        if unpaired:
            console.print(f"{unpaired:.1f} anchors a batch have no positive; --batches episodes gives every class some")
    console.print(
        f"{counted(config.epochs, 'epoch')} of {counted(len(batches), 'step')}: {counted(n_steps, 'step')}, "
        f"{n_steps * batches.batch_size:,} images"
    )
    for change in changes:
        console.print(change)
    name = run_name(with_resolved_path(command.config))
    console.print(f"The run would be in {command.output or Path('runs') / name}")
