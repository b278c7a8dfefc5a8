"""The plan of a run: everything that is decided before its first step. `train` executes it, and a dry run prints it."""

import hashlib
import math
from collections.abc import Collection, Sequence
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from nearshot.data import (
    EpisodeBatches,
    IndependentBatches,
    ShuffledBatches,
    Store,
    open_or_prepare,
)
from nearshot.data.augment import Augmentation
from nearshot.data.datasets import SOURCES
from nearshot.data.preparation import given_path, prepared_name
from nearshot.data.samplers import Batches
from nearshot.data.store import prepared_manifests
from nearshot.episode_shape import ImagesByClass
from nearshot.errors import InputError, look_up
from nearshot.evaluation import TrainingClasses
from nearshot.models import load_backbone
from nearshot.models.recommended import AUTO, auto_backbone
from nearshot.text import format_list
from nearshot.training.autoconfig import TRAIN_SETTINGS, autoconfigure, check_enough, fit_validation
from nearshot.training.config import TrainConfig
from nearshot.training.distributed import on_first_rank
from nearshot.training.hardware import Hardware
from nearshot.training.learner import Learner, Teacher
from nearshot.training.run_folder import (
    RunFolder,
    classes_of_network,
    folder_name,
    weights_of_run,
)


class RunPlan:
    """The parts of a run, checked against each other and against the data.

    The arguments are those of `train`; `launch` starts the processes, which a dry run does not.

    Attributes:
        run: the run's folder.
        config: the settings, with the automatic ones decided.
        messages: one for each change of a setting, and for a missing validation split.
        validation_n_query: the queries per class of validation episodes, which may be fewer than
            the settings'.
        stores: the training split, and the validation split if there is one.
        classes: the training classes, with those of the initial network and the teacher.
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
        allow_few_images: bool = False,
        launch: bool = True,
    ) -> None:
        for name in auto:
            look_up(dict.fromkeys(TRAIN_SETTINGS), name, "automatic setting")
        config = _with_absolute_paths(config)
        self.run = RunFolder(Path("runs") / folder_name(config) if folder is None else folder)
        if config.init is not None:  # brings its backbone and input size
            init = auto_backbone() if config.init == AUTO else config.init
            spec = load_backbone(weights_of_run(init)).spec
            input_size = config.input_size or spec.input_size
            config = replace(config, init=init, backbone=spec.name, input_size=input_size)
        if (
            resume and auto and self.run.checkpoint.is_file()
        ):  # the settings that the run began with
            begun = self.run.read_config()
            config = keep_settings(config, begun, auto)
            auto = ()
        self.fabric = hardware.fabric(config)
        if launch:
            self.fabric.launch()
            on_first_rank(
                self.fabric, lambda: len(open_splits(config, data_dir))
            )  # prepares what is not prepared
        self.stores = open_splits(config, data_dir)
        n_ranks, training = self.fabric.world_size, self.stores["train"]
        if not allow_few_images and config.dataset not in SOURCES:
            check_enough(training)
        self.fingerprints = {split: store.fingerprint for split, store in self.stores.items()}
        if config.teacher is not None:
            teacher = Path(weights_of_run(config.teacher))
            if not teacher.is_file():
                raise InputError(
                    f"teacher must be a run's folder or a weights file, and {teacher} is neither."
                )
            self.fingerprints["teacher"] = hashlib.sha256(teacher.read_bytes()).hexdigest()
        self.config, self.messages = autoconfigure(config, self.stores, auto, n_ranks=n_ranks)
        self.validation_n_query = self._check_validation()
        self.classes = self._check_classes()
        self.sampler = make_batches(
            self.config, training.labels, training.class_names, n_ranks=n_ranks
        )
        self.n_steps = self.config.epochs * len(self.sampler)
        self._check_images(self.sampler.batch_size // n_ranks)
        torch.manual_seed(self.config.seed)
        self.learner = Learner(
            self.config, config.input_size or training.images.shape[1], len(training.class_names)
        )
        self.teacher: Teacher | None = None
        if config.teacher is not None:
            self.teacher = Teacher(self.config, self.learner, training.class_names)
        self.hardware = hardware.resolved(
            self.fabric.device,
            self.config,
            self.learner.backbone,
            n_ranks=n_ranks,
            n_steps=self.n_steps,
        )

    def _check_validation(self) -> int:
        """Return the queries per class of validation episodes: those of the settings, or all that the classes have."""
        config = self.config
        if "val" not in self.stores:
            self.messages.append("There is no validation split, so the last epoch is kept.")
            return config.validation_n_query
        n_way, most = config.validation_n_way, max(config.validation_n_shot)
        n_usable = int((ImagesByClass(self.stores["val"].labels).sizes > most).sum())
        if n_usable < n_way:
            raise InputError(
                f"validation_n_way must be at most {n_usable}, the number of validation classes of more than {most} "
                f"images, not {n_way}. Lower validation_n_way or validation_n_shot, or give the split more classes."
            )
        fitting, messages = fit_validation(config, self.stores["val"], ("validation_n_query",))
        self.messages += messages
        return fitting.validation_n_query

    def _check_classes(self) -> TrainingClasses:
        """Return the classes that the network will have seen; refuse validation classes among them."""
        training, config = self.stores["train"], self.config
        classes = TrainingClasses(training.dataset, training.class_names)
        for network in (config.init, config.teacher):
            earlier = None if network is None else classes_of_network(network)
            if earlier is not None:
                if "val" in self.stores:
                    validation = self.stores["val"]
                    earlier.check_unseen(
                        validation.dataset, "val", validation.class_names, known_datasets=SOURCES
                    )
                classes = classes.with_earlier(earlier, SOURCES)
            elif network is not None and training.dataset in ("mini-imagenet", "tiered-imagenet"):
                self.messages.append(
                    f"If {network} was trained on ImageNet, it knows classes of {training.dataset}."
                )
        return classes

    def _check_images(self, share: int) -> None:
        """Refuse shares of a batch that cannot be mixed in pairs; add a message if images are smaller than is good."""
        config, side, crops = (
            self.config,
            self.stores["train"].images.shape[1],
            self.config.augmentation,
        )
        input_size = config.input_size or side
        if (config.mixup or config.cutmix) and (share % 2 or (config.micro_batch or 2) % 2):
            raise InputError(
                f"mixup and cutmix mix images in pairs: the images of a device ({share}) and micro_batch must be even."
            )
        if config.init is not None and side < input_size:
            self.messages.append(
                f"The images were prepared with side {side}, and {config.init} sees {input_size}. Larger images may "
                f"give better results: nearshot data prepare FOLDER --side {input_size}, then --side {input_size}."
            )
        # The published crops magnify most small images, though none is magnified in evaluation.
        published = crops.crop == "random" and crops.scale == Augmentation().scale
        if published and side * math.sqrt(sum(crops.scale) / 2) < input_size <= side:
            self.messages.append(
                f"Most random crops of these {side}×{side} images are magnified to {input_size}×{input_size}, which "
                "costs accuracy: images look sharper in evaluation than in training. Prepare the files with a larger "
                "--side if they are larger, or use --crop padded."
            )


def make_batches(
    config: TrainConfig, labels: Tensor, class_names: Sequence[str], *, n_ranks: int = 1
) -> Batches:
    """Return the sampler of a configuration's batches, in an order that all ranks share."""
    if config.batch_kind == "episodes":
        return EpisodeBatches(
            labels,
            config.shape,
            least_images=config.least_images,
            class_names=class_names,
            n_batches=config.steps_per_epoch,
            seed=config.seed,
            n_ranks=n_ranks,
        )
    if config.batch_kind == "independent":
        return IndependentBatches(
            len(labels),
            config.batch_size,
            n_batches=config.steps_per_epoch,
            seed=config.seed,
            n_ranks=n_ranks,
        )
    return ShuffledBatches(
        len(labels),
        config.batch_size,
        drop_last=True,
        n_batches=config.steps_per_epoch,
        seed=config.seed,
        n_ranks=n_ranks,
    )


