"""All settings of a training run, in one frozen dataclass. The command line is made from it.

>>> from nearshot.training.methods import PrototypicalNetworks
>>> TrainConfig(method=PrototypicalNetworks(), batch_size=256).shape
EpisodeShape(n_way=16, n_shot=5, n_query=11)
>>> TrainConfig(epochs=0)
Traceback (most recent call last):
nearshot.errors.InputError: epochs must be an integer of at least 1 (got 0).
"""

import dataclasses
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal, Self, get_args

import tyro

from nearshot.checks import check_seed
from nearshot.data.augment import Augmentation
from nearshot.devices import Precision
from nearshot.distances import DistanceName
from nearshot.episode_shape import EpisodeShape
from nearshot.errors import InputError
from nearshot.training.checks import check_choice, check_integer, check_number
from nearshot.training.methods import (
    NCA,
    Method,
    UnknownMethod,
    method_as_dict,
    method_from_dict,
    method_name,
)

__all__ = ["BatchKind", "TrainConfig", "differences", "flat_settings"]

BatchKind = Literal["shuffled", "independent", "episodes"]
Optimiser = Literal["sgd", "adam"]
Schedule = Literal["steps", "cosine", "constant"]

# The default warm-up, as a fraction of the run. In the first steps distances are large and
# softmaxes saturate; small steps get through that (docs/results-32px.md has the measurements).
USUAL_WARM_UP = 1 / 12
# In an episode, the images that a method would use as support come first. A method that has none
# keeps this order, so that the same seed gives each image the same crop in all methods.
USUAL_SHOTS = 5


