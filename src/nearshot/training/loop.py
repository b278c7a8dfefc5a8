"""Training, from a configuration to a run's folder."""

from __future__ import annotations

import math
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from lightning_fabric import Fabric
from torch import Tensor

from nearshot.data import Store, open_or_prepare
from nearshot.data.loading import ImageFeed
from nearshot.data.samplers import Batches
from nearshot.errors import InputError, NearshotError
from nearshot.evaluation import Accuracy, FeatureSet, evaluate_many, select_best
from nearshot.evaluation.classifiers import ClassifierName
from nearshot.models import save_backbone
from nearshot.training.batches import Composition, compositions, make_batches
from nearshot.training.checkpoints import CheckpointWriter, check_same_training, read_checkpoint
from nearshot.training.config import TrainConfig
from nearshot.training.embedding import embed_images
from nearshot.training.hardware import Hardware
from nearshot.training.learner import Learner
from nearshot.training.methods import resolve_method
from nearshot.training.recording import Recorder
from nearshot.training.runs import RunFolder, describe_environment, run_name
from nearshot.training.schedule import learning_rate_factor
from nearshot.training.step import Step, captured, make_step

__all__ = ["TrainResult", "train"]

CLASSIFIERS: tuple[ClassifierName, ...] = ("centroid", "soft")  # the best epoch is kept for each


@dataclass(frozen=True)
class TrainResult:
    """What a training gave.

    Attributes:
        folder: the run's folder.
        best: for each of "1-shot centroid" and the like, the accuracy of the best epoch on the validation split.
        best_epochs: for each of them, which epoch it is.
        history: what was logged, an entry an epoch.
        finished: False where the run was asked to stop before its end.
    """

    folder: Path
    best: dict[str, Accuracy]
    best_epochs: dict[str, int]
    history: list[dict[str, Any]]
    finished: bool


