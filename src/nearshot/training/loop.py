"""Training, from a configuration to a run's folder."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from lightning_fabric import Fabric
from torch import Tensor

from nearshot.data import Store, open_or_prepare
from nearshot.data.loading import ImageFeed
from nearshot.data.preparation import given_path
from nearshot.errors import InputError, NearshotError
from nearshot.evaluation import Accuracy
from nearshot.models import Backbone
from nearshot.training.batches import compositions, make_batches
from nearshot.training.checkpoints import CheckpointWriter, check_same_training, read_checkpoint
from nearshot.training.config import TrainConfig
from nearshot.training.distributed import any_rank, on_first_rank
from nearshot.training.embedding import compiled
from nearshot.training.hardware import Hardware
from nearshot.training.methods import resolve_method
from nearshot.training.progress import Progress, load_state, state_of
from nearshot.training.recording import Recorder, import_wandb
from nearshot.training.runs import RunFolder, describe_environment, run_name
from nearshot.training.schedule import learning_rate_factor
from nearshot.training.signals import stop_signal
from nearshot.training.step import Step, captured, inner_optimiser, make_step
from nearshot.training.validation import Validator

__all__ = ["TrainResult", "open_splits", "train", "with_resolved_path"]

# Ranks have to agree on stopping, which means waiting for each other.
STEPS_BETWEEN_STOP_CHECKS = 20


@dataclass(frozen=True)
class TrainResult:
    """What a training gave.

    Attributes:
        folder: the run's folder.
        best: for each of "1-shot centroid" and the like, the accuracy of the best epoch on the validation split.
        best_epochs: for each of them, which epoch it is.
        history: what was logged, an entry an epoch.
        finished: False where the run was asked to stop before its end.
        rank: of the process, among those that trained together; 0 is the one to speak for all.
    """

    folder: Path
    best: dict[str, Accuracy]
    best_epochs: dict[str, int]
    history: list[dict[str, Any]]
    finished: bool
    rank: int = 0


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
    called = time.perf_counter()
    if wandb is not None:
        import_wandb()  # what is missing is said before anything is overwritten
    training = _Training(config, hardware or Hardware(), folder, data_dir)
    config, fabric, run, progress = training.config, training.fabric, training.run, training.progress
    with _owned(run, fabric, resume=resume, overwrite=overwrite) as goes_on:
        exactly = training.go_on() if goes_on else True
        training.describe()
        with (
            _recorder(training, show=show, wandb=wandb, called=called) as recorder,
            CheckpointWriter(run.checkpoint) as writer,
            stop_signal() as stopping,
        ):
            _say_what_is_unusual(recorder, training, resume=resume, goes_on=goes_on, exactly=exactly)
            training.warm_up()
            while progress.epoch <= config.epochs:
                started, n_images = time.perf_counter(), 0
                for number, n_left in training.steps():
                    n_images += training.sampler.batch_size
                    if recorder is not None:
                        recorder.step()
                    if n_left and _is_time_to_stop(stopping, fabric, number):
                        training.save(recorder, writer)
                        return _result(fabric, run, progress, finished=False)
                record = training.record()
                seconds = time.perf_counter() - started
                if progress.epoch % config.validate_every == 0 or progress.epoch == config.epochs:
                    record["validation"] = training.validated()
                if recorder is not None:
                    recorder.epoch(record, seconds=seconds, images_per_second=n_images / seconds)
                progress.next_epoch()
                stops = any_rank(fabric, stopping()) and progress.epoch <= config.epochs
                if stops or progress.epoch > config.epochs or writer.seconds_since_last >= checkpoint_seconds:
                    training.save(recorder, writer)
                if stops:
                    return _result(fabric, run, progress, finished=False)
            writer.wait()
            if recorder is not None:
                progress.history = recorder.history
                run.write("result.json", _summary(config, run, progress, training.fingerprints))
        fabric.barrier()
    return _result(fabric, run, progress, finished=True)


class _Training:
    """All parts of a training, put together, and what is done with them between two looks at the clock."""

    def __init__(
        self, config: TrainConfig, hardware: Hardware, folder: str | Path | None, data_dir: str | Path | None
    ) -> None:
        config = with_resolved_path(config)
        self.config, self.method = config, resolve_method(config)
        self.fabric = fabric = hardware.fabric(config)
        fabric.launch()
        device, n_ranks = fabric.device, fabric.world_size

        self.stores = _open_stores(config, data_dir, fabric)
        self.fingerprints = {split: store.fingerprint for split, store in self.stores.items()}
        images, self.labels = self.stores["train"].images, self.stores["train"].labels
        class_names = self.stores["train"].class_names
        n_local_ranks = n_ranks // fabric.strategy.num_nodes if n_ranks > 1 else 1  # type: ignore[attr-defined]
        self.feed = ImageFeed(images, device, residence=hardware.residence, n_processes=n_local_ranks)
        self.sampler = make_batches(config, self.method, self.labels, class_names, n_ranks=n_ranks)
        self.n_steps = config.epochs * len(self.sampler)

        torch.manual_seed(config.seed)
        input_size, n_classes = config.input_size or images.shape[1], len(class_names)
        hardware = replace(hardware, residence=self.feed.residence)
        self.step = make_step(
            fabric, hardware, config, input_size=input_size, n_classes=n_classes, n_steps=self.n_steps
        )
        self.take_step: Callable[[Tensor, Tensor], Tensor] = self.step  # or the same, captured
        self.device_labels = self.labels.to(device)
        self.run = RunFolder(folder if folder is not None else Path("runs") / run_name(config))
        network = compiled(self.step.learner.backbone, device) if self.step.hardware.compile else None
        self.validate = Validator(fabric, config, self.stores, self.feed, self.run, network)
        self.progress = Progress()

    def go_on(self) -> bool:
        """Go on from the folder's checkpoint; return whether exactly."""
        state = read_checkpoint(self.run.checkpoint)
        check_same_training(state, self.config, self.fingerprints)
        return load_state(state, self.step, self.sampler, self.progress)

    def describe(self) -> None:
        """Write down what is trained, and on what."""
        if self.fabric.is_global_zero:
            used = asdict(self.step.hardware)
            used |= {"accelerator": self.fabric.device.type, "processes": self.fabric.world_size}
            environment = describe_environment(self.fabric.device) | {"hardware": used}
            self.run.describe(self.config, environment | {"fingerprints": self.fingerprints})

    def warm_up(self) -> None:
        """Do before the first epoch what its validation would wait for."""
        if self.fabric.is_global_zero:
            with self._evaluating() as backbone:
                self.validate.warm_up(backbone)

    def steps(self) -> Iterator[tuple[int, int]]:
        """Take the steps that are left of the epoch; after each, yield its number among them and how many follow."""
        fabric, config, sampler = self.fabric, self.config, self.sampler
        share = sampler.batch_size // fabric.world_size
        order = sampler.epoch_indices().view(-1, sampler.batch_size)  # (batch, image), what is left of the epoch
        made_of = compositions(self.labels[order], config, self.method)
        batch_labels = self.device_labels[order.to(fabric.device)]
        own = order.view(len(order), fabric.world_size, share)[:, fabric.global_rank].flatten()
        batches = zip(sampler, self.feed.batches(own, share), batch_labels, strict=True)
        for number, (_, images, labels) in enumerate(batches, 1):
            if self.take_step is self.step and self.step.hardware.graph:
                self.take_step = captured(self.step, images, labels)
            _set_learning_rate(self.step.optimiser, config, self.progress.step, self.n_steps, len(sampler))
            loss = _finite_step(self.take_step, images, labels, self.step, self.progress, self.run)
            self.progress.add(loss, made_of[number - 1] if made_of else None)
            yield number, len(order) - number

    def record(self) -> dict[str, Any]:
        """Return what is logged of the epoch, once it is seen that all of it is numbers."""
        record = self.progress.epoch_record(self.step)
        _check_finite_weights(self.step, self.progress, self.run, record["loss"])
        return record

    def validated(self) -> dict[str, float]:
        """Return the accuracies on the validation split; the first rank measures for all."""
        with self._evaluating() as backbone:
            return on_first_rank(self.fabric, lambda: self.validate(backbone, self.progress))

    def save(self, recorder: Recorder | None, writer: CheckpointWriter) -> None:
        """Save all that it takes to go on, on the first rank, and then remove weights that nobody wants any more."""
        if recorder is None:
            return
        self.progress.history = recorder.history
        _check_finite_weights(self.step, self.progress, self.run)
        state = state_of(self.step, self.sampler, self.progress)
        state |= {"config": self.config.as_dict(), "fingerprints": self.fingerprints}
        kept, epoch = _epochs_to_keep(self.progress, self.config), self.progress.epoch
        writer.save(state, afterwards=lambda: self.run.keep_weights(kept, before=epoch))

    @contextmanager
    def _evaluating(self) -> Iterator[Backbone]:
        """Yield the backbone in evaluation mode."""
        self.step.learner.eval()
        yield self.step.learner.backbone
        self.step.learner.train()


