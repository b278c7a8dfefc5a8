"""`nearshot train`."""

import dataclasses
import inspect
import json
import sys
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from shlex import quote
from typing import Annotated

import torch
import tyro
from rich.console import Console

from nearshot.data.augment import Augmentation
from nearshot.data.datasets import SOURCES
from nearshot.data.store import find_splits
from nearshot.errors import InputError, look_up
from nearshot.text import counted, print_line, print_message
from nearshot.training import (
    PRESETS,
    Hardware,
    RunFolder,
    TrainConfig,
    TrainResult,
    train,
)
from nearshot.training.autoconfig import TRAIN_SETTINGS
from nearshot.training.methods import METHODS, Method, UnknownMethod, change_method, method_class
from nearshot.training.plan import RunPlan, open_splits, plan_run, resolve_run
from nearshot.training.presets import PHOTOS, PHOTOS_FROM_SCRATCH
from nearshot.training.trainer import build_networks

# The shell's status of a process that SIGTERM ended, so that nobody takes the run for finished.
STOPPED = 143
HELP_OF_METHOD = (
    f"{', '.join(METHODS)}; or a `Method` of your own. By default the preset's, or nca. Settings "
    "that it shares with the preset's method keep the preset's values."
)


@dataclass(frozen=True)
class Start:
    """Options that choose the defaults of the others; --help after them shows these."""

    preset: Annotated[str | None, tyro.conf.arg(metavar="NAME")] = None
    """Start from named settings: a dataset (cifar-fs, mini-imagenet, tiered-imagenet, omniglot,
    tiny-tiered, glyphs) and a method (nca, prototypical, matching, simpleshot, and on the first
    three also prototypical-snell, matching-snell, supcon), such as cifar-fs-nca. Where miniImageNet
    is prepared with 84×84 images, mini-imagenet-84-nca replaces mini-imagenet-nca, and so on. Other
    options change them. Without a preset or dataset, glyphs-nca is used, which takes a minute or
    two."""
    method: Annotated[
        str | None, tyro.conf.arg(metavar="NAME|MODULE:CLASS", help=HELP_OF_METHOD)
    ] = None
    output: Annotated[Path | None, tyro.conf.arg(metavar="DIR")] = None
    """The run's folder; by default runs/ and a short name of dataset, method and seed."""
    data_dir: Annotated[Path | None, tyro.conf.arg(metavar="DIR")] = None
    """Where prepared datasets live; by default $NEARSHOT_DATA, or ~/.cache/nearshot."""
    resume: bool = False
    """Resume from the run's checkpoint; the result is the same as without the interruption. With
    --output, the run's own settings are read, and no other option is needed."""


