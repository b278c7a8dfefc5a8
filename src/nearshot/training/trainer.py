"""Training, from a configuration to a run's folder."""

import json
import math
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, TypedDict, Unpack

import torch
from torch import Tensor

from nearshot.data.loader import ImageFeed
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
from nearshot.training import checkpoint
from nearshot.training.assembly import RunPlan
from nearshot.training.checkpoint import Progress
from nearshot.training.config import TrainConfig
from nearshot.training.distributed import any_rank, naming_lost_ranks, on_first_rank
from nearshot.training.embedding import embed_images, in_one_size
from nearshot.training.hardware import Hardware
from nearshot.training.logging import RunLog, import_wandb
from nearshot.training.methods import LearntTemperature, PairsInBatch
from nearshot.training.run_folder import NOTE, describe_environment
from nearshot.training.signals import stop_signal
from nearshot.training.step import Step, captured

__all__ = ["TrainResult", "train"]

STEPS_BETWEEN_STOP_CHECKS = 20  # to agree on stopping, ranks have to wait for each other
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

    Ctrl-C and SIGTERM raise no exception: the run saves a checkpoint, and the result's `finished`
    is False. A second Ctrl-C interrupts at once. In a thread, signals are not noticed.

    Args:
        config: what to train.
        folder: the run's folder; by default runs/ and a name made from the configuration.
        data_dir: where prepared datasets live; by default $NEARSHOT_DATA, or ~/.cache/nearshot.
        hardware: the devices; by default one GPU if available, else the CPU.
        auto: the names of settings that may adapt to the data: a smaller batch where there are few
            images, fewer ways where there are few classes. Of "batch_size", "images_per_class",
            "n_shot", "least_images", "validation_n_way", "validation_n_shot" and "validation_n_query".
            Each change is logged, and written to the run's configuration; a resumed run keeps its
            settings.
        resume: resume from the folder's checkpoint, if it has one.
        overwrite: replace a run in the same folder.
        options: `allow_few_images`, whether to train on fewer than 5 classes or 50 images;
            `checkpoint_seconds`, the least time between two checkpoints, which are written at the
            end of an epoch (default: 10); `show`, whether to show progress (default: a bar on a
            terminal, and lines elsewhere); `wandb`, a Weights & Biases project to log to as well
            (needs the extra `wandb`).
    """
    called = time.perf_counter()
    for name in options.keys() - RunOptions.__annotations__.keys():
        raise TypeError(f"train() got an unexpected keyword argument {name!r}")
    if options.get("wandb") is not None:
        import_wandb()  # fails before anything is overwritten
    where: dict[str, Any] = {"folder": folder, "data_dir": data_dir}
    few = options.get("allow_few_images", False)
    plan = RunPlan(
        config, hardware or Hardware(), **where, auto=auto, resume=resume, allow_few_images=few
    )
    training = Training(plan)
    config, fabric, run, progress = plan.config, plan.fabric, plan.run, training.progress
    stop_every = 1 if fabric.world_size == 1 else STEPS_BETWEEN_STOP_CHECKS
    with (
        naming_lost_ranks(fabric, run.path),
        _locked(plan, resume=resume, overwrite=overwrite) as resumes,
    ):
        if resumes:
            state = checkpoint.read_checkpoint(run.checkpoint)
            checkpoint.check_same_training(state, config, plan.fingerprints)
            if not checkpoint.load_state(state, training.step, plan.sampler, progress):
                message = "The checkpoint is from another kind of device: random numbers differ from this point."
                plan.messages.append(message)
        elif resume:
            plan.messages.append("There is no checkpoint to resume from; this is a new run.")
        is_first = fabric.is_global_zero
        if is_first:
            used = asdict(training.step.hardware)
            used |= {"accelerator": fabric.device.type, "processes": fabric.world_size}
            environment = describe_environment(fabric.device)
            environment |= {"hardware": used, "fingerprints": plan.fingerprints}
            run.describe(config, environment, plan.classes)
        shown: dict[str, Any] = (
            {"show": options.get("show"), "wandb": options.get("wandb")} if is_first else {}
        )
        log = RunLog(
            run, config, progress, len(plan.sampler), writes=is_first, called=called, **shown
        )
        with log, stop_signal() as stopping:
            log.say(
                f"{plan.config.method.title or plan.config.method_name} on {config.dataset}: {config.backbone}, {counted(config.epochs, 'epoch')} of "
                f"{counted(len(plan.sampler), 'step')} of {plan.sampler.batch_size} images, on {fabric.device.type}.",
                *plan.messages,
            )
            training.warm_up()
            if config.init is not None and progress.step == 0:
                progress.initial = training.validate(0)
                log.say(
                    f"epoch 0/{config.epochs}, the initial network: {log.described(progress.initial)}"
                )
            while progress.epoch <= config.epochs:
                started, n_images = time.perf_counter(), 0
                for number, n_left in training.steps():
                    n_images += plan.sampler.batch_size
                    log.step()
                    if progress.step - log.first_step == 2 and fabric.device.type == "cpu":
                        log.warn_if_slow()  # on a GPU, the steps are not finished yet
                    if n_left and number % stop_every == 0 and any_rank(fabric, stopping()):
                        training.save()
                        return training.result(finished=False)
                record = training.epoch_record()
                seconds = time.perf_counter() - started
                if progress.epoch % config.validate_every == 0 or progress.epoch == config.epochs:
                    record["validation"] = training.validate(progress.epoch)
                progress.history.append(record)
                log.epoch(record, seconds=seconds, images_per_second=n_images / seconds)
                log.say(*training.warnings)
                training.warnings.clear()
                progress.next_epoch()
                is_last = progress.epoch > config.epochs
                stops = any_rank(fabric, stopping()) and not is_last
                since_last = time.monotonic() - training.saved_at
                if stops or is_last or since_last >= options.get("checkpoint_seconds", 10.0):
                    training.save()
                if stops:
                    return training.result(finished=False)
            return training.result(finished=True)


@contextmanager
def _locked(plan: RunPlan, *, resume: bool, overwrite: bool) -> Iterator[bool]:
    """Hold the lock of the run's folder, on the first rank; yield whether it has a checkpoint to resume from.

    Meanwhile cuDNN chooses its fastest algorithms by trying them, which pays where batch sizes
    never change.
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
        self.saved = (
            self.step.average or self.step.learner
        )  # whose weights are measured and written
        backbone = self.saved.backbone
        network = torch.compile(backbone, dynamic=False) if hardware.compile else backbone
        most = max(len(one.labels) for one in plan.stores.values())
        self.embedder = (
            in_one_size(network, device, most)
            if hardware.compile or device.type == "cuda"
            else None
        )
        self.progress, self.warnings, self.saved_at = Progress(), list[str](), time.monotonic()

    def warm_up(self) -> None:
        """Embed an image, so that a network that compiles on first use does so before the first epoch is timed."""
        if self.fabric.is_global_zero and self.embedder is not None:
            self.step.learner.eval()
            self._embed(ImageFeed(self.plan.stores["train"].images[:1], self.fabric.device))
            self.step.learner.train()

    def steps(self) -> Iterator[tuple[int, int]]:
        """Take the remaining steps of the epoch; after each, yield its number and how many follow."""
        fabric, sampler = self.fabric, self.plan.sampler
        share = sampler.batch_size // fabric.world_size
        order = sampler.epoch_indices().view(
            -1, sampler.batch_size
        )  # (batch, image), the rest of the epoch
        shape = self.config.shape if self.config.batch_kind == "episodes" else None
        batch_labels = self.device_labels[order.to(fabric.device)]
        own = order.view(len(order), fabric.world_size, share)[:, fabric.global_rank].flatten()
        batches = zip(sampler, self.feed.batches(own, share), batch_labels, strict=True)
        for number, (_, images, labels) in enumerate(batches, 1):
            if self.take_step is self.step and self.step.hardware.graph:
                self.take_step = captured(self.step, images, labels)
            self.step.set_learning_rate(self.progress.step, self.plan.n_steps)
            try:
                loss = self.take_step(images, labels)
            except InputError:
                self._check_finite()  # a loss refuses embeddings that are not finite
                raise
            self.progress.add(loss, self.config.method.pairs(self.labels[order[number - 1]], shape))
            yield number, len(order) - number

    def epoch_record(self) -> dict[str, Any]:
        """Return the log record of the epoch, after checking that loss and weights are finite."""
        progress, step = self.progress, self.step
        loss = float(progress.loss_sum) / progress.n_steps  # waits for the device
        self._check_finite(loss)
        rate = float(step.optimiser.param_groups[0]["lr"])
        record = {
            "epoch": progress.epoch,
            "step": progress.step,
            "loss": loss,
            "learning_rate": rate,
        }
        for module in step.loss_modules.values():
            if isinstance(module, LearntTemperature):
                record["temperature"] = float(module().detach())
        if any(progress.pairs):
            averages = [total / progress.n_steps for total in progress.pairs]
            record |= zip(PairsInBatch._fields, averages, strict=True)
        return record

    def validate(self, epoch: int) -> dict[str, float]:
        """Return an epoch's accuracies on the validation split, which the first rank measures for all."""
        self.step.learner.eval()
        means = on_first_rank(self.fabric, lambda: self._validate(epoch))
        self.step.learner.train()
        return means

    def _validate(self, epoch: int) -> dict[str, float]:
        """Measure the backbone, record the best epochs so far, and write its weights if it is best by any measure."""
        config, best, store = self.config, self.progress.best, self.plan.stores.get("val")
        features = self._embed(self.feed)
        centre = features.mean(0)  # of the training images; centres all others
        accuracies: dict[str, Accuracy] = {}
        if store is not None:
            embedded = self._embed(ImageFeed(store.images, self.fabric.device))
            # Each best epoch is kept. Classes that are too small for the most shots are skipped.
            least_images = max(config.validation_n_shot) + self.plan.validation_n_query
            specs = []
            for n_shot in config.validation_n_shot:
                for classifier in ("centroid", "soft"):
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
            measured = evaluate_many(
                FeatureSet(
                    embedded, store.labels, centre, store.class_names, "val", store.fingerprint
                ),
                specs=specs,
                progress=False,
            )
            for spec, accuracy in zip(specs, measured, strict=True):
                accuracies[f"{spec.n_shot}-shot {spec.classifier}"] = accuracy
        if 2 * epoch >= config.epochs:  # at first, any network may look like this
            self.warnings = warnings_about(features, accuracies.values(), config)
        for name, accuracy in accuracies.items():
            candidates = {"before": Accuracy.from_dict(best[name])} if name in best else {}
            if select_best(candidates | {"now": accuracy}) == "now":
                best[name] = {"epoch": epoch} | accuracy.as_dict()
        if epoch == config.epochs or any(one["epoch"] == epoch for one in best.values()):
            notes = {"run": self.run.path.name, "epoch": str(epoch), "dataset": config.dataset}
            notes[NOTE] = json.dumps(self.plan.classes.as_dict())
            heads = {name: getattr(self.saved, name, None) for name in ("projection", "head")}
            save_backbone(
                self.saved.backbone,
                self.run.weights_of(epoch),
                training_mean=centre,
                notes=notes,
                **heads,
            )
        return {name: accuracy.mean for name, accuracy in accuracies.items()}

    def _embed(self, feed: ImageFeed) -> Tensor:
        bfloat16 = "bf16" in str(self.fabric.strategy.precision.precision)
        return embed_images(self.saved.backbone, feed, network=self.embedder, bfloat16=bfloat16)

    def save(self) -> None:
        """Write a checkpoint on the first rank, and then remove weights that are not among the best."""
        self.saved_at = time.monotonic()
        if not self.fabric.is_global_zero:
            return
        self._check_finite()
        state = checkpoint.state_of(self.step, self.plan.sampler, self.progress)
        state |= {"config": self.config.as_dict(), "fingerprints": self.plan.fingerprints}
        checkpoint.write_checkpoint(self.run.checkpoint, state)
        self.run.keep_weights(
            {int(best["epoch"]) for best in self.progress.best.values()} | {self.config.epochs}
        )

    def result(self, *, finished: bool) -> TrainResult:
        """Return the result, the same on all ranks; the first writes the result.json of a finished run."""
        progress, run = self.progress, self.run
        if finished and self.fabric.is_global_zero:
            content = {
                "run": run.path.name,
                "config": self.config.as_dict(),
                "fingerprints": self.plan.fingerprints,
            }
            content |= {
                "best": progress.best,
                "initial": progress.initial,
                "last": progress.history[-1],
            }
            run.write("result.json", content | {"environment": run.read("environment.json")})
        best, history, initial = self.fabric.broadcast(
            (progress.best, progress.history, progress.initial)
        )
        self.fabric.barrier()  # no rank leaves while another is still receiving
        accuracies = {name: Accuracy.from_dict(values) for name, values in best.items()}
        epochs = {name: int(values["epoch"]) for name, values in best.items()}
        return TrainResult(
            run.path, accuracies, epochs, history, finished, self.fabric.global_rank, initial
        )

    def _check_finite(self, loss: float = 0.0) -> None:
        """Refuse to continue, or to save, where the loss or a weight is not finite."""
        weights = [
            tensor
            for tensor in self.step.learner.state_dict().values()
            if tensor.is_floating_point()
        ]
        if math.isfinite(loss) and bool(
            torch.stack([tensor.isfinite().all() for tensor in weights]).all()
        ):
            return
        problem = "weights are not finite" if math.isfinite(loss) else f"loss is {loss}"
        raise NearshotError(
            f"The {problem} in epoch {self.progress.epoch}, so training stopped; checkpoints are of earlier states. "
            "Lower learning_rate, or raise warm_up."
        )