def with_resolved_path(config: TrainConfig) -> TrainConfig:
    """Return the settings with the whole path of a folder of pictures, wherever they are read again."""
    path = given_path(config.dataset)
    return config if path is None else replace(config, dataset=str(path.resolve()))


def open_splits(config: TrainConfig, data_dir: str | Path | None) -> dict[str, Store]:
    """Open the training split, and the validation split if there is one."""
    stores = {"train": open_or_prepare(config.dataset, "train", data_dir, side=config.side)}
    if (stores["train"].folder.parent / "val").is_dir():
        stores["val"] = open_or_prepare(config.dataset, "val", data_dir, side=config.side)
    return stores


def _open_stores(config: TrainConfig, data_dir: str | Path | None, fabric: Fabric) -> dict[str, Store]:
    """Open the splits. The first rank prepares what needs it."""

    def open_all() -> dict[str, str]:
        return {split: str(store.folder) for split, store in open_splits(config, data_dir).items()}

    return {split: Store(folder) for split, folder in on_first_rank(fabric, open_all).items()}


@contextmanager
def _owned(run: RunFolder, fabric: Fabric, *, resume: bool, overwrite: bool) -> Iterator[bool]:
    """Own the run's folder, on the first rank; yields whether it has a checkpoint to go on from."""
    goes_on = on_first_rank(fabric, lambda: run.start(resume=resume, overwrite=overwrite))
    try:
        yield goes_on
    finally:
        run.release()


