"""`nearshot train`."""

import io
import json
from contextlib import redirect_stderr
from dataclasses import asdict, dataclass, field, make_dataclass, replace
from pathlib import Path
from shlex import quote
from typing import Annotated, Any, get_type_hints

import torch
import tyro
from rich.console import Console

from nearshot.cli import description
from nearshot.data.datasets import SOURCES
from nearshot.data.store import prepared_manifests
from nearshot.errors import InputError, look_up
from nearshot.text import counted, print_line
from nearshot.training import PRESETS, Hardware, RunFolder, TrainConfig, train
from nearshot.training.assembly import RunPlan
from nearshot.training.autoconfig import TRAIN_SETTINGS
from nearshot.training.methods import batch_kind, compositions
from nearshot.training.presets import PHOTOS, PHOTOS_FROM_SCRATCH

STOPPED = 143  # the shell's status of a process that SIGTERM ended, so that nobody takes the run for finished
BASIC = (
    "dataset",
    "init",
    "backbone",
    "side",
    "input_size",
)  # decide which defaults the other settings have
EPISODE_SETTINGS = ("n_way", "n_shot", "n_query", "images_per_class")


@dataclass(frozen=True)
class Train:
    """Train a network, validate it as it learns, and keep its best epochs in a run's folder.

    On your own photos, training starts from a trained network (--init), and keeps it if no epoch is
    better. Without a preset, batches and episodes that you do not choose adapt to the images that
    there are; each change is logged.

    Examples: nearshot train --dataset ./my-photos; nearshot train --resume --output
    runs/my-photos-nca;
    nearshot train --preset glyphs-nca; nearshot train --preset cifar-fs-prototypical --batch-size
    256 --seed 1
    """

    config: tyro.conf.OmitArgPrefixes[TrainConfig] = field(default_factory=TrainConfig)
    hardware: tyro.conf.OmitArgPrefixes[Hardware] = field(default_factory=Hardware)
    preset: str | None = None
    """Start from named settings: a dataset (cifar-fs, mini-imagenet, tiered-imagenet, omniglot,
    glyphs) and a method (nca, prototypical, matching, simpleshot, and on the first three also
    prototypical-snell, matching-snell, supcon), such as cifar-fs-nca. Where miniImageNet is
    prepared with 84×84 images, mini-imagenet-84-nca replaces mini-imagenet-nca, and so on. Other
    options change them, and --help then shows their values. Without a preset or dataset, glyphs-nca
    is used, which takes a minute or two."""
    output: Annotated[Path | None, tyro.conf.arg(metavar="DIR")] = None
    """The run's folder; by default runs/ and a short name of the dataset, the method and the seed."""
    data_dir: Annotated[Path | None, tyro.conf.arg(metavar="DIR")] = None
    """Where prepared datasets live; by default $NEARSHOT_DATA, or ~/.cache/nearshot."""
    resume: bool = False
    """Resume from the run's checkpoint; the result is the same as without the interruption. With
    --output, the run's own settings are read, and no other option is needed."""
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
    wandb: Annotated[str | None, tyro.conf.arg(metavar="PROJECT")] = None
    """Log to a Weights & Biases project as well."""
    auto: tyro.conf.Suppress[tuple[str, ...]] = ()  # the settings that may adapt to the data

    def run(self, console: Console) -> None:
        """Train, and print the validation accuracies and the run's folder."""
        where: dict[str, Any] = {"folder": self.output, "hardware": self.hardware}
        where |= {
            name: getattr(self, name) for name in ("data_dir", "auto", "resume", "allow_few_images")
        }
        if self.dry_run:
            _describe(RunPlan(self.config, **where, launch=False), console)
            return
        others = {
            name: getattr(self, name) for name in ("checkpoint_seconds", "wandb", "overwrite")
        }
        result = train(self.config, **where, **others)
        if torch.distributed.is_available() and torch.distributed.is_initialized():
            torch.distributed.destroy_process_group()
        if result.rank:
            return  # the first rank reports for all
        folder = quote(str(result.folder))
        if not result.finished:
            data_dir = "" if self.data_dir is None else f" --data-dir {quote(str(self.data_dir))}"
            console.print(
                f"Stopped and saved. To resume: nearshot train --resume --output {folder}{data_dir}"
            )
            if result.best:
                console.print(
                    f"To measure it so far: nearshot evaluate {folder} --split val{data_dir}"
                )
            raise SystemExit(STOPPED)
        for name, accuracy in result.best.items():
            level = f"chance {100 / accuracy.protocol.n_way:.4g} %"
            if name in result.initial:
                level += f", before training {result.initial[name]:.2f} %"
            epoch = result.best_epochs[name]
            console.print(
                f"{name}: {accuracy} % on the validation split ({level}), best at epoch {epoch}"
            )
        if result.best and not any(result.best_epochs.values()):
            console.print("No epoch is better than the initial network, which is kept as epoch 0.")
        console.print(f"The run is in {result.folder}. Next: nearshot evaluate {folder}")


