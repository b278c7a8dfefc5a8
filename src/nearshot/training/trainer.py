"""Training, from a configuration to a run's folder."""

import json
import math
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from nearshot.data.loader import ImageFeed
from nearshot.devices import uses_bfloat16
from nearshot.errors import InputError, NearshotError
from nearshot.evaluation import (
    Accuracy,
    EvaluationSpec,
    FeatureSet,
    evaluate_many,
    select_best,
)
from nearshot.models import save_backbone
from nearshot.text import counted
from nearshot.training.checkpoint import (
    RunState,
    check_same_training,
    load_state,
    read_checkpoint,
    state_of,
    write_checkpoint,
)
from nearshot.training.config import TrainConfig
from nearshot.training.distributed import any_rank, on_first_rank, stopping_lost_ranks
from nearshot.training.embedding import embed_images, in_one_size
from nearshot.training.hardware import Hardware
from nearshot.training.learner import Learner, Teacher
from nearshot.training.logging import RunLog, import_wandb
from nearshot.training.methods import LearntTemperature, PairsInBatch
from nearshot.training.plan import (
    RunPlan,
    open_splits,
    plan_run,
    prepare_splits,
    resolve_run,
)
from nearshot.training.run_folder import NOTE, RunFolder, describe_environment
from nearshot.training.signals import stop_signal
from nearshot.training.step import Step, captured

if TYPE_CHECKING:
    from lightning_fabric import Fabric

__all__ = ["TrainResult", "Trainer", "build_networks", "train"]

STEPS_BETWEEN_STOP_CHECKS = 20  # to agree on stopping, ranks have to wait for each other
VALIDATION_CLASSIFIERS = ("centroid", "soft")  # the best epoch is kept for each
COLLAPSED = 2.0  # dimensions; trained networks have 10 and more
AT_CHANCE = 1.1  # times the accuracy of guessing