def train(
    config: TrainConfig,
    *,
    folder: str | Path | None = None,
    data_dir: str | Path | None = None,
    hardware: Hardware | None = None,
    resume: bool = False,
    overwrite: bool = False,
    checkpoint_seconds: float = 10.0,
    show: bool | None = None,
    wandb: str | None = None,
) -> TrainResult:
    """Train a network, and keep the epochs that are best on the validation split.

    Args:
        config: what to train.
        folder: where the run's files go; by default runs/ and a name made from the configuration.
        data_dir: where prepared datasets live; by default $NEARSHOT_DATA, or ~/.cache/nearshot.
        hardware: on what; by default one GPU if there is one, else the CPU.
        resume: go on from the folder's checkpoint, if it has one.
        overwrite: start again where there is a run already.
        checkpoint_seconds: how old the last checkpoint must be for a new one at the end of an epoch.
        show: whether to show progress; by default a bar on a terminal and a line an epoch elsewhere.
        wandb: a Weights & Biases project to log to as well (needs the extra `wandb`).
    """
    method = resolve_method(config)
    hardware = hardware or Hardware()
    fabric = hardware.fabric(config)
    fabric.launch()
    device, n_ranks = fabric.device, fabric.world_size

    stores = _open_stores(config, data_dir, fabric)
    fingerprints = {split: store.fingerprint for split, store in stores.items()}
    labels = stores["train"].labels
    feed = ImageFeed(stores["train"].images, device, residence=hardware.residence)
    sampler = make_batches(config, method, labels, stores["train"].class_names, n_ranks=n_ranks)
    n_steps = config.epochs * len(sampler)

    torch.manual_seed(config.seed)
    input_size = config.input_size or stores["train"].images.shape[1]
    n_classes = len(stores["train"].class_names)
    step = make_step(fabric, hardware, config, input_size=input_size, n_classes=n_classes, n_steps=n_steps)
    learner, optimiser = step.learner, step.optimiser

    run = RunFolder(folder if folder is not None else Path("runs") / run_name(config))
    progress = _Progress()
    goes_on = run.start(resume=resume, overwrite=overwrite) if fabric.is_global_zero else False
    if fabric.broadcast(goes_on):
        state = read_checkpoint(run.checkpoint)
        check_same_training(state, config, fingerprints)
        _load(state, step, sampler, progress)
    if fabric.is_global_zero:
        run.write("config.json", config.as_dict())
        run.write("environment.json", describe_environment(device) | {"fingerprints": fingerprints})

    take_step: Callable[[Tensor, Tensor], Tensor] = step
    device_labels = labels.to(device)
    images_a_batch, share = sampler.batch_size, sampler.batch_size // n_ranks
    learner.train()
    with (
        _recorder(fabric, run, config, progress, len(sampler), show, wandb) as recorder,
        CheckpointWriter(run.checkpoint) as writer,
        _stop_signal() as stopping,
    ):

        def save() -> None:
            if recorder is None:
                return
            progress.history = recorder.history
            keep = {int(best["epoch"]) for best in progress.best.values()}
            keep |= {config.epochs} if progress.epoch > config.epochs else set()  # the last one stays too
            state = _state(step, sampler, progress) | {"config": config.as_dict(), "fingerprints": fingerprints}
            writer.save(state, afterwards=lambda: run.keep_weights(keep))

        while progress.epoch <= config.epochs:
            started = time.perf_counter()
            order = sampler.epoch_indices().view(-1, images_a_batch)  # (batch, image), what is left of the epoch
            made_of = compositions(labels[order], config, method)
            batch_labels = device_labels[order.to(device)]
            own = order.view(len(order), n_ranks, share)[:, fabric.global_rank].flatten()
            batches = zip(sampler, feed.batches(own, share), batch_labels, strict=True)
            for number, (_, images, its_labels) in enumerate(batches):
                if hardware.captures(device, n_ranks, config) and take_step is step:
                    take_step = captured(step, images, its_labels)
                _set_learning_rate(optimiser, config, progress.step, n_steps, len(sampler))
                loss = take_step(images, its_labels)
                if device.type == "cpu":  # elsewhere, to look at it would be to wait for it
                    _check_finite(float(loss), progress.epoch, run)
                progress.add(loss, made_of[number] if made_of else None)
                if recorder is not None:
                    recorder.step()
                if stopping() and n_ranks == 1 and number < len(order) - 1:
                    save()
                    return _result(run, progress, finished=False)
            record = progress.epoch_record(optimiser)
            _check_finite(record["loss"], progress.epoch, run)
            seconds = time.perf_counter() - started
            if progress.epoch % config.validate_every == 0 or progress.epoch == config.epochs:
                if recorder is not None:
                    record["validation"] = _validate(fabric, learner, feed, stores, config, run, progress)
                fabric.barrier()
            if recorder is not None:
                recorder.epoch(record, seconds=seconds, images_per_second=len(order) * images_a_batch / seconds)
            progress.next_epoch()
            stops = _any_rank(fabric, stopping()) and progress.epoch <= config.epochs
            if stops or progress.epoch > config.epochs or writer.seconds_since_last >= checkpoint_seconds:
                save()
            if stops:
                return _result(run, progress, finished=False)
        writer.wait()
        if fabric.is_global_zero:
            run.write("result.json", _summary(config, run, progress, fingerprints, recorder))
    fabric.barrier()
    return _result(run, progress, finished=True)