@dataclass(frozen=True)
class TrainConfig:
    """What to train, on what, and how. Runs with equal settings and equal data are the same run."""

    dataset: str = "glyphs"
    """A prepared dataset (see `nearshot data list`), or a folder of images."""
    method: Method = field(default_factory=NCA)
    """The loss, with its settings: one of `METHODS`, or a `Method` of your own."""
    backbone: str = "resnet12"
    """resnet12 (the paper's), resnet12-metaopt, resnet12-dropblock, conv4, conv4-32,
    conv4-32-dropblock; or timm:NAME."""
    init: Annotated[str | None, tyro.conf.arg(metavar="NAME|RUN|FILE|none")] = None
    """Start from a trained network: its name (efficientnet-lite0, resnet12-nca-cifar-fs, timm:NAME,
    or auto, the best that is installed), a run's folder or a weights file. It replaces `backbone`;
    batch norm keeps its statistics; and the unchanged network counts as epoch 0 when the best epoch
    is chosen. none trains from scratch. On the command line, the default for your own photos is
    auto."""
    freeze: int = 0
    """With init: keep the weights of this many first stages, of four in most networks."""
    input_size: int | None = None
    """The side of the images that the network sees; by default that of `init`, or else of the
    prepared images."""
    side: int | None = None
    """The side of the prepared images, where the dataset was prepared in several."""
    epochs: int = 120
    """How many epochs to train."""
    steps_per_epoch: int | None = None
    """Steps in an epoch; by default as many full batches as the training images make."""
    seed: int = 0
    """The seed of the initial weights, batches and crops; the same seed gives the same run."""

    batches: BatchKind | None = None
    """shuffled: every image once per epoch. independent: each batch a fresh random set. episodes:
    random classes, with the same number of images each. By default episodes for the methods that
    need them, and shuffled otherwise."""
    batch_size: int = 512
    """Images in a batch, over all devices together."""
    images_per_class: int = 16
    """Support and query images of each class in a training episode; n_way is then batch_size /
    images_per_class."""
    n_way: int | None = None
    """Classes in a training episode, together with n_query; replaces batch_size and
    images_per_class."""
    n_query: int | None = None
    """Query images of each class in a training episode, together with n_way."""
    least_images: int = 1
    """Skip classes of fewer images in training episodes; other batches have all classes. On the
    command line without a preset, the default skips a few classes that are far smaller than the
    others, and logs their names."""

    rotation_weight: float = 0.0
    """Turn each training image by 0, 90, 180 or 270 degrees, and add the cross-entropy of a linear
    layer that tells which, with this weight."""
    teacher: Annotated[str | None, tyro.conf.arg(metavar="RUN|FILE")] = None
    """Also learn from an earlier run, or a weights file, of the same training classes
    (self-distillation): from its class probabilities where both networks have a linear head, and
    else from the neighbours that its embeddings have in the batch."""
    distillation_weight: float = 1.0
    """With teacher: the weight of what is learnt from it."""
    distillation_temperature: float = 4.0
    """With teacher: the temperature of the probabilities that are compared."""
    distillation_distance: DistanceName = "euclidean"
    """With teacher: the distance between neighbours, where the networks have no linear head."""
    mixup: float = 0.0
    """Mix the images of a batch in pairs, with a share drawn from Beta(mixup, mixup), such as 1; 0
    does not. Needs batches that are not episodes."""
    mix_stages: bool = False
    """With mixup: mix the images, or the output of one of the network's stages, as drawn."""
    cutmix: float = 0.0
    """Put a box of another image into each, whose area has a share drawn from Beta(cutmix, cutmix);
    0 does not. With mixup as well, each batch gets one of the two."""
    mix_probability: float = 1.0
    """With mixup or cutmix: the fraction of batches that are mixed."""

    optimiser: Optimiser = "sgd"
    """SGD with momentum, or Adam."""
    learning_rate: float = 0.1
    """At the start, or after the warm-up."""
    momentum: float = 0.9
    """For sgd."""
    nesterov: bool = False
    """For sgd: Nesterov's momentum. The paper's text has it, the published experiments did not."""
    weight_decay: float = 5e-4
    """On all weights."""
    schedule: Schedule = "steps"
    """steps: multiply the learning rate by `decay` at each milestone. cosine: anneal it to zero.
    constant: keep it."""
    milestones: tuple[float, ...] = (0.7,)
    """For steps: when, as fractions of the run."""
    decay: float = 0.1
    """For steps: the factor."""
    warm_up: float | None = None
    """Epochs over which the learning rate rises from zero at the start; by default a twelfth of the
    run, such as 10 of 120 epochs. The paper's presets have 0."""
    ema_decay: float = 0.0
    """Evaluate and save an exponential moving average of the weights, with this decay per step,
    such as 0.999; 0 uses the weights themselves."""

    augmentation: Augmentation = field(default_factory=Augmentation)
    """Random changes to training images, drawn for each image."""

    validate_every: int = 10
    """Validate every this many epochs, and after the last."""
    validation_episodes: int = 10_000
    """Validation episodes."""
    validation_n_shot: tuple[int, ...] = (1, 5)
    """Numbers of shots to validate with; the best epoch is kept for each."""
    validation_n_way: int = 5
    """Classes in a validation episode."""
    validation_n_query: int = 15
    """Query images of each class in a validation episode; fewer, with a log line, where classes
    have too few images."""

    precision: Precision = "auto"
    """The precision of the network; auto is bfloat16 on a GPU and float32 elsewhere. Losses always
    use float32."""
    micro_batch: int | None = None
    """Send this many images at once through the network, where a batch does not fit into memory.
    The loss still sees the whole batch; batch norm sees the parts."""
    sync_batch_norm: bool = False
    """On several GPUs: batch norm over the whole batch instead of each GPU's share."""

    def __post_init__(self) -> None:
        self._check_method()
        self._check_values()
        self._check_combinations()

    def _check_method(self) -> None:
        """Refuse what is not a method, and settings of a method that the run has, too."""
        if not isinstance(self.method, Method):
            raise InputError(
                f"method must be a Method, such as NCA() or METHODS['nca']() (got {self.method!r})."
            )
        kind = type(self.method)
        is_frozen_dataclass = "__dataclass_fields__" in vars(kind) and kind.__hash__ is not None
        if not is_frozen_dataclass:
            raise InputError(
                f"{kind.__name__} must be a frozen dataclass. Decorate it with "
                "@dataclass(frozen=True)."
            )
        if isinstance(self.method, UnknownMethod):
            return
        own = {item.name for item in dataclasses.fields(self)} | {"name"}
        for item in dataclasses.fields(kind):
            if item.name in own:
                raise InputError(
                    f"{kind.__name__} must not have a setting {item.name!r}, which is one of "
                    "TrainConfig. Rename it."
                )

    def _check_values(self) -> None:
        """Refuse values of a wrong type or out of range."""
        check_integer("freeze", self.freeze, at_least=0)
        check_integer("epochs", self.epochs, at_least=1)
        check_seed(self.seed)
        check_integer("batch_size", self.batch_size, at_least=1)
        check_integer("images_per_class", self.images_per_class, at_least=1)
        check_integer("least_images", self.least_images, at_least=1)
        check_integer("validate_every", self.validate_every, at_least=1)
        check_integer("validation_episodes", self.validation_episodes, at_least=1)
        check_integer("validation_n_way", self.validation_n_way, at_least=2)
        check_integer("validation_n_query", self.validation_n_query, at_least=1)
        for name in ("input_size", "side", "steps_per_epoch", "n_way", "n_query", "micro_batch"):
            value = getattr(self, name)
            if value is not None:
                check_integer(name, value, at_least=1)
        if not isinstance(self.validation_n_shot, tuple) or not self.validation_n_shot:
            raise InputError(
                "validation_n_shot must be a tuple of integers, such as (1, 5) "
                f"(got {self.validation_n_shot!r})."
            )
        for n_shot in self.validation_n_shot:
            check_integer("validation_n_shot", n_shot, at_least=1)

        check_number("rotation_weight", self.rotation_weight, at_least=0)
        check_number("distillation_weight", self.distillation_weight, at_least=0)
        check_number("distillation_temperature", self.distillation_temperature, above=0)
        check_number("mixup", self.mixup, at_least=0)
        check_number("cutmix", self.cutmix, at_least=0)
        check_number("mix_probability", self.mix_probability, at_least=0, at_most=1)
        check_number("learning_rate", self.learning_rate, above=0)
        check_number("momentum", self.momentum, at_least=0, below=1)
        check_number("weight_decay", self.weight_decay, at_least=0)
        check_number("decay", self.decay, at_least=0)
        check_number("ema_decay", self.ema_decay, at_least=0, below=1)
        if self.warm_up is not None:
            check_number("warm_up", self.warm_up, at_least=0, at_most=self.epochs)
        if not isinstance(self.milestones, tuple):
            raise InputError(
                "milestones must be a tuple of fractions, such as (0.7,) "
                f"(got {self.milestones!r})."
            )
        for fraction in self.milestones:
            check_number("milestones", fraction, above=0, below=1)

        if not isinstance(self.backbone, str):
            raise InputError(f"backbone must be a name, such as 'conv4' (got {self.backbone!r}).")
        check_choice("distillation_distance", self.distillation_distance, get_args(DistanceName))
        check_choice("optimiser", self.optimiser, get_args(Optimiser))
        check_choice("schedule", self.schedule, get_args(Schedule))
        check_choice("precision", self.precision, get_args(Precision))
        if self.batches is not None:
            check_choice("batches", self.batches, get_args(BatchKind))

    def _check_combinations(self) -> None:
        """Refuse settings that do not go together."""
        if self.freeze and self.init is None:
            raise InputError(
                f"freeze needs init, a trained network (got freeze={self.freeze}, init=None)."
            )
        if self.mix_stages and not self.mixup:
            raise InputError("mix_stages needs mixup (got mixup=0). Set it, such as to 1.")
        if (self.n_way is None) != (self.n_query is None):
            raise InputError(
                "n_way and n_query go together; give both, or neither "
                f"(got {self.n_way} and {self.n_query})."
            )
        if self.nesterov and self.optimiser != "sgd":
            raise InputError(f"nesterov needs the optimiser 'sgd' (got {self.optimiser!r}).")
        kind = self.batch_kind
        if self.method.needs_episodes and kind != "episodes":
            raise InputError(
                f"batches must be 'episodes' for {self.method.title or self.method_name} "
                f"(got {kind!r})."
            )
        if (self.mixup or self.cutmix) and kind == "episodes":
            raise InputError(
                "mixup and cutmix need batches in random order: batches must not be 'episodes'."
            )
        if kind != "episodes" and self.least_images > 1:
            raise InputError(
                f"least_images applies to batches of episodes, and {kind} batches have all classes "
                f"(got {self.least_images}). Leave it at 1."
            )

    @property
    def batch_kind(self) -> BatchKind:
        """The kind of the run's batches: `batches`, or else what the method needs."""
        if self.batches is not None:
            return self.batches
        return "episodes" if self.method.needs_episodes else "shuffled"

    @property
    def shape(self) -> EpisodeShape:
        """The shape of the episodes; it only orders the images of a method without shots."""
        n_shot = self.method.n_shot
        if self.n_way is not None and self.n_query is not None:
            return EpisodeShape(self.n_way, n_shot or USUAL_SHOTS, self.n_query)
        if n_shot is None:
            has_enough = self.images_per_class > USUAL_SHOTS
            n_shot = USUAL_SHOTS if has_enough else max(1, self.images_per_class // 2)
        return EpisodeShape.from_batch(self.batch_size, n_shot, self.images_per_class)

    @property
    def warm_up_epochs(self) -> float:
        """Over how many epochs the learning rate rises."""
        return self.epochs * USUAL_WARM_UP if self.warm_up is None else self.warm_up

    @property
    def method_name(self) -> str:
        """The method's name, such as "nca"; that of your own is "module:Class"."""
        return method_name(self.method)

    def as_dict(self) -> dict[str, Any]:
        """Return the settings as JSON values; `method` has its name and its settings."""
        values = dataclasses.asdict(self) | {"method": method_as_dict(self.method)}
        return dict(json.loads(json.dumps(values)))

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Self:
        """Inverse of `as_dict`; missing settings get their default."""
        unknown = sorted(values.keys() - {item.name for item in dataclasses.fields(cls)})
        if unknown:
            raise InputError(
                f"A training configuration has no setting {unknown[0]!r}. If another version of "
                "nearshot wrote it, use that version, or delete it."
            )
        values = dict(values)
        if "method" in values:
            values["method"] = method_from_dict(values["method"])
        if "augmentation" in values:
            values["augmentation"] = Augmentation(**_with_tuples(values["augmentation"]))
        return cls(**_with_tuples(values))


def _with_tuples(values: dict[str, Any]) -> dict[str, Any]:
    """Return values of JSON, which has no tuples, with tuples in place of lists."""
    return {
        name: tuple(value) if isinstance(value, list) else value for name, value in values.items()
    }


def differences(first: TrainConfig, second: TrainConfig) -> dict[str, tuple[Any, Any]]:
    """Return the settings in which two configurations differ, with both values.

    Those of the method and the augmentation are compared one by one. Where only one of two methods
    has a setting, the other counts as having its default.

    >>> differences(TrainConfig(), TrainConfig(seed=3, method=NCA(temperature=0.9)))
    {'seed': (0, 3), 'temperature': (1.0, 0.9)}
    """
    first_values = flat_settings(first)
    second_values = flat_settings(second)
    defaults = _method_defaults(first.method) | _method_defaults(second.method)
    result = {}
    for name in dict.fromkeys((*first_values, *second_values)):
        first_value = first_values.get(name, defaults.get(name))
        second_value = second_values.get(name, defaults.get(name))
        if first_value != second_value:
            result[name] = (first_value, second_value)
    return result


def flat_settings(config: TrainConfig) -> dict[str, Any]:
    """Return all settings in one dictionary, where `method` is its name."""
    values = config.as_dict()
    augmentation = values.pop("augmentation")
    method = values["method"]
    values["method"] = method.pop("name")
    for name, value in augmentation.items():
        values[f"augmentation.{name}"] = value
    return {**values, **method}


def _method_defaults(method: Method) -> dict[str, Any]:
    defaults: dict[str, Any] = {}
    for item in dataclasses.fields(method):
        if item.default is not dataclasses.MISSING:
            defaults[item.name] = item.default
    return defaults


def dataset_name(dataset: str) -> str:
    """Return a dataset's name; for a folder of images, the folder's name."""
    return Path(dataset).name or "dataset"