@dataclass(frozen=True)
class Choices:
    """Settings that are read before the others, since they choose defaults or may adapt to data.

    None is a setting that was left to its default.
    """

    start: tyro.conf.OmitArgPrefixes[Start] = field(default_factory=Start)
    dataset: str | None = None
    init: str | None = None
    backbone: str | None = None
    side: int | None = None
    input_size: int | None = None
    batch_size: int | None = None
    n_way: int | None = None
    n_shot: int | None = None
    n_query: int | None = None
    images_per_class: int | None = None
    least_images: int | None = None
    validation_n_way: int | None = None
    validation_n_shot: tuple[int, ...] | None = None
    validation_n_query: int | None = None

    def config(self) -> TrainConfig:
        """Return the defaults of all settings, with those that were chosen here."""
        config = self._default_config()
        if self.start.method is not None:
            config = replace(
                config, method=change_method(config.method, method_class(self.start.method))
            )
        settings = {name: value for name, value in asdict(self).items() if value is not None}
        del settings["start"]
        if settings.get("init") == "none":
            settings["init"] = None
        if "n_shot" in settings:
            if config.method.n_shot is None:
                raise InputError(
                    f"n_shot is not a setting of the method {config.method_name} "
                    f"(got {self.n_shot}). Leave it out."
                )
            config = replace(config, method=replace(config.method, n_shot=settings.pop("n_shot")))
        return replace(config, **settings)

    def _default_config(self) -> TrainConfig:
        """Return the settings of the run to resume, of the preset, or for the kind of dataset."""
        begun = self.begun_run()
        if begun is not None:
            config = begun.read_config()
            if isinstance(config.method, UnknownMethod):
                method_class(config.method_name)  # raises the reason why it is unknown
            return config
        if self.start.preset is not None:
            return PRESETS[self.preset_for_images()]
        if self.dataset is None and self.init is None:
            return PRESETS["glyphs-nca"]
        is_own = self.dataset is not None and self.dataset not in SOURCES
        init = self.init
        if init is None:
            init = "auto" if is_own and self.backbone is None else "none"
        if init == "none":
            return PHOTOS_FROM_SCRATCH if is_own else TrainConfig()
        if self.backbone is not None:
            raise InputError(
                "init brings its own backbone: leave out backbone, or use init none "
                f"(got {self.backbone!r} and {init!r})."
            )
        return replace(PHOTOS, init=init)

    def begun_run(self) -> RunFolder | None:
        """Return the folder of the run to resume, if it is named."""
        if not self.start.resume or self.start.output is None:
            return None
        run = RunFolder(self.start.output)
        if (run.path / "config.json").is_file():
            return run
        has_settings = any(
            value is not None for name, value in vars(self).items() if name != "start"
        )
        if self.start.preset is None and self.start.method is None and not has_settings:
            raise InputError(
                f"There is no run in {run.path} to resume. Give the settings of a new one, such as "
                "a preset."
            )
        return None

    def preset_for_images(self) -> str:
        """Return the preset, or the one for small images where miniImageNet's are too small."""
        name = str(self.start.preset)
        preset = look_up(PRESETS, name, "preset")
        small = name.replace("mini-imagenet-", "mini-imagenet-84-")
        if small == name or small not in PRESETS:
            return name
        dataset = self.dataset or preset.dataset
        input_size = self.input_size or preset.input_size
        splits = find_splits(dataset, self.start.data_dir, side=self.side)
        sides = {prepared.side for prepared in splits}
        if input_size is None or len(sides) != 1 or max(sides) > input_size:
            return name
        print_line(
            Console(stderr=True),
            f"The prepared images are no larger than the input, so the preset is {small}. "
            "For the published settings: nearshot reproduce comparison.",
        )
        return small

    def automatic(self) -> tuple[str, ...]:
        """Return the settings that may adapt to small data: without a preset, those not chosen."""
        if self.start.preset is not None or self.begun_run() is not None:
            return ()
        return tuple(name for name in TRAIN_SETTINGS if getattr(self, name) is None)