@dataclass(frozen=True)
class TrainResult:
    """The result of a training run.

    Attributes:
        folder: the run's folder.
        best: for each of "1-shot centroid" and the like, the accuracy of the best epoch on the
            validation split.
        best_epochs: for each of them, the epoch.
        history: the log, one entry per epoch.
        initial: the accuracies of the initial network, epoch 0, by the same names; empty without
            `init`.
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


@torch.random.fork_rng(devices=[])  # the caller's random state is restored
def train(
    config: TrainConfig,
    *,
    folder: str | Path | None = None,
    data_dir: str | Path | None = None,
    hardware: Hardware | None = None,
    auto: Collection[str] = (),
    allow_few_images: bool = False,
    resume: bool = False,
    overwrite: bool = False,
    checkpoint_seconds: float = 10.0,
    progress: bool | None = None,
    wandb_project: str | None = None,
) -> TrainResult:
    """Train a network, and keep the epochs that are best on the validation split.

    Ctrl-C and SIGTERM raise no exception: the run saves a checkpoint, and the result's `finished`
    is False. A second Ctrl-C interrupts at once. In a thread, signals are not noticed.

    Args:
        config: what to train.
        folder: the run's folder; by default runs/ and a name made from the configuration.
        data_dir: where prepared datasets live; by default $NEARSHOT_DATA, or ~/.cache/nearshot.
        hardware: the devices; by default one GPU if available, else the CPU.
        auto: the names of settings that may adapt to the data: a smaller batch where there are few
            images, fewer ways where there are few classes. Of "batch_size", "images_per_class",
            "n_shot", "least_images", "validation_n_way", "validation_n_shot" and
            "validation_n_query". Each change is logged, and written to the run's configuration; a
            resumed run keeps its settings.
        allow_few_images: train on fewer than 5 classes or 50 images.
        resume: resume from the folder's checkpoint, if it has one.
        overwrite: replace a run in the same folder.
        checkpoint_seconds: the least time between two checkpoints, which are written at the end of
            an epoch.
        progress: show progress; by default a bar on a terminal, and lines elsewhere.
        wandb_project: a Weights & Biases project to log to as well; needs the extra `wandb`.
    """
    called = time.perf_counter()
    if wandb_project is not None:
        import_wandb()  # fails before anything is overwritten
    hardware = hardware or Hardware()
    config, run, auto = resolve_run(config, folder, auto=auto, resume=resume)
    fabric = hardware.launch(config)
    on_first_rank(fabric, partial(prepare_splits, config, data_dir))
    plan = plan_run(
        config,
        open_splits(config, data_dir),
        n_ranks=fabric.world_size,
        auto=auto,
        allow_few_images=allow_few_images,
    )
    trainer = Trainer(plan, fabric, hardware, run, checkpoint_seconds=checkpoint_seconds)
    with (
        stopping_lost_ranks(fabric, run.path),
        _locked(run, fabric, resume=resume, overwrite=overwrite) as has_checkpoint,
        _fastest_convolutions(),
    ):
        messages = list(plan.messages)
        if has_checkpoint:
            messages += trainer.restore()
        elif resume:
            messages.append("There is no checkpoint to resume from; this is a new run.")
        trainer.describe()
        is_first = fabric.is_global_zero
        with RunLog(
            run,
            plan.config,
            trainer.state,
            plan.steps_per_epoch,
            writes=is_first,
            progress=progress if is_first else False,
            wandb_project=wandb_project if is_first else None,
            called=called,
        ) as log:
            log.say(_headline(plan, fabric), *messages)
            return trainer.fit(log)


def _headline(plan: RunPlan, fabric: "Fabric") -> str:
    config = plan.config
    return (
        f"{config.method.title or config.method_name} on {config.dataset}: {config.backbone}, "
        f"{counted(config.epochs, 'epoch')} of {counted(plan.steps_per_epoch, 'step')} of "
        f"{plan.batch_size} images, on {fabric.device.type}."
    )


@contextmanager
def _locked(run: RunFolder, fabric: "Fabric", *, resume: bool, overwrite: bool) -> Iterator[bool]:
    """Hold the lock of the run's folder, on the first rank.

    Yields whether the folder has a checkpoint to resume from.
    """
    start = partial(run.start, resume=resume, overwrite=overwrite)
    has_checkpoint = on_first_rank(fabric, start)
    try:
        yield has_checkpoint
    finally:
        run.release()


@contextmanager
def _fastest_convolutions() -> Iterator[None]:
    """Let cuDNN try its algorithms and choose the fastest, since batch sizes never change."""
    before = torch.backends.cudnn.benchmark
    torch.backends.cudnn.benchmark = True
    try:
        yield
    finally:
        torch.backends.cudnn.benchmark = before


def build_networks(plan: RunPlan) -> tuple[Learner, Teacher | None]:
    """Return the network with its initial weights and its teacher, not yet on a device."""
    class_names = plan.stores["train"].class_names
    torch.manual_seed(plan.config.seed)
    learner = Learner(plan.config, plan.input_size, len(class_names))
    if plan.config.teacher is None:
        return learner, None
    return learner, Teacher(plan.config, learner, class_names)


class Trainer:
    """One rank of a run: its parts on their device, and what it is at, its `state`."""

    def __init__(
        self,
        plan: RunPlan,
        fabric: "Fabric",
        hardware: Hardware,
        run: RunFolder,
        *,
        checkpoint_seconds: float = 10.0,
    ) -> None:
        self.plan = plan
        self.config = plan.config
        self.fabric = fabric
        self.run = run
        self.checkpoint_seconds = checkpoint_seconds
        learner, teacher = build_networks(plan)
        hardware = hardware.resolved(
            fabric.device,
            plan.config,
            learner.backbone,
            n_ranks=fabric.world_size,
            n_steps=plan.n_steps,
        )
        n_local_ranks = 1
        if fabric.world_size > 1:
            n_nodes: int = fabric.strategy.num_nodes  # type: ignore[attr-defined]
            n_local_ranks = fabric.world_size // n_nodes
        training = plan.stores["train"]
        self.feed = ImageFeed(
            training.images,
            fabric.device,
            residence=hardware.residence,
            n_processes=n_local_ranks,
        )
        self.labels = training.labels
        self.device_labels = training.labels.to(fabric.device)
        hardware = replace(hardware, residence=self.feed.residence)
        self.step = Step(fabric, hardware, plan.config, learner, teacher)
        self.captured_step: Callable[[Tensor, Tensor], Tensor] | None = None
        self.sampler = plan.new_sampler()
        # Whose weights are measured and written.
        self.saved = self.step.average or self.step.learner
        self.embedder = self._new_embedder()
        self.state = RunState()
        self.warnings: list[str] = []
        self.saved_at = time.monotonic()

    def _new_embedder(self) -> Callable[[Tensor], Tensor] | None:
        """Return the network that embeds images in one size of batch; None if any size will do."""
        hardware = self.step.hardware
        device = self.fabric.device
        if not hardware.compile and device.type != "cuda":
            return None
        backbone = self.saved.backbone
        network = torch.compile(backbone, dynamic=False) if hardware.compile else backbone
        most_images = max(len(store) for store in self.plan.stores.values())
        return in_one_size(network, device, most_images)

    def restore(self) -> list[str]:
        """Continue from the checkpoint; return a message if random numbers differ from there."""
        state = read_checkpoint(self.run.checkpoint)
        check_same_training(state, self.config, self.plan.fingerprints)
        if load_state(state, self.step, self.sampler, self.state):
            return []
        return [
            "The checkpoint is from another kind of device: random numbers differ from this point."
        ]

    def describe(self) -> None:
        """Write the settings, the environment and the training classes, on the first rank."""
        if not self.fabric.is_global_zero:
            return
        hardware = asdict(self.step.hardware)
        hardware["accelerator"] = self.fabric.device.type
        hardware["processes"] = self.fabric.world_size
        environment = describe_environment(self.fabric.device)
        environment["hardware"] = hardware
        environment["fingerprints"] = dict(self.plan.fingerprints)
        self.run.describe(self.config, environment, self.plan.classes)

    def fit(self, log: RunLog) -> TrainResult:
        """Train the remaining epochs."""
        state = self.state
        with stop_signal() as stop_requested:
            self.warm_up()
            if self.config.init is not None and state.step == 0:
                state.initial = self.validate(0)
                accuracies = log.described(state.initial)
                log.say(f"epoch 0/{self.config.epochs}, the initial network: {accuracies}")
            while state.epoch <= self.config.epochs:
                started = time.perf_counter()
                first_step = state.step
                if not self.train_epoch(log, stop_requested):
                    self.save()
                    return self.result(finished=False)
                record = self.epoch_record()
                seconds = time.perf_counter() - started
                n_images = (state.step - first_step) * self.plan.batch_size
                if self.is_validated(state.epoch):
                    record["validation"] = self.validate(state.epoch)
                state.history.append(record)
                log.epoch(record, seconds=seconds, images_per_second=n_images / seconds)
                log.say(*self.warnings)
                self.warnings = []
                state.next_epoch()
                is_last = state.epoch > self.config.epochs
                is_stopped = any_rank(self.fabric, stop_requested()) and not is_last
                since_saved = time.monotonic() - self.saved_at
                if is_stopped or is_last or since_saved >= self.checkpoint_seconds:
                    self.save()
                if is_stopped:
                    return self.result(finished=False)
        return self.result(finished=True)

    def warm_up(self) -> None:
        """Embed an image, so that a network compiles before the first epoch is timed."""
        if self.fabric.is_global_zero and self.embedder is not None:
            self.step.learner.eval()
            self._embed(ImageFeed(self.plan.stores["train"].images[:1], self.fabric.device))
            self.step.learner.train()

    def train_epoch(self, log: RunLog, stop_requested: Callable[[], bool]) -> bool:
        """Take the remaining steps of the epoch; return False if asked to stop before the last."""
        n_ranks = self.fabric.world_size
        stop_every = 1 if n_ranks == 1 else STEPS_BETWEEN_STOP_CHECKS
        batch_size = self.plan.batch_size
        share = batch_size // n_ranks
        rows = self.sampler.epoch_indices().view(-1, batch_size)  # (batch, image)
        own_rows = rows.view(-1, n_ranks, share)[:, self.fabric.global_rank].flatten()
        labels = self.device_labels[rows.to(self.fabric.device)]
        image_batches = self.feed.batches(own_rows, share)
        batches = zip(self.sampler, image_batches, labels, strict=True)
        for number, (_, images, batch_labels) in enumerate(batches, start=1):
            loss = self.take_step(images, batch_labels)
            pairs = self.config.method.pairs(self.labels[rows[number - 1]], self.plan.episode_shape)
            self.state.add(loss, pairs)
            log.step()
            n_taken = self.state.step - log.first_step
            if n_taken == 2 and self.fabric.device.type == "cpu":
                log.warn_if_slow()  # on a GPU, the steps are not finished yet
            is_last = number == len(rows)
            may_stop = not is_last and number % stop_every == 0
            if may_stop and any_rank(self.fabric, stop_requested()):
                return False
        return True

    def take_step(self, images: Tensor, labels: Tensor) -> Tensor:
        """Take a step, replayed from a graph if the hardware has one, and return the loss."""
        step = self.step
        if step.hardware.graph and self.captured_step is None:
            self.captured_step = captured(step, images, labels)
        step.set_learning_rate(self.state.step, self.plan.n_steps)
        try:
            return (self.captured_step or step)(images, labels)
        except InputError:
            self.check_finite()  # a loss refuses embeddings that are not finite
            raise

    def epoch_record(self) -> dict[str, Any]:
        """Return the log record of the epoch, after checking that loss and weights are finite."""
        state = self.state
        loss = float(state.loss_sum) / state.n_steps  # waits for the device
        self.check_finite(loss)
        record = {
            "epoch": state.epoch,
            "step": state.step,
            "loss": loss,
            "learning_rate": float(self.step.optimiser.param_groups[0]["lr"]),
        }
        for module in self.step.loss_modules.values():
            if isinstance(module, LearntTemperature):
                record["temperature"] = float(module().detach())
        if any(state.pairs):
            for name, total in zip(PairsInBatch._fields, state.pairs, strict=True):
                record[name] = total / state.n_steps
        return record

    def is_validated(self, epoch: int) -> bool:
        """Whether an epoch is validated."""
        return epoch % self.config.validate_every == 0 or epoch == self.config.epochs

    def validate(self, epoch: int) -> dict[str, float]:
        """Return an epoch's validation accuracies, which the first rank measures for all."""
        self.step.learner.eval()
        means = on_first_rank(self.fabric, partial(self._validate, epoch))
        self.step.learner.train()
        return means

    def _validate(self, epoch: int) -> dict[str, float]:
        """Measure the backbone, record the best epochs, and write the weights of a best one."""
        features = self._embed(self.feed)
        centre = features.mean(0)  # of the training images; centres all others
        accuracies = self._validation_accuracies(centre)
        if 2 * epoch >= self.config.epochs:  # at first, any network may look like this
            self.warnings = warnings_about(features, accuracies.values(), self.config)
        best = self.state.best
        for name, accuracy in accuracies.items():
            candidates = {"now": accuracy}
            if name in best:
                candidates = {"before": Accuracy.from_dict(best[name]), "now": accuracy}
            if select_best(candidates) == "now":
                best[name] = {"epoch": epoch} | accuracy.as_dict()
        if epoch == self.config.epochs or epoch in self.state.best_epochs().values():
            self._write_weights(epoch, centre)
        return {name: accuracy.mean for name, accuracy in accuracies.items()}

    def _validation_accuracies(self, centre: Tensor) -> dict[str, Accuracy]:
        """Return the validation accuracies by "5-shot centroid" and the like."""
        store = self.plan.stores.get("val")
        if store is None:
            return {}
        config = self.config
        # Classes that are too small for the most shots are skipped.
        least_images = max(config.validation_n_shot) + self.plan.validation_n_query
        specs = []
        for n_shot in config.validation_n_shot:
            for classifier in VALIDATION_CLASSIFIERS:
                spec = EvaluationSpec(
                    split="val",
                    n_way=config.validation_n_way,
                    n_shot=n_shot,
                    n_query=self.plan.validation_n_query,
                    n_episodes=config.validation_episodes,
                    least_images=least_images,
                    classifier=classifier,
                )
                specs.append(spec)
        features = self._embed(ImageFeed(store.images, self.fabric.device))
        measured = evaluate_many(
            FeatureSet(features, store.labels, centre, store.class_names, "val", store.fingerprint),
            specs=specs,
            progress=False,
        )
        accuracies = {}
        for spec, accuracy in zip(specs, measured, strict=True):
            accuracies[f"{spec.n_shot}-shot {spec.classifier}"] = accuracy
        return accuracies

    def _write_weights(self, epoch: int, centre: Tensor) -> None:
        notes = {
            "run": self.run.path.name,
            "epoch": str(epoch),
            "dataset": self.config.dataset,
            NOTE: json.dumps(self.plan.classes.as_dict()),
        }
        save_backbone(
            self.saved.backbone,
            self.run.weights_of(epoch),
            training_mean=centre,
            notes=notes,
            projection=getattr(self.saved, "projection", None),
            head=getattr(self.saved, "head", None),
        )

    def _embed(self, feed: ImageFeed) -> Tensor:
        bfloat16 = uses_bfloat16(self.config.precision, self.fabric.device.type)
        return embed_images(self.saved.backbone, feed, network=self.embedder, bfloat16=bfloat16)

    def save(self) -> None:
        """Write a checkpoint on the first rank, then remove weights that are not among the best."""
        self.saved_at = time.monotonic()
        if not self.fabric.is_global_zero:
            return
        self.check_finite()
        state = state_of(self.step, self.sampler, self.state)
        state["config"] = self.config.as_dict()
        state["fingerprints"] = dict(self.plan.fingerprints)
        write_checkpoint(self.run.checkpoint, state)
        self.run.keep_weights({*self.state.best_epochs().values(), self.config.epochs})

    def result(self, *, finished: bool) -> TrainResult:
        """Return the result, the same on all ranks; a finished run writes it into its folder."""
        state = self.state
        if finished and self.fabric.is_global_zero:
            content = {
                "run": self.run.path.name,
                "config": self.config.as_dict(),
                "fingerprints": dict(self.plan.fingerprints),
                "best": state.best,
                "initial": state.initial,
                "last": state.history[-1],
                "environment": self.run.read("environment.json"),
            }
            self.run.write("result.json", content)
        state.best, state.history, state.initial = self.fabric.broadcast(
            (state.best, state.history, state.initial)
        )
        self.fabric.barrier()  # no rank leaves while another is still receiving
        return TrainResult(
            folder=self.run.path,
            best={name: Accuracy.from_dict(values) for name, values in state.best.items()},
            best_epochs=state.best_epochs(),
            history=state.history,
            finished=finished,
            rank=self.fabric.global_rank,
            initial=state.initial,
        )

    def check_finite(self, loss: float = 0.0) -> None:
        """Refuse to continue, or to save, where the loss or a weight is not finite."""
        tensors = [
            *self.step.learner.state_dict().values(),
            *self.step.loss_modules.state_dict().values(),
        ]
        are_finite = [tensor.isfinite().all() for tensor in tensors if tensor.is_floating_point()]
        if not math.isfinite(loss):
            problem = f"loss is {loss}"
        elif not bool(torch.stack(are_finite).all()):
            problem = "weights are not finite"
        else:
            return
        raise NearshotError(
            f"The {problem} in epoch {self.state.epoch}, so training stopped; checkpoints are of "
            "earlier states. Lower learning_rate, or raise warm_up."
        )


