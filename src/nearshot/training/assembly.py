"""The plan of a run: everything that is decided before its first step. `train` executes it, and a dry run prints it."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from nearshot.data import Store, open_or_prepare
from nearshot.data.preparation import given_path
from nearshot.data.store import are_together
from nearshot.errors import InputError
from nearshot.text import format_list
from nearshot.training.autoconfig import autoconfigure, check_auto
from nearshot.training.batches import make_batches
from nearshot.training.config import TrainConfig
from nearshot.training.distributed import on_first_rank
from nearshot.training.hardware import Hardware
from nearshot.training.methods import resolve_method
from nearshot.training.module import Learner
from nearshot.training.run_folder import RunFolder, run_name
from nearshot.training.validation import validation_queries

if TYPE_CHECKING:
    from lightning_fabric import Fabric

__all__ = ["RunPlan", "open_splits"]


class RunPlan:
    """The parts of a run, checked against each other and against the data.

    Args:
        config: the settings.
        hardware: the devices.
        folder: the run's folder; by default runs/ and a name made from the settings before autoconfiguration.
        data_dir: where prepared datasets live.
        auto: the names of settings that may change.
        resume: whether automatic settings are restored from the existing run, if it has a checkpoint.
        launch: whether to start the processes; a dry run does not.

    Attributes:
        run: the run's folder.
        config: the settings, with the automatic ones decided.
        messages: one for each change of a setting, and for a missing validation split.
        method: the training method.
        fabric: the processes and devices.
        stores: the training split, and the validation split if there is one.
        sampler: the batches, of images of the training split.
        n_steps: the length of the run.
        learner: the network with its initial weights, not yet on the device.
        hardware: the devices, with fuse, compile and graph decided.
    """

    def __init__(
        self,
        config: TrainConfig,
        hardware: Hardware,
        *,
        folder: str | Path | None = None,
        data_dir: str | Path | None = None,
        auto: Collection[str] = (),
        resume: bool = False,
        launch: bool = True,
    ) -> None:
        check_auto(auto)
        path = given_path(config.dataset)
        config = config if path is None else replace(config, dataset=str(path.resolve()))
        self.run = RunFolder(folder if folder is not None else Path("runs") / run_name(config))
        if resume and (restored := self.run.restore_settings(config, auto)) is not None:
            config, auto = restored, ()
        self.method = resolve_method(config, auto)
        self.fabric = hardware.fabric(config)
        if launch:
            self.fabric.launch()
        self.stores = _open_on_all_ranks(config, data_dir, self.fabric) if launch else open_splits(config, data_dir)
        device, n_ranks, training = self.fabric.device, self.fabric.world_size, self.stores["train"]
        self.config, self.messages = autoconfigure(config, self.stores, auto, n_ranks=n_ranks)
        self._check_validation()
        self.sampler = make_batches(self.config, training.labels, training.class_names, n_ranks=n_ranks)
        self.n_steps = self.config.epochs * len(self.sampler)
        torch.manual_seed(self.config.seed)
        input_size = config.input_size or training.images.shape[1]
        self.learner = Learner(self.config, input_size, len(training.class_names))
        self.hardware = hardware.resolved(
            device, self.config, self.learner.backbone, n_ranks=n_ranks, n_steps=self.n_steps
        )

    def _check_validation(self) -> None:
        if "val" not in self.stores:
            self.messages.append("There is no validation split, so the last epoch is kept.")
            return
        n_query, wanted = validation_queries(self.config, self.stores), self.config.validation_queries
        if n_query < wanted:
            self.messages.append(f"Validation episodes have {n_query} queries per class instead of {wanted}.")

    @property
    def fingerprints(self) -> dict[str, str]:
        """The fingerprints of the splits."""
        return {split: store.fingerprint for split, store in self.stores.items()}


def open_splits(config: TrainConfig, data_dir: str | Path | None) -> dict[str, Store]:
    """Open the training split, and the validation split if there is one."""
    stores = {"train": open_or_prepare(config.dataset, "train", data_dir, side=config.side)}
    if (stores["train"].folder.parent / "val").is_dir():
        stores["val"] = open_or_prepare(config.dataset, "val", data_dir, side=config.side)
        _check_of_one_preparation(config, stores)
        shared = set(stores["train"].class_names) & set(stores["val"].class_names)
        if shared:
            classes = format_list(sorted(shared))
            raise InputError(f"The splits train and val of {config.dataset} share {classes}. Prepare it again.")
    return stores


def _open_on_all_ranks(config: TrainConfig, data_dir: str | Path | None, fabric: Fabric) -> dict[str, Store]:
    """Open the splits on all ranks; the first rank prepares what is not prepared."""

    def open_all() -> dict[str, str]:
        return {split: str(store.folder) for split, store in open_splits(config, data_dir).items()}

    stores = {split: Store(folder) for split, folder in on_first_rank(fabric, open_all).items()}
    _check_of_one_preparation(config, stores)
    return stores


def _check_of_one_preparation(config: TrainConfig, stores: dict[str, Store]) -> None:
    if not are_together({split: store.manifest for split, store in stores.items()}):
        raise InputError(f"{config.dataset} was prepared anew while it was opened; start the training again.")