class _Progress:
    """How far a training is: the epoch, counted from 1, its sums so far, and the best epochs before it."""

    def __init__(self) -> None:
        self.epoch, self.step = 1, 0
        self.best: dict[str, dict[str, Any]] = {}
        self.history: list[dict[str, Any]] = []
        self.n_steps, self.loss_sum = 0, torch.zeros((), dtype=torch.float64)
        self.made_of = [0, 0, 0]

    def add(self, loss: Tensor, made_of: Composition | None) -> None:
        """Add a step. The loss stays on its device: to look at it would be to wait for it."""
        self.loss_sum = self.loss_sum.to(loss.device) + loss
        self.n_steps += 1
        self.step += 1
        if made_of is not None:
            self.made_of = [total + here for total, here in zip(self.made_of, made_of, strict=True)]

    def epoch_record(self, optimiser: torch.optim.Optimizer) -> dict[str, Any]:
        """Return what is logged of the epoch."""
        record = {
            "epoch": self.epoch,
            "step": self.step,
            "loss": float(self.loss_sum) / self.n_steps,
            "learning_rate": float(_inner(optimiser).param_groups[0]["lr"]),
        }
        averages = {name: total / self.n_steps for name, total in zip(Composition._fields, self.made_of, strict=True)}
        return record | (averages if any(self.made_of) else {})

    def next_epoch(self) -> None:
        """Begin the next epoch."""
        self.epoch += 1
        self.n_steps, self.loss_sum, self.made_of = 0, torch.zeros_like(self.loss_sum), [0, 0, 0]


def _state(step: Step, sampler: Batches, progress: _Progress) -> dict[str, Any]:
    device = step.generator.device
    return {
        "learner": step.learner.state_dict(),
        "log_temperature": step.log_temperature,
        "optimiser": _inner(step.optimiser).state_dict(),
        "sampler": sampler.state_dict(),
        "generator": step.generator.get_state(),
        "random": torch.get_rng_state(),
        "random_device": torch.cuda.get_rng_state(device) if device.type == "cuda" else None,
        "progress": dict(vars(progress)),
    }


def _load(state: dict[str, Any], step: Step, sampler: Batches, progress: _Progress) -> None:
    device = step.generator.device
    step.learner.load_state_dict(state["learner"])
    if step.log_temperature is not None:
        with torch.no_grad():
            step.log_temperature.copy_(state["log_temperature"])
    optimiser = _inner(step.optimiser)
    rates = [group["lr"] for group in optimiser.param_groups]
    optimiser.load_state_dict(state["optimiser"])
    for group, rate in zip(optimiser.param_groups, rates, strict=True):
        group["lr"] = rate  # a tensor on the device where it was one; its value is set before every step
    sampler.load_state_dict(state["sampler"])
    step.generator.set_state(state["generator"])
    torch.set_rng_state(state["random"])
    if state["random_device"] is not None and device.type == "cuda":
        torch.cuda.set_rng_state(state["random_device"], device)
    vars(progress).update(state["progress"])
    progress.loss_sum = progress.loss_sum.to(device)


def _open_stores(config: TrainConfig, data_dir: str | Path | None, fabric: Fabric) -> dict[str, Store]:
    """Open the training split, and the validation split if there is one. The first rank prepares what needs it."""
    with fabric.rank_zero_first():
        stores = {"train": open_or_prepare(config.dataset, "train", data_dir, side=config.side)}
        try:
            stores["val"] = open_or_prepare(config.dataset, "val", data_dir, side=config.side)
        except InputError:
            return stores  # of a folder with few classes, all may be for training
    return stores


def _check_finite(loss: float, epoch: int, run: RunFolder) -> None:
    if not math.isfinite(loss):
        raise NearshotError(
            f"The loss is {loss} in epoch {epoch}, so training stopped; {run.path} has the state before that epoch. A "
            "lower learning rate or a warm-up may help."
        )


def _set_learning_rate(
    optimiser: torch.optim.Optimizer, config: TrainConfig, step: int, n_steps: int, steps_per_epoch: int
) -> None:
    factor = learning_rate_factor(
        step,
        n_steps,
        schedule=config.schedule,
        milestones=config.milestones,
        decay=config.decay,
        warm_up_steps=config.warm_up * steps_per_epoch,
    )
    for group in _inner(optimiser).param_groups:
        if isinstance(group["lr"], Tensor):
            group["lr"].fill_(config.learning_rate * factor)
        else:
            group["lr"] = config.learning_rate * factor


