"""The plan of a run: what is decided before its first step. A dry run prints it."""

import hashlib
import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

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
from nearshot.data.store import find_splits
from nearshot.episode_shape import EpisodeShape, ImagesByClass
from nearshot.errors import InputError, look_up
from nearshot.evaluation import TrainingClasses
from nearshot.models import load_backbone
from nearshot.models.recommended import AUTO, auto_backbone
from nearshot.text import format_list
from nearshot.training.autoconfig import TRAIN_SETTINGS, autoconfigure, check_enough, fit_validation
from nearshot.training.config import TrainConfig
from nearshot.training.methods import method_as_dict
from nearshot.training.run_folder import (
    RunFolder,
    classes_of_network,
    folder_name,
    weights_of_run,
)

LEAST_LEARNT_TEMPERATURE = 32.0  # to start from with SGD and squared Euclidean distances
DATASETS_OF_IMAGENET = ("mini-imagenet", "tiered-imagenet", "tiny-tiered")


@dataclass(frozen=True)
class RunPlan:
    """The decisions about a run, checked against each other and against the data.

    Attributes:
        config: the settings, with the automatic ones decided.
        stores: the training split, and the validation split if there is one.
        n_ranks: the processes that share a batch.
        batch_size: images in a batch, over all ranks.
        steps_per_epoch: how many batches an epoch has.
        validation_n_query: the queries per class of validation episodes, which may be fewer than
            the settings'.
        classes: the training classes, with those of the initial network and the teacher.
        fingerprints: what a checkpoint must agree with: of the splits, and of the teacher.
        messages: one for each change of a setting, and for what is worth knowing of the data.
    """

    config: TrainConfig
    stores: Mapping[str, Store]
    n_ranks: int
    batch_size: int
    steps_per_epoch: int
    validation_n_query: int
    classes: TrainingClasses
    fingerprints: Mapping[str, str]
    messages: tuple[str, ...]

    @property
    def n_steps(self) -> int:
        """The steps of the whole run."""
        return self.config.epochs * self.steps_per_epoch

    @property
    def input_size(self) -> int:
        """The side of the images that the network sees."""
        return self.config.input_size or self.stores["train"].images.shape[1]

    @property
    def episode_shape(self) -> EpisodeShape | None:
        """The shape of the episodes; None where batches are not episodes."""
        return self.config.shape if self.config.batch_kind == "episodes" else None

    def new_sampler(self) -> Batches:
        """Return the sampler of the batches, at its start."""
        training = self.stores["train"]
        return make_batches(
            self.config, training.labels, training.class_names, n_ranks=self.n_ranks
        )