@dataclass(frozen=True)
class Train:
    """Train a network, validate it as it learns, and keep its best epochs in a run's folder.

    On your own photos, training starts from a trained network (--init), and keeps it if no epoch is
    better. Without a preset, batches and episodes that you do not choose adapt to the images that
    there are; each change is logged. --help after --preset or --method shows the settings of that
    method, with their values.

    Examples:
      nearshot train --dataset ./my-photos
      nearshot train --resume --output runs/my-photos-nca
      nearshot train --preset glyphs-nca
      nearshot train --preset cifar-fs-prototypical --batch-size 256 --seed 1
      nearshot train --method supcon --temperature 0.1 --help
    """

    start: tyro.conf.OmitArgPrefixes[Start] = field(default_factory=Start)
    config: tyro.conf.OmitArgPrefixes[TrainConfig] = field(default_factory=TrainConfig)
    hardware: tyro.conf.OmitArgPrefixes[Hardware] = field(default_factory=Hardware)
    overwrite: bool = False
    """Replace a run in the same folder."""
    allow_few_images: bool = False
    """Train on fewer than 5 classes or 50 images of your own, which is otherwise refused."""
    checkpoint_seconds: float = 10.0
    """The least time between two checkpoints, which are written at the end of an epoch. A killed
    run loses at most this and the epoch that it was in."""
    dry_run: bool = False
    """Only print the settings, and the steps and images of the run. A folder that is not prepared
    yet is prepared, and stays so."""
    wandb_project: Annotated[str | None, tyro.conf.arg(metavar="NAME")] = None
    """Log to a Weights & Biases project as well."""
    auto: tyro.conf.Suppress[tuple[str, ...]] = ()  # the settings that may adapt to the data

    def run(self, console: Console) -> None:
        """Train, and print the validation accuracies and the run's folder."""
        if self.dry_run:
            self._print_plan(console)
            return
        output = self.start.output
        if self.start.resume and output is not None and not RunFolder(output).checkpoint.is_file():
            print_message(f"There is no checkpoint in {output} to resume: the run starts anew.")
        result = train(
            self.config,
            folder=self.start.output,
            data_dir=self.start.data_dir,
            hardware=self.hardware,
            auto=self.auto,
            allow_few_images=self.allow_few_images,
            resume=self.start.resume,
            overwrite=self.overwrite,
            checkpoint_seconds=self.checkpoint_seconds,
            wandb_project=self.wandb_project,
        )
        if torch.distributed.is_available() and torch.distributed.is_initialized():
            torch.distributed.destroy_process_group()
        if result.rank:
            return  # the first rank reports for all
        if not result.finished:
            self._print_stopped(result, console)
            raise SystemExit(STOPPED)
        for name, accuracy in result.best.items():
            chance = 100 / accuracy.protocol.n_way
            level = f"chance {chance:.4g} %"
            if name in result.initial:
                level += f", before training {result.initial[name]:.2f} %"
            epoch = result.best_epochs[name]
            console.print(
                f"{name}: {accuracy} % on the validation split ({level}), best at epoch {epoch}"
            )
        if result.best and not any(result.best_epochs.values()):
            console.print("No epoch is better than the initial network, which is kept as epoch 0.")
        folder = quote(str(result.folder))
        console.print(f"The run is in {result.folder}. Next: nearshot evaluate {folder}")

    def _print_stopped(self, result: TrainResult, console: Console) -> None:
        """Print how to resume and to measure a run that was stopped."""
        options = ""
        if self.start.data_dir is not None:
            options = f" --data-dir {quote(str(self.start.data_dir))}"
        folder = quote(str(result.folder))
        console.print(
            f"Stopped and saved. To resume: nearshot train --resume --output {folder}{options}"
        )
        if result.best:
            console.print(f"To measure it so far: nearshot evaluate {folder} --split val{options}")

    def _print_plan(self, console: Console) -> None:
        """Print the plan of the run, which is not started."""
        config, run, auto = resolve_run(
            self.config, self.start.output, auto=self.auto, resume=self.start.resume
        )
        fabric = self.hardware.fabric(config)
        plan = plan_run(
            config,
            open_splits(config, self.start.data_dir),
            n_ranks=fabric.world_size,
            auto=auto,
            allow_few_images=self.allow_few_images,
        )
        # What the network and the devices refuse is refused here, too.
        learner, _ = build_networks(plan)
        self.hardware.resolved(
            fabric.device,
            plan.config,
            learner.backbone,
            n_ranks=plan.n_ranks,
            n_steps=plan.n_steps,
        )
        settings = json.dumps(_settings_of(plan).as_dict(), indent=2, ensure_ascii=False)
        lines = [settings, *_size_lines(plan), *plan.messages]
        console.print("\n".join([*lines, f"The run would be in {run.path}"]))