def effective_dimensions(features: Tensor) -> float:
    """Return how many dimensions features (image, dim) vary in: (Σ λ)² / Σ λ² of their covariance's eigenvalues.

    >>> effective_dimensions(torch.tensor([[1.0, 0.0], [-1.0, 0.0], [0.0, 1.0], [0.0, -1.0]]))
    2.0
    """
    centred = features.double() - features.double().mean(0)
    gram = (
        centred.T @ centred if len(centred) > centred.shape[1] else centred @ centred.T
    )  # has the same eigenvalues
    return float(gram.trace() ** 2 / gram.square().sum().clamp(min=torch.finfo(gram.dtype).tiny))


def warnings_about(
    features: Tensor, accuracies: Collection[Accuracy], config: TrainConfig
) -> list[str]:
    """Return a warning if the features of training images collapse, and if all validation accuracies are at chance."""
    found, options = [], ["lower the learning rate"]
    options += ["use --optimiser adam"] if config.optimiser != "adam" else []
    options += ["start from a trained network (--init)"] if config.init is None else []
    advice = f"To try: {', '.join(options)}."
    if effective_dimensions(features) < COLLAPSED:
        found.append(
            f"Warning: the embeddings collapse: nearly all images have the same, or lie on a line. {advice}"
        )
    if accuracies and all(one.mean <= AT_CHANCE * 100 / one.protocol.n_way for one in accuracies):
        found.append(f"Warning: validation is at chance, as if classes were guessed. {advice}")
    return found
