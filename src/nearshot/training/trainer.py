"""Training, from a configuration to a run's folder."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, TypedDict, Unpack

import torch
from torch import Tensor

from nearshot.data.loader import ImageFeed
from nearshot.errors import InputError, NearshotError
from nearshot.evaluation import Accuracy, FeatureSet, evaluate_many, select_best
from nearshot.models import save_backbone
from nearshot.training import checkpoint
from nearshot.training.assembly import RunPlan
from nearshot.training.checkpoint import CheckpointWriter, Progress
from nearshot.training.classes import NOTE
from nearshot.training.config import TrainConfig
from nearshot.training.diagnosis import warnings_about
from nearshot.training.distributed import any_rank, naming_lost_ranks, on_first_rank
from nearshot.training.embedding import embed_images, in_one_size
from nearshot.training.hardware import Hardware
from nearshot.training.logging import RunLog, import_wandb
from nearshot.training.methods import Composition, compositions
from nearshot.training.run_folder import describe_environment
from nearshot.training.signals import stop_signal
from nearshot.training.step import Step, captured

__all__ = ["TrainResult", "train"]

STEPS_BETWEEN_STOP_CHECKS = 20  # to agree on stopping, ranks have to wait for each other


@dataclass(frozen=True)
class TrainResult:
    """The result of a training run.

    Attributes:
        folder: the run's folder.
        best: for each of "1-shot centroid" and the like, the accuracy of the best epoch on the validation split.
        best_epochs: for each of them, the epoch.
        history: the log, one entry per epoch.
        initial: the accuracies of the initial network, epoch 0, by the same names; empty without `init`.
        finished: False if the run was stopped by a signal before its end.
        rank: the rank of this process; 0 is the one to report for all.
    """

    folder: Path
    best: dict[str, Accuracy]
    best_epochs: dict[str, int]
    history: list[dict[str, Any]]
    finished: bool
    rank: int = 0
    initial: dict[str, float] = field(default_factory=dict)


class RunOptions(TypedDict, total=False):
    """The options of `train` about its log and checkpoints."""

    allow_few_images: bool
    checkpoint_seconds: float
    show: bool | None
    wandb: str | None


@torch.random.fork_rng(devices=[])  # the random state is restored
def train(
    config: TrainConfig,
    *,
    folder: str | Path | None = None,
    data_dir: str | Path | None = None,
    hardware: Hardware | None = None,
    auto: Collection[str] = (),
    resume: bool = False,
    overwrite: bool = False,
    **options: Unpack[RunOptions],
) -> TrainResult:
    """Train a network, and keep the epochs that are best on the validation split.

    Ctrl-C and SIGTERM raise no exception: the run saves a checkpoint, and the result's `finished` is False. A second
    Ctrl-C interrupts at once. In a thread, signals are not noticed.

    Args:
        config: what to train.
        folder: the run's folder; by default runs/ and a name made from the configuration.
        data_dir: where prepared datasets live; by default $NEARSHOT_DATA, or ~/.cache/nearshot.
        hardware: the devices; by default one GPU if available, else the CPU.
        auto: the names of settings that may adapt to the data: a smaller batch where there are few images, fewer ways
            where there are few classes. Of "batch_size", "images_per_class", "n_shot", "least_images",
            "validation_way", "validation_shots" and "validation_queries". Each change is logged, and written to the
            run's configuration; a resumed run keeps its settings.
        resume: resume from the folder's checkpoint, if it has one.
        overwrite: replace a run in the same folder.
        options: `allow_few_images`, whether to train on fewer than 5 classes or 50 images;
            `checkpoint_seconds`, the least time between two checkpoints, which are written at the end of an epoch
            (default: 10); `show`, whether to show progress (default: a bar on a terminal, and lines elsewhere);
            `wandb`, a Weights & Biases project to log to as well (needs the extra `wandb`).
    """
    called = time.perf_counter()
    for name in options.keys() - RunOptions.__annotations__.keys():
        raise TypeError(f"train() got an unexpected keyword argument {name!r}")
    show, wandb = options.get("show"), options.get("wandb")
    if wandb is not None:
        import_wandb()  # fails before anything is overwritten
    where: dict[str, Any] = {"folder": folder, "data_dir": data_dir}
    few = options.get("allow_few_images", False)
    plan = RunPlan(config, hardware or Hardware(), **where, auto=auto, resume=resume, allow_few_images=few)
    training = Training(plan)
    config, fabric, run, progress = plan.config, plan.fabric, plan.run, training.progress
    stop_every = 1 if fabric.world_size == 1 else STEPS_BETWEEN_STOP_CHECKS
    with naming_lost_ranks(fabric, run.path), _locked(plan, resume=resume, overwrite=overwrite) as resumes:
        if resumes:
            training.resume()
        elif resume:
            plan.messages.append("There is no checkpoint to resume from; this is a new run.")
        log = None
        if fabric.is_global_zero:
            training.describe()
            log = RunLog(run, config, progress, len(plan.sampler), show=show, wandb=wandb, called=called)
            for message in plan.messages:
                log.say(message)
        with log or nullcontext(), CheckpointWriter(run.checkpoint) as writer, stop_signal() as stopping:
            training.warm_up()
            if config.init is not None and progress.step == 0:
                progress.initial = training.validated(0)
                if log is not None:
                    log.say(f"epoch 0/{config.epochs}, the initial network: {log.described(progress.initial)}")
            while progress.epoch <= config.epochs:
                started, n_images = time.perf_counter(), 0
                for number, n_left in training.steps():
                    n_images += plan.sampler.batch_size
                    if log is not None:
                        log.step()
                    if n_left and number % stop_every == 0 and any_rank(fabric, stopping()):
                        training.save(writer)
                        return training.result(finished=False)
                record = training.epoch_record()
                seconds = time.perf_counter() - started
                if progress.epoch % config.validate_every == 0 or progress.epoch == config.epochs:
                    record["validation"] = training.validated(progress.epoch)
                progress.history.append(record)
                if log is not None:
                    log.epoch(record, seconds=seconds, images_per_second=n_images / seconds)
                    for warning in training.warnings:
                        log.say(warning)
                    training.warnings.clear()
                progress.next_epoch()
                is_last = progress.epoch > config.epochs
                stops = any_rank(fabric, stopping()) and not is_last
                since_last = time.monotonic() - writer.started
                if stops or is_last or since_last >= options.get("checkpoint_seconds", 10.0):
                    training.save(writer)
                if stops:
                    return training.result(finished=False)
            writer.wait()
            if log is not None:
                run.write("result.json", training.summary())
        fabric.barrier()
    return training.result(finished=True)


@contextmanager
def _locked(plan: RunPlan, *, resume: bool, overwrite: bool) -> Iterator[bool]:
    """Hold the lock of the run's folder, on the first rank; yield whether it has a checkpoint to resume from.

    Meanwhile cuDNN chooses its fastest algorithms by trying them, which pays where batch sizes never change.
    """
    resumes = on_first_rank(plan.fabric, lambda: plan.run.start(resume=resume, overwrite=overwrite))
    before = torch.backends.cudnn.benchmark
    torch.backends.cudnn.benchmark = True
    try:
        yield resumes
    finally:
        torch.backends.cudnn.benchmark = before
        plan.run.release()


class Training:
    """The parts of a run on their device, and what the loop does with them."""

    def __init__(self, plan: RunPlan) -> None:
        self.plan, self.config, self.fabric, self.run = plan, plan.config, plan.fabric, plan.run
        fabric, device, n_ranks = plan.fabric, plan.fabric.device, plan.fabric.world_size
        n_local_ranks = n_ranks // fabric.strategy.num_nodes if n_ranks > 1 else 1  # type: ignore[attr-defined]
        store, residence = plan.stores["train"], plan.hardware.residence
        self.feed = ImageFeed(store.images, device, residence=residence, n_processes=n_local_ranks)
        self.labels, self.device_labels = store.labels, store.labels.to(device)
        hardware = replace(plan.hardware, residence=self.feed.residence)
        self.step = Step(fabric, hardware, self.config, plan.learner, plan.teacher)
        self.take_step: Callable[[Tensor, Tensor], Tensor] = self.step  # or the same, captured
        self.backbone = self.step.learner.backbone if self.step.average is None else self.step.average.backbone
        network = torch.compile(self.backbone, dynamic=False) if hardware.compile else self.backbone
        most = max(len(one.labels) for one in plan.stores.values())
        self.embedder = in_one_size(network, device, most) if hardware.compile or device.type == "cuda" else None
        self.progress, self.warnings = Progress(), list[str]()

    def resume(self) -> None:
        """Restore the folder's checkpoint."""
        state = checkpoint.read_checkpoint(self.run.checkpoint)
        checkpoint.check_same_training(state, self.config, self.plan.fingerprints)
        if not checkpoint.load_state(state, self.step, self.plan.sampler, self.progress):
            message = "The checkpoint is from another kind of device: random numbers differ from this point."
            self.plan.messages.append(message)

    def describe(self) -> None:
        """Write the configuration, the training classes and the environment."""
        used = asdict(self.step.hardware)
        used |= {"accelerator": self.fabric.device.type, "processes": self.fabric.world_size}
        environment = describe_environment(self.fabric.device)
        environment |= {"hardware": used, "fingerprints": self.plan.fingerprints}
        self.run.describe(self.config, environment, self.plan.classes)

    def warm_up(self) -> None:
        """Embed an image, so that a network that compiles on first use does so before the first epoch is timed."""
        if self.fabric.is_global_zero and self.embedder is not None:
            with self._evaluating():
                self._embed(ImageFeed(self.plan.stores["train"].images[:1], self.fabric.device))

    def steps(self) -> Iterator[tuple[int, int]]:
        """Take the remaining steps of the epoch; after each, yield its number and how many follow."""
        fabric, sampler = self.fabric, self.plan.sampler
        share = sampler.batch_size // fabric.world_size
        order = sampler.epoch_indices().view(-1, sampler.batch_size)  # (batch, image), the rest of the epoch
        made_of = compositions(self.labels[order], self.config, self.plan.method)
        batch_labels = self.device_labels[order.to(fabric.device)]
        own = order.view(len(order), fabric.world_size, share)[:, fabric.global_rank].flatten()
        batches = zip(sampler, self.feed.batches(own, share), batch_labels, strict=True)
        for number, (_, images, labels) in enumerate(batches, 1):
            if self.take_step is self.step and self.step.hardware.graph:
                self.take_step = captured(self.step, images, labels)
            self.step.set_learning_rate(self.progress.step, self.plan.n_steps)
            self.progress.add(self._take_step(images, labels), made_of[number - 1] if made_of else None)
            yield number, len(order) - number

    def epoch_record(self) -> dict[str, Any]:
        """Return the log record of the epoch, after checking that loss and weights are finite."""
        progress, step = self.progress, self.step
        loss = float(progress.loss_sum) / progress.n_steps  # waits for the device
        self._check_finite(loss)
        rate = float(step.optimiser.param_groups[0]["lr"])
        record = {"epoch": progress.epoch, "step": progress.step, "loss": loss, "learning_rate": rate}
        if step.log_temperature is not None:
            record["temperature"] = float(step.log_temperature.detach().exp())
        if any(progress.made_of):
            averages = [total / progress.n_steps for total in progress.made_of]
            record |= zip(Composition._fields, averages, strict=True)
        return record

    def validated(self, epoch: int) -> dict[str, float]:
        """Return an epoch's accuracies on the validation split, which the first rank measures for all."""
        with self._evaluating():
            return on_first_rank(self.fabric, lambda: self._validate(epoch))

    def _validate(self, epoch: int) -> dict[str, float]:
        """Measure the backbone, record the best epochs so far, and write its weights if it is best by any measure."""
        best, means = self.progress.best, {}
        features = self._embed(self.feed)
        centre = features.mean(0)  # of the training images; centres all others
        accuracies = self._measure(centre)
        if 2 * epoch >= self.config.epochs:  # at first, any network may look like this
            self.warnings = warnings_about(features, accuracies.values())
        for name, accuracy in accuracies.items():
            means[name] = accuracy.mean
            candidates = {"before": Accuracy.from_dict(best[name])} if name in best else {}
            if select_best(candidates | {"now": accuracy}) == "now":
                best[name] = {"epoch": epoch} | accuracy.as_dict()
        if epoch == self.config.epochs or any(one["epoch"] == epoch for one in best.values()):
            notes = {"run": self.run.path.name, "epoch": str(epoch), "dataset": self.config.dataset}
            notes[NOTE] = self.plan.classes.as_json()
            owner = self.step.average or self.step.learner
            heads = {name: getattr(owner, name, None) for name in ("projection", "head")}
            save_backbone(self.backbone, self.run.weights_of(epoch), training_mean=centre, notes=notes, **heads)
        return means

    def _measure(self, centre: Tensor) -> dict[str, Accuracy]:
        store, config = self.plan.stores.get("val"), self.config
        if store is None:
            return {}
        features = self._embed(ImageFeed(store.images, self.fabric.device))
        results = evaluate_many(
            FeatureSet(features, store.labels, centre, store.class_names, split="val", fingerprint=store.fingerprint),
            n_way=config.validation_way,
            n_shots=config.validation_shots,
            n_query=self.plan.validation_queries,
            n_episodes=config.validation_episodes,
            classifiers=("centroid", "soft"),  # the best epoch is kept for each
            small_classes="leave out",
            progress=False,
        )
        return {f"{measured.n_shot}-shot {measured.classifier}": accuracy for measured, accuracy in results.items()}

    def _embed(self, feed: ImageFeed) -> Tensor:
        bfloat16 = "bf16" in str(self.fabric.strategy.precision.precision)
        return embed_images(self.backbone, feed, device=self.fabric.device, network=self.embedder, bfloat16=bfloat16)

    def save(self, writer: CheckpointWriter) -> None:
        """Write a checkpoint on the first rank, and then remove weights that are not among the best."""
        if not self.fabric.is_global_zero:
            return
        self._check_finite()
        state = checkpoint.state_of(self.step, self.plan.sampler, self.progress)
        state |= {"config": self.config.as_dict(), "fingerprints": self.plan.fingerprints}
        kept = {int(best["epoch"]) for best in self.progress.best.values()} | {self.config.epochs}
        epoch = self.progress.epoch  # of the checkpoint; training continues while it is written
        writer.save(state, afterwards=lambda: self.run.keep_weights(kept, before=epoch))

    def summary(self) -> dict[str, Any]:
        """Return the content of result.json."""
        return {
            "run": self.run.path.name,
            "config": self.config.as_dict(),
            "fingerprints": self.plan.fingerprints,
            "best": self.progress.best,
            "initial": self.progress.initial,
            "last": self.progress.history[-1],
            "environment": self.run.read("environment.json"),
        }

    def result(self, *, finished: bool) -> TrainResult:
        """Return the result, the same on all ranks."""
        progress = self.progress
        best, history, initial = self.fabric.broadcast((progress.best, progress.history, progress.initial))
        self.fabric.barrier()  # no rank leaves while another is still receiving
        accuracies = {name: Accuracy.from_dict(values) for name, values in best.items()}
        epochs = {name: int(values["epoch"]) for name, values in best.items()}
        return TrainResult(self.run.path, accuracies, epochs, history, finished, self.fabric.global_rank, initial)

    @contextmanager
    def _evaluating(self) -> Iterator[None]:
        self.step.learner.eval()
        yield
        self.step.learner.train()

    def _take_step(self, images: Tensor, labels: Tensor) -> Tensor:
        """Take a step; on a CPU, where reading the loss is free, check that it is finite."""
        try:
            loss = self.take_step(images, labels)
        except InputError:
            self._check_finite()  # a loss may have refused embeddings that are not finite
            raise
        if loss.device.type == "cpu" and not loss.isfinite():
            self._check_finite(float(loss))
        return loss

    def _check_finite(self, loss: float = 0.0) -> None:
        """Refuse to continue, or to save, where the loss or a weight is not finite."""
        weights = [tensor for tensor in self.step.learner.state_dict().values() if tensor.is_floating_point()]
        if math.isfinite(loss) and bool(torch.stack([tensor.isfinite().all() for tensor in weights]).all()):
            return
        problem = "weights are not finite" if math.isfinite(loss) else f"loss is {loss}"
        file = self.run.checkpoint
        kept = f"{file} has an earlier state" if file.is_file() else "there is no earlier checkpoint"
        raise NearshotError(
            f"The {problem} in epoch {self.progress.epoch}, so training stopped; {kept}. Lower learning_rate, or raise "
            "warm_up."
        )