def parse(arguments: list[str]) -> Train:
    """Return the command that the arguments describe.

    They are read twice, but none of them twice: first the options that choose defaults, then the
    rest, whose defaults are then known.

    >>> parse(["--dataset", "./my-photos", "--batch-size", "64", "--validation-n-way=2"]).auto
    ('images_per_class', 'n_shot', 'least_images', 'validation_n_shot', 'validation_n_query')
    """
    if arguments and not arguments[0].startswith("-"):
        raise InputError(
            "train has options only. For your own images: nearshot train --dataset "
            f"{quote(arguments[0])}"
        )
    # A method of your own may be in the current folder, as with `python -m nearshot`.
    if str(Path.cwd()) not in sys.path:
        sys.path.append(str(Path.cwd()))
    choices, rest = tyro.cli(
        Choices, prog="nearshot train", args=arguments, add_help=False, return_unknown_args=True
    )
    prog = "nearshot train"
    if choices.start.preset is not None:
        prog += f" --preset {choices.start.preset}"
    if choices.start.method is not None:
        prog += f" --method {choices.start.method}"
    default = Train(start=choices.start, config=choices.config(), auto=choices.automatic())
    _check_names_of_settings(default.config.method)
    command = tyro.cli(
        Train, prog=prog, args=rest, default=default, description=inspect.getdoc(Train)
    )
    kind = command.config.batch_kind
    if kind != "episodes":
        for name in ("n_way", "n_shot", "n_query", "images_per_class"):
            if getattr(choices, name) is not None:
                message = f"No effect of {name}: {kind} batches have no episodes."
                print_line(Console(stderr=True), message)
    return command


def _check_names_of_settings(method: Method) -> None:
    """Refuse a method of one's own with a setting that has the name of another option."""
    taken = set()
    for kind in (Start, Train, Hardware, Augmentation):
        taken |= {item.name for item in dataclasses.fields(kind)}
    for item in dataclasses.fields(method):
        if item.name in taken:
            raise InputError(
                f"{type(method).__name__} must not have a setting {item.name!r}, which is another "
                "option of this command. Rename it, or train from Python."
            )


def _settings_of(plan: RunPlan) -> TrainConfig:
    """Return the settings of a run, with those that were left to a default decided."""
    return replace(
        plan.config,
        batches=plan.config.batch_kind,
        input_size=plan.input_size,
        warm_up=plan.config.warm_up_epochs,
        validation_n_query=plan.validation_n_query,
    )


def _size_lines(plan: RunPlan) -> list[str]:
    """Return lines about the images, pairs and steps of a run."""
    config = plan.config
    training = plan.stores["train"]
    sampler = plan.new_sampler()
    title = config.method.title or config.method_name
    lines = [
        f"{title} on {config.dataset}: {len(training):,} images of "
        f"{len(training.class_names):,} classes, {type(sampler).__name__}, "
        f"{plan.batch_size} images per batch"
    ]
    all_pairs = []
    for labels in training.labels[sampler.epoch_indices()].view(-1, plan.batch_size):
        pairs = config.method.pairs(labels, plan.episode_shape)
        if pairs is not None:
            all_pairs.append(pairs)
    if all_pairs:
        n_batches = len(all_pairs)
        positives = sum(pairs.positive_pairs for pairs in all_pairs) / n_batches
        negatives = sum(pairs.negative_pairs for pairs in all_pairs) / n_batches
        unpaired = sum(pairs.anchors_without_positive for pairs in all_pairs) / n_batches
        lines.append(f"pairs per batch: {positives:,.0f} positive, {negatives:,.0f} negative")
        if unpaired:
            lines.append(
                f"{unpaired:.1f} anchors per batch have no positive; with batches of episodes, "
                "all have one"
            )
    lines.append(
        f"{counted(config.epochs, 'epoch')} of {counted(plan.steps_per_epoch, 'step')}: "
        f"{counted(plan.n_steps, 'step')}, {plan.n_steps * plan.batch_size:,} images"
    )
    return lines