def keep_settings(config: TrainConfig, begun: TrainConfig, names: Collection[str]) -> TrainConfig:
    """Return the settings with some of them as the run has begun with."""
    for name in names:
        if name != "n_shot":
            config = replace(config, **{name: getattr(begun, name)})
        elif config.method.n_shot is not None and begun.method.n_shot is not None:
            config = replace(config, method=replace(config.method, n_shot=begun.method.n_shot))
    return config


def _with_absolute_paths(config: TrainConfig) -> TrainConfig:
    dataset = given_path(config.dataset)
    paths = {} if dataset is None else {"dataset": str(dataset.resolve())}
    for name in ("init", "teacher"):
        network = getattr(config, name)
        if network is not None and Path(network).exists():
            paths[name] = str(Path(network).resolve())
    return replace(config, **paths)  # type: ignore[arg-type]


def open_splits(config: TrainConfig, data_dir: str | Path | None) -> dict[str, Store]:
    """Open the training split, and the validation split if there is one."""
    side, name = config.side, prepared_name(config.dataset, data_dir)
    if side is None and config.init is not None and not prepared_manifests(name, data_dir):
        side = config.input_size  # photos that are not prepared yet
    stores = {"train": open_or_prepare(config.dataset, "train", data_dir, side=side)}
    if (stores["train"].folder.parent / "val").is_dir():
        stores["val"] = open_or_prepare(config.dataset, "val", data_dir, side=config.side)
        if shared := set(stores["train"].class_names) & set(stores["val"].class_names):
            classes = format_list(sorted(shared))
            raise InputError(
                f"The splits train and val of {config.dataset} share {classes}. Prepare it again."
            )
    return stores
