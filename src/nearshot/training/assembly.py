"""The plan of a run: everything that is decided before its first step. `train` executes it, and a dry run prints it."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from nearshot.data import Store, open_or_prepare
from nearshot.data.preparation import given_path
from nearshot.episode_shape import ImagesByClass
from nearshot.errors import InputError, look_up
from nearshot.text import format_list
from nearshot.training.autoconfig import TRAIN_SETTINGS, autoconfigure, fit_episodes
from nearshot.training.config import TrainConfig
from nearshot.training.distributed import on_first_rank
from nearshot.training.hardware import Hardware
from nearshot.training.methods import make_batches, resolve_method
from nearshot.training.run_folder import RunFolder, run_name
from nearshot.training.step import Learner


class RunPlan:
    """The parts of a run, checked against each other and against the data.

    The arguments are those of `train`; `launch` starts the processes, which a dry run does not.

    Attributes:
        run: the run's folder.
        config: the settings, with the automatic ones decided.
        messages: one for each change of a setting, and for a missing validation split.
        validation_queries: the queries per class of validation episodes, which may be fewer than the settings'.
        stores: the training split, and the validation split if there is one.
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
        for name in auto:
            look_up(dict.fromkeys(TRAIN_SETTINGS), name, "automatic setting")
        path = given_path(config.dataset)
        config = config if path is None else replace(config, dataset=str(path.resolve()))
        self.run = RunFolder(folder if folder is not None else Path("runs") / run_name(config))
        if resume and (restored := self.run.restore_settings(config, auto)) is not None:
            config, auto = restored, ()
        self.method = resolve_method(config, auto)
        self.fabric = hardware.fabric(config)
        if launch:
            self.fabric.launch()
            on_first_rank(self.fabric, lambda: len(open_splits(config, data_dir)))  # prepares what is not prepared
        self.stores = open_splits(config, data_dir)
        self.fingerprints = {split: store.fingerprint for split, store in self.stores.items()}
        n_ranks, training = self.fabric.world_size, self.stores["train"]
        self.config, self.messages = autoconfigure(config, self.stores, auto, n_ranks=n_ranks)
        self.validation_queries = self._check_validation()
        self.sampler = make_batches(self.config, training.labels, training.class_names, n_ranks=n_ranks)
        self.n_steps = self.config.epochs * len(self.sampler)
        torch.manual_seed(self.config.seed)
        input_size = config.input_size or training.images.shape[1]
        self.learner = Learner(self.config, input_size, len(training.class_names))
        self.hardware = hardware.resolved(
            self.fabric.device, self.config, self.learner.backbone, n_ranks=n_ranks, n_steps=self.n_steps
        )

    def _check_validation(self) -> int:
        """Return the queries per class of validation episodes: those of the settings, or all that the classes have."""
        config = self.config
        if "val" not in self.stores:
            self.messages.append("There is no validation split, so the last epoch is kept.")
            return config.validation_queries
        n_way, shots, most = config.validation_way, config.validation_shots, max(config.validation_shots)
        by_class = ImagesByClass(self.stores["val"].labels)
        n_usable = int((by_class.sizes > most).sum())
        if n_usable < n_way:
            raise InputError(
                f"validation_way must be at most {n_usable}, the number of validation classes of more than {most} "
                f"images, not {n_way}. Lower validation_way or validation_shots, or give the split more classes."
            )
        given: dict[str, Any] = {"n_way": n_way, "shots": shots, "n_query": config.validation_queries}
        fitting = fit_episodes(by_class, "validation", **given, auto=("n_query",), validation=True)
        self.messages += fitting.messages
        return fitting.n_query


def open_splits(config: TrainConfig, data_dir: str | Path | None) -> dict[str, Store]:
    """Open the training split, and the validation split if there is one."""
    stores = {"train": open_or_prepare(config.dataset, "train", data_dir, side=config.side)}
    if (stores["train"].folder.parent / "val").is_dir():
        stores["val"] = open_or_prepare(config.dataset, "val", data_dir, side=config.side)
        if shared := set(stores["train"].class_names) & set(stores["val"].class_names):
            classes = format_list(sorted(shared))
            raise InputError(f"The splits train and val of {config.dataset} share {classes}. Prepare it again.")
    return stores