def _validate(
    fabric: Fabric,
    learner: Learner,
    feed: ImageFeed,
    stores: dict[str, Store],
    config: TrainConfig,
    run: RunFolder,
    progress: _Progress,
) -> dict[str, float]:
    """Measure on the validation split, and keep the weights if they are the best for anything. Returns the means."""
    learner.eval()
    backbone, device = learner.backbone, fabric.device
    bfloat16 = "bf16" in str(fabric.strategy.precision.precision)
    centre = embed_images(backbone, feed, device=device, bfloat16=bfloat16).mean(0)
    means = {}
    if "val" in stores:
        store = stores["val"]
        features = embed_images(backbone, ImageFeed(store.images, device), device=device, bfloat16=bfloat16)
        data = FeatureSet(features, store.labels, centre, store.class_names, split="val", fingerprint=store.fingerprint)
        results = evaluate_many(
            data,
            n_way=config.validation_way,
            n_shots=config.validation_shots,
            n_episodes=config.validation_episodes,
            classifiers=CLASSIFIERS,
            training_classes=stores["train"].class_names,
            small_classes="leave out",
            progress=False,
        )
        for measured, accuracy in results.items():
            name = f"{measured.n_shot}-shot {measured.classifier}"
            means[name] = accuracy.mean
            before = progress.best.get(name)
            candidates = {"before": Accuracy.from_dict(before)} if before else {}
            if select_best(candidates | {"now": accuracy}) == "now":
                progress.best[name] = {"epoch": progress.epoch} | accuracy.as_dict()
    if progress.epoch == config.epochs or any(best["epoch"] == progress.epoch for best in progress.best.values()):
        notes = {"run": run.path.name, "epoch": str(progress.epoch), "dataset": config.dataset}
        save_backbone(backbone, run.weights_of(progress.epoch), training_mean=centre, notes=notes)
    learner.train()
    return means


def _summary(
    config: TrainConfig, run: RunFolder, progress: _Progress, fingerprints: dict[str, str], recorder: Recorder | None
) -> dict[str, Any]:
    return {
        "run": run.path.name,
        "config": config.as_dict(),
        "fingerprints": fingerprints,
        "best": progress.best,
        "last": recorder.history[-1] if recorder is not None else None,
        "environment": run.read("environment.json"),
    }


def _result(run: RunFolder, progress: _Progress, *, finished: bool) -> TrainResult:
    return TrainResult(
        folder=run.path,
        best={name: Accuracy.from_dict(best) for name, best in progress.best.items()},
        best_epochs={name: int(best["epoch"]) for name, best in progress.best.items()},
        history=progress.history,
        finished=finished,
    )


@contextmanager
def _recorder(
    fabric: Fabric,
    run: RunFolder,
    config: TrainConfig,
    progress: _Progress,
    steps_per_epoch: int,
    show: bool | None,
    wandb: str | None,
) -> Iterator[Recorder | None]:
    """Yield what records the run: on the first rank only."""
    if not fabric.is_global_zero:
        yield None
        return
    with Recorder(run, config, progress.history, steps_per_epoch, show=show, wandb=wandb) as recorder:
        yield recorder


@contextmanager
def _stop_signal() -> Iterator[Callable[[], bool]]:
    """Yield a function that says whether SIGTERM has come; never, in a thread, where signals are not ours to catch."""
    received = False

    def note(signal_number: int, frame: FrameType | None) -> None:
        nonlocal received
        received = True

    try:
        before = signal.signal(signal.SIGTERM, note)
    except ValueError:
        yield lambda: False
        return
    try:
        yield lambda: received
    finally:
        signal.signal(signal.SIGTERM, before)


def _any_rank(fabric: Fabric, value: bool) -> bool:
    if fabric.world_size == 1:
        return value
    total = fabric.all_reduce(torch.tensor(float(value), device=fabric.device), reduce_op="sum")
    return isinstance(total, Tensor) and bool(total > 0)


def _inner(optimiser: torch.optim.Optimizer) -> torch.optim.Optimizer:
    """Return the optimiser inside Fabric's."""
    inner: torch.optim.Optimizer = getattr(optimiser, "optimizer", optimiser)
    return inner
