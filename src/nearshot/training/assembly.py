"""A training put together from its parts: data, network, step, validation and the run's folder."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from nearshot.data import Store, open_or_prepare
from nearshot.data.loader import ImageFeed
from nearshot.data.preparation import given_path
from nearshot.data.store import are_together
from nearshot.errors import InputError, NearshotError
from nearshot.models import Backbone
from nearshot.text import format_list
from nearshot.training.autoconfig import fitted
from nearshot.training.batches import compositions, make_batches
from nearshot.training.checkpoint import CheckpointWriter, check_same_training, read_checkpoint
from nearshot.training.config import TrainConfig
from nearshot.training.distributed import on_first_rank
from nearshot.training.embedding import in_one_size
from nearshot.training.hardware import Hardware
from nearshot.training.logging import Recorder
from nearshot.training.methods import resolve_method
from nearshot.training.run_folder import RunFolder, describe_environment, run_name
from nearshot.training.schedule import learning_rate_factor
from nearshot.training.state import Progress, load_state, state_of
from nearshot.training.step import captured, inner_optimiser, make_step
from nearshot.training.validation import Validator

if TYPE_CHECKING:
    from lightning_fabric import Fabric

__all__ = ["Training", "open_splits", "with_resolved_path"]


class Training:
    """All parts of a training, put together, and what is done with them between two looks at the clock."""

    def __init__(
        self,
        config: TrainConfig,
        hardware: Hardware,
        folder: str | Path | None,
        data_dir: str | Path | None,
        fit: Collection[str] = (),
        *,
        resume: bool = False,
    ) -> None:
        _ = config.method_name  # before a loss of one's own counts anything
        config = with_resolved_path(config)
        # What is fitted is in its files, not in its name.
        self.run = RunFolder(folder if folder is not None else Path("runs") / run_name(config))
        if resume and (begun := self.run.as_begun(config, fit)) is not None:
            config, fit = begun, ()
        self.method = resolve_method(config, fit)
        self.fabric = fabric = hardware.fabric(config)
        fabric.launch()
        device, n_ranks = fabric.device, fabric.world_size

        self.stores = _open_stores(config, data_dir, fabric)
        config, self.changes = fitted(config, self.stores, fit, n_ranks=n_ranks)
        self.config = config
        self.fingerprints = {split: store.fingerprint for split, store in self.stores.items()}
        images, self.labels = self.stores["train"].images, self.stores["train"].labels
        class_names = self.stores["train"].class_names
        n_local_ranks = n_ranks // fabric.strategy.num_nodes if n_ranks > 1 else 1  # type: ignore[attr-defined]
        self.feed = ImageFeed(images, device, residence=hardware.residence, n_processes=n_local_ranks)
        self.sampler = make_batches(config, self.labels, class_names, n_ranks=n_ranks)
        self.n_steps = config.epochs * len(self.sampler)

        torch.manual_seed(config.seed)
        input_size, n_classes = config.input_size or images.shape[1], len(class_names)
        hardware = replace(hardware, residence=self.feed.residence)
        self.step = make_step(
            fabric, hardware, config, input_size=input_size, n_classes=n_classes, n_steps=self.n_steps
        )
        self.take_step: Callable[[Tensor, Tensor], Tensor] = self.step  # or the same, captured
        self.device_labels = self.labels.to(device)
        backbone = self.step.learner.backbone
        network = torch.compile(backbone, dynamic=False) if self.step.hardware.compile else backbone
        most = max(len(store.labels) for store in self.stores.values())
        tuned = in_one_size(network, device, most) if network is not backbone or device.type == "cuda" else None
        self.validate = Validator(fabric, config, self.stores, self.feed, self.run, tuned)
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
            environment |= {"fingerprints": self.fingerprints}
            self.run.describe(self.config, environment, self.validate.trained_on)

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
            self._set_learning_rate()
            loss = self._stepped(images, labels)
            self.progress.add(loss, made_of[number - 1] if made_of else None)
            yield number, len(order) - number

    def record(self) -> dict[str, Any]:
        """Return what is logged of the epoch, once it is seen that all of it is numbers."""
        record = self.progress.epoch_record(self.step)
        self._check_finite(record["loss"])
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
        self._check_finite()
        state = state_of(self.step, self.sampler, self.progress)
        state |= {"config": self.config.as_dict(), "fingerprints": self.fingerprints}
        kept = {int(best["epoch"]) for best in self.progress.best.values()} | {self.config.epochs}
        epoch = self.progress.epoch  # of the checkpoint; training goes on while it is written
        writer.save(state, afterwards=lambda: self.run.keep_weights(kept, before=epoch))

    @contextmanager
    def _evaluating(self) -> Iterator[Backbone]:
        """Yield the backbone in evaluation mode."""
        self.step.learner.eval()
        yield self.step.learner.backbone
        self.step.learner.train()

    def _set_learning_rate(self) -> None:
        config = self.config
        factor = learning_rate_factor(
            self.progress.step,
            self.n_steps,
            schedule=config.schedule,
            milestones=config.milestones,
            decay=config.decay,
            warm_up_steps=config.warm_up_epochs * len(self.sampler),
        )
        for group in inner_optimiser(self.step.optimiser).param_groups:
            if isinstance(group["lr"], Tensor):
                group["lr"].fill_(config.learning_rate * factor)
            else:
                group["lr"] = config.learning_rate * factor

    def _stepped(self, images: Tensor, labels: Tensor) -> Tensor:
        """Take a step; on a CPU, where looking is free, see that its loss is a number."""
        try:
            loss = self.take_step(images, labels)
        except InputError:
            self._check_finite()  # what no loss accepts may be embeddings that are no numbers
            raise
        if loss.device.type == "cpu" and not math.isfinite(float(loss)):
            raise self._diverged(float(loss))
        return loss

    def _check_finite(self, loss: float = 0.0) -> None:
        """Refuse to go on, or to save, where the loss or a weight is no longer a number."""
        tensors = [tensor for tensor in self.step.learner.state_dict().values() if tensor.is_floating_point()]
        if not math.isfinite(loss) or not bool(torch.stack([tensor.isfinite().all() for tensor in tensors]).all()):
            raise self._diverged(loss)

    def _diverged(self, loss: float) -> NearshotError:
        what = "weights have values that are no numbers" if math.isfinite(loss) else f"loss is {loss}"
        checkpoint = self.run.checkpoint
        kept = f"{checkpoint} has an earlier state" if checkpoint.is_file() else "there is no earlier state yet"
        return NearshotError(
            f"The {what} in epoch {self.progress.epoch}, so training stopped; {kept}. A lower learning rate or a "
            "warm-up may help."
        )


def with_resolved_path(config: TrainConfig) -> TrainConfig:
    """Return the settings with the whole path of a folder of pictures, wherever they are read again."""
    path = given_path(config.dataset)
    return config if path is None else config.changed(dataset=str(path.resolve()))


def open_splits(config: TrainConfig, data_dir: str | Path | None) -> dict[str, Store]:
    """Open the training split, and the validation split if there is one."""
    stores = {"train": open_or_prepare(config.dataset, "train", data_dir, side=config.side)}
    if (stores["train"].folder.parent / "val").is_dir():
        stores["val"] = open_or_prepare(config.dataset, "val", data_dir, side=config.side)
        _check_of_one_preparation(config, stores)
        shared = set(stores["train"].class_names) & set(stores["val"].class_names)
        if shared:  # such as where an older version failed half-way in preparing other pictures
            raise InputError(
                f"The training and validation splits of {config.dataset} share {format_list(sorted(shared))}; prepare "
                "the dataset again, so that they do not."
            )
    return stores


def _open_stores(config: TrainConfig, data_dir: str | Path | None, fabric: Fabric) -> dict[str, Store]:
    """Open the splits. The first rank prepares what needs it."""

    def open_all() -> dict[str, str]:
        return {split: str(store.folder) for split, store in open_splits(config, data_dir).items()}

    stores = {split: Store(folder) for split, folder in on_first_rank(fabric, open_all).items()}
    _check_of_one_preparation(config, stores)
    return stores


def _check_of_one_preparation(config: TrainConfig, stores: dict[str, Store]) -> None:
    if not are_together({split: store.manifest for split, store in stores.items()}):
        raise InputError(f"{config.dataset} was prepared anew while it was opened; start the training again.")
