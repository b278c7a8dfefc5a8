"""The plan of a run: everything that is decided before its first step. `train` executes it, and a dry run prints it."""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import replace
from pathlib import Path

import torch

from nearshot.data import Store, open_or_prepare
from nearshot.data.augment import Augmentation
from nearshot.data.preparation import given_path
from nearshot.data.store import are_together
from nearshot.episode_shape import ImagesByClass
from nearshot.errors import InputError, look_up
from nearshot.text import format_list
from nearshot.training.autoconfig import TRAIN_SETTINGS, autoconfigure
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
            # The first rank prepares what is not prepared.
            folders = on_first_rank(
                self.fabric, lambda: {name: str(one.folder) for name, one in open_splits(config, data_dir).items()}
            )
            self.stores = {split: Store(folder) for split, folder in folders.items()}
            _check_of_one_preparation(config, self.stores)
        else:
            self.stores = open_splits(config, data_dir)
        self.fingerprints = {split: store.fingerprint for split, store in self.stores.items()}
        n_ranks, training = self.fabric.world_size, self.stores["train"]
        self.config, self.messages = autoconfigure(config, self.stores, auto, n_ranks=n_ranks)
        self.validation_queries = self._check_validation()
        self.sampler = make_batches(self.config, training.labels, training.class_names, n_ranks=n_ranks)
        self.n_steps = self.config.epochs * len(self.sampler)
        torch.manual_seed(self.config.seed)
        input_size = config.input_size or training.images.shape[1]
        self._warn_of_magnified_crops(input_size)
        self.learner = Learner(self.config, input_size, len(training.class_names))
        self.hardware = hardware.resolved(
            self.fabric.device, self.config, self.learner.backbone, n_ranks=n_ranks, n_steps=self.n_steps
        )

    def _warn_of_magnified_crops(self, input_size: int) -> None:
        """Add a message if the published crops magnify most images, though none is magnified in evaluation."""
        crops, side = self.config.augmentation, self.stores["train"].images.shape[1]
        if crops.crop != "random" or crops.scale != Augmentation().scale or side < input_size:
            return
        median_side = side * math.sqrt(sum(crops.scale) / 2)
        if median_side < input_size:
            self.messages.append(
                f"Most random crops of these {side}×{side} images are magnified to {input_size}×{input_size}, which "
                "costs accuracy: images look sharper in evaluation than in training. Prepare the files with a larger "
                "--side if they are larger, or use --crop padded."
            )

    def _check_validation(self) -> int:
        """Return the queries per class of validation episodes: those of the settings, or all that the classes have."""
        config = self.config
        if "val" not in self.stores:
            self.messages.append("There is no validation split, so the last epoch is kept.")
            return config.validation_queries
        n_way, n_shot, wanted = config.validation_way, max(config.validation_shots), config.validation_queries
        sizes = ImagesByClass(self.stores["val"].labels).sizes.sort(descending=True).values
        n_usable = int((sizes > n_shot).sum())
        if n_usable < n_way:
            raise InputError(
                f"validation_way must be at most {n_usable}, the number of validation classes of more than {n_shot} "
                f"images, not {n_way}. Lower validation_way or validation_shots, or give the split more classes."
            )
        n_query = min(wanted, int(sizes[n_way - 1]) - n_shot)
        if n_query < wanted:
            self.messages.append(f"Validation episodes have {n_query} queries per class instead of {wanted}.")
        return n_query


def open_splits(config: TrainConfig, data_dir: str | Path | None) -> dict[str, Store]:
    """Open the training split, and the validation split if there is one."""
    stores = {"train": open_or_prepare(config.dataset, "train", data_dir, side=config.side)}
    if (stores["train"].folder.parent / "val").is_dir():
        stores["val"] = open_or_prepare(config.dataset, "val", data_dir, side=config.side)
        _check_of_one_preparation(config, stores)
        if shared := set(stores["train"].class_names) & set(stores["val"].class_names):
            classes = format_list(sorted(shared))
            raise InputError(f"The splits train and val of {config.dataset} share {classes}. Prepare it again.")
    return stores


def _check_of_one_preparation(config: TrainConfig, stores: dict[str, Store]) -> None:
    if not are_together({split: store.manifest for split, store in stores.items()}):
        raise InputError(f"{config.dataset} was prepared anew while it was opened; start the training again.")