def plan_run(
    config: TrainConfig,
    stores: Mapping[str, Store],
    *,
    n_ranks: int = 1,
    auto: Collection[str] = (),
    allow_few_images: bool = False,
) -> RunPlan:
    """Return the plan of a run, or refuse settings that do not fit the data. Nothing is changed.

    Args:
        config: as `resolve_run` returns it.
        stores: as `open_splits` returns them.
        n_ranks: how many processes share a batch.
        auto: the settings that may adapt to the data, of `TRAIN_SETTINGS`.
        allow_few_images: plan a run on fewer than 5 classes or 50 images.
    """
    for name in auto:
        look_up(dict.fromkeys(TRAIN_SETTINGS), name, "automatic setting")
    training = stores["train"]
    if not allow_few_images and config.dataset not in SOURCES:
        check_enough(training)
    fingerprints = {split: store.fingerprint for split, store in stores.items()}
    if config.teacher is not None:
        fingerprints["teacher"] = _teacher_fingerprint(config.teacher)
    config, messages = autoconfigure(config, stores, auto, n_ranks=n_ranks)
    validation_n_query, more = _validation_queries(config, stores.get("val"))
    messages += more
    classes, more = _training_classes(config, stores)
    messages += more
    sampler = make_batches(config, training.labels, training.class_names, n_ranks=n_ranks)
    _check_pairs(config, sampler.batch_size // n_ranks)
    messages += _image_messages(config, training.images.shape[1])
    messages += _temperature_messages(config)
    return RunPlan(
        config=config,
        stores=stores,
        n_ranks=n_ranks,
        batch_size=sampler.batch_size,
        steps_per_epoch=len(sampler),
        validation_n_query=validation_n_query,
        classes=classes,
        fingerprints=fingerprints,
        messages=tuple(messages),
    )


def resolve_run(
    config: TrainConfig,
    folder: str | Path | None = None,
    *,
    auto: Collection[str] = (),
    resume: bool = False,
) -> tuple[TrainConfig, RunFolder, Collection[str]]:
    """Return a run's settings, its folder, and the names of settings that may still adapt.

    Paths become absolute, `init` brings its backbone and input size, and automatic settings of a
    run that is resumed are those that it has decided.
    """
    config = _with_absolute_paths(config)
    run = RunFolder(Path("runs") / folder_name(config) if folder is None else folder)
    config = _with_initial_network(config)
    if resume and auto and run.checkpoint.is_file():
        config = _with_automatic_settings(config, run.read_config(), auto)
        auto = ()
    return config, run, auto


def _with_absolute_paths(config: TrainConfig) -> TrainConfig:
    dataset = given_path(config.dataset)
    if dataset is not None:
        config = replace(config, dataset=str(dataset.resolve()))
    if config.init is not None and Path(config.init).exists():
        config = replace(config, init=str(Path(config.init).resolve()))
    if config.teacher is not None and Path(config.teacher).exists():
        config = replace(config, teacher=str(Path(config.teacher).resolve()))
    return config


def _with_initial_network(config: TrainConfig) -> TrainConfig:
    if config.init is None:
        return config
    init = auto_backbone() if config.init == AUTO else config.init
    spec = load_backbone(weights_of_run(init)).spec
    return replace(
        config,
        init=init,
        backbone=spec.name,
        input_size=config.input_size or spec.input_size,
    )


def _with_automatic_settings(
    config: TrainConfig, begun: TrainConfig, auto: Collection[str]
) -> TrainConfig:
    """Return the settings, with the automatic ones as a run has begun with."""
    for name in auto:
        if name != "n_shot":
            config = replace(config, **{name: getattr(begun, name)})
        elif config.method.n_shot is not None and begun.method.n_shot is not None:
            method = replace(config.method, n_shot=begun.method.n_shot)
            config = replace(config, method=method)
    return config


def prepare_splits(config: TrainConfig, data_dir: str | Path | None) -> None:
    """Prepare the splits of a run, if they are not prepared yet."""
    open_splits(config, data_dir)


def open_splits(config: TrainConfig, data_dir: str | Path | None) -> dict[str, Store]:
    """Open the training split, and the validation split if there is one; prepare them if needed."""
    side = config.side
    name = prepared_name(config.dataset, data_dir)
    if side is None and config.init is not None and not find_splits(name, data_dir):
        side = config.input_size  # photos that are not prepared yet
    stores = {"train": open_or_prepare(config.dataset, "train", data_dir, side=side)}
    if (stores["train"].folder.parent / "val").is_dir():
        stores["val"] = open_or_prepare(config.dataset, "val", data_dir, side=config.side)
        shared = set(stores["train"].class_names) & set(stores["val"].class_names)
        if shared:
            raise InputError(
                f"The splits train and val of {config.dataset} share "
                f"{format_list(sorted(shared))}. Prepare it again."
            )
    return stores


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


def _teacher_fingerprint(teacher: str) -> str:
    weights = Path(weights_of_run(teacher))
    if not weights.is_file():
        raise InputError(
            f"teacher must be a run's folder or a weights file, and {weights} is neither."
        )
    return hashlib.sha256(weights.read_bytes()).hexdigest()


def _validation_queries(config: TrainConfig, store: Store | None) -> tuple[int, list[str]]:
    """Return the queries per class of validation episodes, and messages.

    They are those of the settings, or all that the classes have.
    """
    if store is None:
        message = "There is no validation split, so the last epoch is kept."
        return config.validation_n_query, [message]
    n_way = config.validation_n_way
    most_shots = max(config.validation_n_shot)
    n_usable = int((ImagesByClass(store.labels).sizes > most_shots).sum())
    if n_usable < n_way:
        raise InputError(
            f"validation_n_way must be at most {n_usable}, the number of validation classes of "
            f"more than {most_shots} images (got {n_way}). Lower validation_n_way or "
            "validation_n_shot, or give the split more classes."
        )
    fitted, messages = fit_validation(config, store, ("validation_n_query",))
    return fitted.validation_n_query, messages


def _training_classes(
    config: TrainConfig, stores: Mapping[str, Store]
) -> tuple[TrainingClasses, list[str]]:
    """Return the classes that the network will have seen, and messages.

    Validation classes among them are refused.
    """
    training = stores["train"]
    classes = TrainingClasses(training.dataset, training.class_names)
    messages = []
    for network in (config.init, config.teacher):
        if network is None:
            continue
        earlier = classes_of_network(network)
        if earlier is not None:
            if "val" in stores:
                validation = stores["val"]
                earlier.check_unseen(
                    validation.dataset, "val", validation.class_names, known_datasets=SOURCES
                )
            classes = classes.with_earlier(earlier, SOURCES)
        elif training.dataset in DATASETS_OF_IMAGENET:
            messages.append(
                f"If {network} was trained on ImageNet, it knows classes of {training.dataset}."
            )
    return classes, messages


def _check_pairs(config: TrainConfig, images_per_rank: int) -> None:
    """Refuse a rank's share of a batch that cannot be mixed in pairs."""
    if not config.mixup and not config.cutmix:
        return
    if images_per_rank % 2 or (config.micro_batch or 2) % 2:
        raise InputError(
            "mixup and cutmix mix images in pairs: the images of a device and micro_batch must be "
            f"even (got {images_per_rank} and {config.micro_batch})."
        )


def _temperature_messages(config: TrainConfig) -> list[str]:
    """Return a message about a learnt temperature that starts far too low."""
    values = method_as_dict(config.method)
    if (
        config.optimiser != "sgd"
        or not values.get("learn_temperature")
        or values.get("distance", "cosine") != "euclidean"
        or values["temperature"] >= LEAST_LEARNT_TEMPERATURE
    ):
        return []
    return [
        f"learn_temperature starts at {values['temperature']:g}, where the squared distances of a "
        "new network are hundreds. With SGD's learning rate the temperature then jumps, and "
        "accuracy can be far lower than without it. Start near the number of dimensions, such as "
        "temperature 640."
    ]


def _image_messages(config: TrainConfig, side: int) -> list[str]:
    """Return messages about images of a side that are smaller than is good."""
    messages = []
    input_size = config.input_size or side
    if config.init is not None and side < input_size:
        messages.append(
            f"The images were prepared with side {side}, and {config.init} sees {input_size}. "
            "Larger images may give better results: nearshot data prepare FOLDER --side "
            f"{input_size}, then --side {input_size}."
        )
    # The published crops magnify most small images, though none is magnified in evaluation.
    crops = config.augmentation
    is_published = crops.crop == "random" and crops.scale == Augmentation().scale
    usual_side = side * math.sqrt(sum(crops.scale) / 2)
    if is_published and usual_side < input_size <= side:
        messages.append(
            f"Most random crops of these {side}×{side} images are magnified to "
            f"{input_size}×{input_size}, which costs accuracy: images look sharper in evaluation "
            "than in training. Prepare the files with a larger side if they are larger, or use "
            "crop padded."
        )
    return messages