def parse(arguments: list[str]) -> Train:
    """Return the command that the arguments describe.

    The defaults are the settings of the preset among them, and depend on which options are given.

    >>> parse(["--dataset", "./my-photos", "--batch-size", "64", "--validation-way=2", "--epochs", "3"]).auto
    ('images_per_class', 'n_shot', 'least_images', 'validation_shots', 'validation_queries')
    """
    if arguments and not arguments[0].startswith("-"):
        raise InputError(
            f"train has options only. For your own images: nearshot train --dataset {quote(arguments[0])}"
        )
    kinds: dict[str, Any] = get_type_hints(TrainConfig) | {
        "preset": str,
        "output": Path,
        "data_dir": Path,
    }
    names = ("preset", "output", "data_dir", *BASIC, *EPISODE_SETTINGS, *TRAIN_SETTINGS)
    fields: list[Any] = [(name, kinds[name] | None, None) for name in dict.fromkeys(names)]
    options: Any = make_dataclass("Options", [*fields, ("resume", bool, False)])
    try:
        with redirect_stderr(io.StringIO()):
            found, _ = tyro.cli(options, args=arguments, add_help=False, return_unknown_args=True)
    except SystemExit:  # an option is wrong, of which the parser of all options will tell
        found = options()
    given = {name: value for name, value in asdict(found).items() if value is not None}
    begun = RunFolder(given["output"]) if found.resume and "output" in given else None
    auto: tuple[str, ...] = ()
    if begun is not None and (begun.path / "config.json").is_file():
        config = begun.read_config()
    elif begun is not None and not given.keys() - {"output", "data_dir", "resume"}:
        raise InputError(
            f"There is no run in {begun.path} to resume. Give the settings of a new one, such as --preset."
        )
    else:
        if "preset" in given:
            given["preset"] = _preset_for_images(given)
        config = _default_config(given)
        auto = (
            () if "preset" in given else tuple(name for name in TRAIN_SETTINGS if name not in given)
        )
    default = Train(config=config, auto=auto)
    command = tyro.cli(
        Train,
        prog="nearshot train",
        args=arguments,
        default=default,
        description=description(Train),
    )
    for_episodes = [f"--{name.replace('_', '-')}" for name in EPISODE_SETTINGS if name in given]
    if for_episodes and (kind := batch_kind(command.config)) != "episodes":
        message = f"No effect of {' and '.join(for_episodes)}: {kind} batches have no episodes."
        print_line(Console(stderr=True), message)
    return command


def _preset_for_images(given: dict[str, Any]) -> str:
    """Return the given preset; or, with a message, another where miniImageNet's images are too small for its crops."""
    name: str = given["preset"]
    small = name.replace("mini-imagenet-", "mini-imagenet-84-")
    if small == name or small not in PRESETS:
        return name
    dataset, input_size = (
        given.get(setting, getattr(PRESETS[name], setting)) for setting in ("dataset", "input_size")
    )
    manifests = prepared_manifests(dataset, given.get("data_dir"), side=given.get("side"))
    sides = {int(file.parent.parent.name) for file in manifests}
    if len(sides) != 1 or max(sides) > input_size:
        return name
    message = f"The prepared images are no larger than the input, so --preset is {small}."
    print_line(
        Console(stderr=True),
        f"{message} For the published settings: nearshot reproduce comparison.",
    )
    return small


def _default_config(given: dict[str, Any]) -> TrainConfig:
    """Return the settings of the preset; or those for one's own photos, for fine-tuning, or for a known dataset."""
    if "preset" in given or not given.keys() & {"dataset", "init"}:
        return look_up(PRESETS, given.get("preset", "glyphs-nca"), "preset")
    is_own = given.get("dataset", TrainConfig().dataset) not in SOURCES
    init = given.get("init", "auto" if is_own and "backbone" not in given else "none")
    if init == "none":
        return PHOTOS_FROM_SCRATCH if is_own else TrainConfig()
    if "backbone" in given:
        raise InputError(
            f"init brings its own backbone: leave out --backbone {given['backbone']}, or use --init none."
        )
    return replace(PHOTOS, init=init)


def _describe(plan: RunPlan, console: Console) -> None:
    """Print the settings of a run, and its steps and images."""
    sampler, store = plan.sampler, plan.stores["train"]
    config = replace(
        plan.config,
        batches=batch_kind(plan.config),
        input_size=plan.learner.backbone.spec.input_size,
        warm_up=plan.config.warm_up_epochs,
        validation_queries=plan.validation_queries,
    )
    lines = [json.dumps(config.as_dict(), indent=2, ensure_ascii=False)]
    size = f"{len(store):,} images of {len(store.class_names):,} classes"
    batches = f"{type(sampler).__name__}, {sampler.batch_size} images per batch"
    lines.append(f"{plan.method.title} on {config.dataset}: {size}, {batches}")
    first_epoch = store.labels[sampler.epoch_indices()].view(-1, sampler.batch_size)
    if made_of := compositions(first_epoch, config, plan.method):
        unpaired, positives, negatives = (
            sum(numbers) / len(made_of) for numbers in zip(*made_of, strict=True)
        )
        lines.append(f"pairs per batch: {positives:,.0f} positive, {negatives:,.0f} negative")
        if unpaired:
            lines.append(
                f"{unpaired:.1f} anchors per batch have no positive; with --batches episodes, all have one"
            )
    steps = f"{counted(len(sampler), 'step')}: {counted(plan.n_steps, 'step')}"
    lines.append(
        f"{counted(config.epochs, 'epoch')} of {steps}, {plan.n_steps * sampler.batch_size:,} images"
    )
    console.print("\n".join([*lines, *plan.messages, f"The run would be in {plan.run.path}"]))