def _say_what_is_unusual(
    recorder: Recorder | None, training: _Training, *, resume: bool, goes_on: bool, exactly: bool
) -> None:
    if recorder is None:
        return
    if "val" not in training.stores:
        recorder.say("There is no validation split, so no epoch is the best; the last one is kept.")
    n_query = training.validate.n_query
    if n_query < training.config.validation_queries:
        recorder.say(
            f"Validation classes have few images: episodes have {n_query} queries of each instead of "
            f"{training.config.validation_queries}."
        )
    if resume and not goes_on:
        recorder.say("There is no checkpoint to go on from; this is a new run.")
    if not exactly:
        recorder.say("The checkpoint is of another kind of device; chance is another from here on.")


def _is_time_to_stop(stopping: Callable[[], bool], fabric: Fabric, number: int) -> bool:
    """Whether to stop after a step. Several ranks ask each other only now and then."""
    if fabric.world_size == 1:
        return stopping()
    return number % STEPS_BETWEEN_STOP_CHECKS == 0 and any_rank(fabric, stopping())


def _finite_step(
    take_step: Callable[[Tensor, Tensor], Tensor],
    images: Tensor,
    labels: Tensor,
    step: Step,
    progress: Progress,
    run: RunFolder,
) -> Tensor:
    """Take a step; on a CPU, where looking is free, see that its loss is a number."""
    try:
        loss = take_step(images, labels)
    except InputError:
        _check_finite_weights(step, progress, run)  # what no loss accepts may be embeddings that are no numbers
        raise
    if loss.device.type == "cpu" and not math.isfinite(float(loss)):
        raise _diverged(progress, run, float(loss))
    return loss


def _check_finite_weights(step: Step, progress: Progress, run: RunFolder, loss: float = 0.0) -> None:
    """Refuse to go on, or to save, where the loss or a weight is no longer a number."""
    tensors = [tensor for tensor in step.learner.state_dict().values() if tensor.is_floating_point()]
    if not math.isfinite(loss) or not bool(torch.stack([tensor.isfinite().all() for tensor in tensors]).all()):
        raise _diverged(progress, run, loss)


def _diverged(progress: Progress, run: RunFolder, loss: float) -> NearshotError:
    what = "weights have values that are no numbers" if math.isfinite(loss) else f"loss is {loss}"
    kept = f"{run.checkpoint} has an earlier state" if run.checkpoint.is_file() else "there is no earlier state yet"
    return NearshotError(
        f"The {what} in epoch {progress.epoch}, so training stopped; {kept}. A lower learning rate or a warm-up may "
        "help."
    )


def _epochs_to_keep(progress: Progress, config: TrainConfig) -> set[int]:
    """Return the epochs whose weights are wanted: the best ones, and the last."""
    return {int(best["epoch"]) for best in progress.best.values()} | {config.epochs}


def _set_learning_rate(
    optimiser: torch.optim.Optimizer, config: TrainConfig, step: int, n_steps: int, steps_per_epoch: int
) -> None:
    factor = learning_rate_factor(
        step,
        n_steps,
        schedule=config.schedule,
        milestones=config.milestones,
        decay=config.decay,
        warm_up_steps=config.warm_up_epochs * steps_per_epoch,
    )
    for group in inner_optimiser(optimiser).param_groups:
        if isinstance(group["lr"], Tensor):
            group["lr"].fill_(config.learning_rate * factor)
        else:
            group["lr"] = config.learning_rate * factor


def _summary(config: TrainConfig, run: RunFolder, progress: Progress, fingerprints: dict[str, str]) -> dict[str, Any]:
    return {
        "run": run.path.name,
        "config": config.as_dict(),
        "fingerprints": fingerprints,
        "best": progress.best,
        "last": progress.history[-1],
        "environment": run.read("environment.json"),
    }


def _result(fabric: Fabric, run: RunFolder, progress: Progress, *, finished: bool) -> TrainResult:
    best, history = fabric.broadcast((progress.best, progress.history))
    fabric.barrier()  # nobody leaves while another is still listening
    return TrainResult(
        folder=run.path,
        best={name: Accuracy.from_dict(values) for name, values in best.items()},
        best_epochs={name: int(values["epoch"]) for name, values in best.items()},
        history=history,
        finished=finished,
        rank=fabric.global_rank,
    )


@contextmanager
def _recorder(training: _Training, *, show: bool | None, wandb: str | None, called: float) -> Iterator[Recorder | None]:
    """Yield what records the run: on the first rank only."""
    if not training.fabric.is_global_zero:
        yield None
        return
    with Recorder(
        training.run, training.config, training.progress, len(training.sampler), show=show, wandb=wandb, called=called
    ) as recorder:
        yield recorder