def effective_dimensions(features: Tensor) -> float:
    """Return how many dimensions features (image, dim) vary in.

    It is (Σ λ)² / Σ λ² of the eigenvalues of their covariance.

    >>> effective_dimensions(torch.tensor([[1.0, 0.0], [-1.0, 0.0], [0.0, 1.0], [0.0, -1.0]]))
    2.0
    """
    centred = features.double() - features.double().mean(0)
    # Both have the same eigenvalues.
    gram = centred.T @ centred if len(centred) > centred.shape[1] else centred @ centred.T
    return float(gram.trace() ** 2 / gram.square().sum().clamp(min=torch.finfo(gram.dtype).tiny))


def warnings_about(
    features: Tensor, accuracies: Collection[Accuracy], config: TrainConfig
) -> list[str]:
    """Return warnings if the features of training images collapse, or validation is at chance."""
    options = ["lower learning_rate"]
    if config.optimiser != "adam":
        options.append("set optimiser to adam")
    if config.init is None:
        options.append("start from a trained network, init")
    advice = f"To try: {', '.join(options)}."
    warnings = []
    if effective_dimensions(features) < COLLAPSED:
        warnings.append(
            "Warning: the embeddings collapse: nearly all images have the same, or lie on a line. "
            f"{advice}"
        )
    are_at_chance = [
        accuracy.mean <= AT_CHANCE * 100 / accuracy.protocol.n_way for accuracy in accuracies
    ]
    if are_at_chance and all(are_at_chance):
        warnings.append(f"Warning: validation is at chance, as if classes were guessed. {advice}")
    return warnings
