"""All settings of a training run, in one frozen dataclass. The command line is made from it.

>>> TrainConfig(method="prototypical", batch_size=256).shape
EpisodeShape(n_way=16, n_shot=5, n_query=11)
>>> TrainConfig(epochs=0)
Traceback (most recent call last):
nearshot.errors.InputError: epochs must be at least 1, not 0.
"""

import dataclasses
import json
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal, Self

import tyro
from torch import Tensor

from nearshot.checks import convert_numpy_fields
from nearshot.data.augment import Augmentation
from nearshot.devices import Precision
from nearshot.episode_shape import EpisodeShape
from nearshot.errors import InputError

__all__ = ["BatchKind", "Loss", "OwnLoss", "TrainConfig"]

Loss = Callable[[Tensor, Tensor], Tensor]
BatchKind = Literal["shuffled", "independent", "episodes"]

# The default warm-up, as a fraction of the run. In the first steps distances are large and
# softmaxes saturate; small steps get through that (docs/results-32px.md has the measurements).
USUAL_WARM_UP = 1 / 12
# What values must be: the settings, a predicate that holds for valid values, and the phrase of the
# error message.
CHECKS: tuple[tuple[str, Callable[[Any], bool], str], ...] = (
    (
        "epochs steps_per_epoch batch_size micro_batch least_images",
        lambda value: value >= 1,
        "at least 1",
    ),
    ("projection input_size side validate_every", lambda value: value >= 1, "at least 1"),
    ("validation_episodes validation_queries", lambda value: value >= 1, "at least 1"),
    ("validation_way", lambda value: value >= 2, "at least 2"),
    ("freeze mixup cutmix distillation_weight", lambda value: value >= 0, "at least 0"),
    ("learning_rate temperature distillation_temperature", lambda value: value > 0, "positive"),
    (
        "weight_decay warm_up decay background rotation_weight",
        lambda value: value >= 0,
        "at least 0",
    ),
    ("momentum ema_decay", lambda value: 0 <= value < 1, "at least 0 and under 1"),
    ("keep_positives keep_negatives", lambda value: 0 < value <= 1, "over 0 and at most 1"),
    (
        "cross_entropy_weight label_smoothing mix_probability",
        lambda value: 0 <= value <= 1,
        "between 0 and 1",
    ),
    (
        "milestones",
        lambda values: all(0 < one < 1 for one in values),
        "fractions of the run, between 0 and 1",
    ),
    ("validation_shots", lambda values: values and min(values) >= 1, "numbers of at least 1"),
    ("backbone", lambda value: isinstance(value, str), "a name, such as 'conv4'"),
    (
        "method",
        lambda value: isinstance(value, str | OwnLoss),
        "a name or an OwnLoss('my-loss', my_loss)",
    ),
)


@dataclass(frozen=True)
class OwnLoss:
    """A loss of your own, with the name that identifies it in run folders and results.

    Two losses of one name are taken for the same loss, so put its hyper-parameters into the name.

    Attributes:
        name: letters, digits, and the characters `._+-`.
        function: of embeddings (image, dim) and labels (image,); returns the loss, a tensor of one
            number.

    >>> def triplet(embeddings, labels): ...
    >>> TrainConfig(method=OwnLoss("triplet-margin-0.2", triplet)).method_name
    'own-triplet-margin-0.2'
    """

    name: str
    function: Loss = field(compare=False)

    def __post_init__(self) -> None:
        if not re.fullmatch(r"[\w.+-]+", self.name):
            raise InputError(
                f"name must be letters, digits and the characters ._+-, not {self.name!r}."
            )


def _without_brackets(default: str) -> str:
    """Show a default as plain text in --help; tyro shows a list where a setting has a constructor of its own."""
    return f"(default: {default.strip('[]').strip(chr(39))})"


@dataclass(frozen=True)
class TrainConfig:
    """What to train, on what, and how. Two runs with equal settings and equal data are the same run."""

    dataset: str = "glyphs"
    """A prepared dataset (see `nearshot data list`), or a folder of images. Glyphs need no download."""
    method: Annotated[
        str | OwnLoss,
        tyro.conf.arg(constructor=str, metavar="NAME", help_behavior_hint=_without_brackets),
    ] = "nca"
    """nca, prototypical, matching, nca-prototypes (row 7 of Figure 4), simpleshot or supcon. From
    Python also an `OwnLoss`, to which the settings of the losses below do not apply."""
    backbone: str = "resnet12"
    """resnet12 (the paper's), resnet12-metaopt, conv4, conv4-32; resnet12- and conv4-32-dropblock; or timm:NAME."""
    init: Annotated[str | None, tyro.conf.arg(metavar="NAME|RUN|FILE|none")] = None
    """Start from a trained network: its name (efficientnet-lite0, resnet12-nca-cifar-fs, timm:NAME,
    or auto, the best that is installed), a run's folder or a weights file. It replaces `backbone`;
    batch norm keeps its statistics; and the unchanged network counts as epoch 0 when the best epoch
    is chosen. none trains from scratch. On the command line, the default for your own photos is
    auto."""
    freeze: int = 0
    """With init: keep the weights of this many first stages, of four in most networks."""
    input_size: int | None = None
    """The side of the images that the network sees; by default that of `init`, or else of the prepared images."""
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
    n_shot: int = 5
    """Support images of each class in a training episode."""
    images_per_class: int = 16
    """Support and query images of each class in a training episode; n_way is then batch_size / images_per_class."""
    n_way: int | None = None
    """Classes in a training episode, together with n_query; replaces batch_size and images_per_class."""
    n_query: int | None = None
    """Query images of each class in a training episode, together with n_way."""
    least_images: int = 1
    """Skip classes of fewer images in training episodes; other batches have all classes. On the
    command line without a preset, the default skips a few classes that are far smaller than the
    others, and logs their names."""

    background: float = 0.0
    """0 for the exact loss; 1e-10 for the arithmetic of the published experiments, which ignores
    anchors that are far from everything. The paper's presets have 1e-10; with a warm-up it is not
    needed."""
    temperature: float = 1.0
    """The divisor of squared distances."""
    learn_temperature: bool = False
    """Learn the temperature, starting from `temperature`."""
    distance: Literal["euclidean", "cosine"] = "euclidean"
    """Squared Euclidean, as in the paper, or one minus the cosine."""
    keep_positives: float = 1.0
    """For nca: the fraction of positive pairs that a batch keeps, drawn at random."""
    keep_negatives: float = 1.0
    """For nca: the fraction of negative pairs that a batch keeps."""
    cross_entropy_weight: float = 0.0
    """For nca: the weight of an added cross-entropy loss; simpleshot is cross-entropy alone."""
    supcon_variant: Literal["khosla", "published"] = "khosla"
    """For supcon: Khosla et al.'s loss, or the one that the paper's experiments ran."""
    label_smoothing: float = 0.0
    """For cross-entropy: how much of each target is spread evenly over all classes, such as 0.1."""
    projection: int | None = None
    """Put a linear layer of this many dimensions between the network and the loss, in training only."""
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
    mixup: float = 0.0
    """Mix the images of a batch in pairs, with a share drawn from Beta(mixup, mixup), such as 1; 0
    does not. Needs batches that are not episodes."""
    mix_stages: bool = False
    """With mixup: mix the images, or the output of one of the network's stages, drawn for each batch."""
    cutmix: float = 0.0
    """Put a box of another image into each, whose area has a share drawn from Beta(cutmix, cutmix);
    0 does not. With mixup as well, each batch gets one of the two."""
    mix_probability: float = 1.0
    """With mixup or cutmix: the fraction of batches that are mixed."""

    optimiser: Literal["sgd", "adam"] = "sgd"
    """SGD with momentum, or Adam."""
    learning_rate: float = 0.1
    """At the start, or after the warm-up."""
    momentum: float = 0.9
    """For sgd."""
    nesterov: bool = False
    """For sgd: Nesterov's momentum. The paper's text has it, the published experiments did not."""
    weight_decay: float = 5e-4
    """On all weights."""
    schedule: Literal["steps", "cosine", "constant"] = "steps"
    """steps: multiply the learning rate by `decay` at each milestone. cosine: anneal it to zero. constant: keep it."""
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
    validation_shots: tuple[int, ...] = (1, 5)
    """Numbers of shots to validate with; the best epoch is kept for each."""
    validation_way: int = 5
    """Classes in a validation episode."""
    validation_queries: int = 15
    """Query images of each class in a validation episode; fewer, with a log line, where classes have too few images."""

    precision: Precision = "auto"
    """The precision of the network; auto is bfloat16 on a GPU and float32 elsewhere. Losses always use float32."""
    micro_batch: int | None = None
    """Send this many images at once through the network, where a batch does not fit into memory.
    The loss still sees the whole batch; batch norm sees the parts."""
    sync_batch_norm: bool = False
    """On several devices: batch norm over the whole batch instead of each device's share."""

    def __post_init__(self) -> None:
        convert_numpy_fields(self)
        if self.init == "none":
            object.__setattr__(self, "init", None)
        for one in dataclasses.fields(self):
            value = getattr(self, one.name)
            if one.type in (int, int | None) and isinstance(
                value, float
            ):  # 12.0, as of a spreadsheet, is 12
                if not value.is_integer():
                    raise InputError(f"{one.name} must be a whole number, not {value}.")
                object.__setattr__(self, one.name, int(value))
        for names, is_valid, phrase in CHECKS:
            for name in names.split():
                value = getattr(self, name)
                try:
                    is_wrong = value is not None and not is_valid(value)
                except TypeError:  # of another type
                    is_wrong = True
                if is_wrong:
                    raise InputError(f"{name} must be {phrase}, not {value!r}.")
        if self.warm_up_epochs > self.epochs:
            raise InputError(
                f"warm_up must be at most epochs, which is {self.epochs}, not {self.warm_up}."
            )
        if self.freeze and self.init is None:
            raise InputError(
                f"freeze needs init, a trained network (got freeze={self.freeze}, init=None)."
            )
        if self.mix_stages and not self.mixup:
            raise InputError("mix_stages needs mixup (got mixup=0). Set it, such as to 1.")
        if (self.n_way is None) != (self.n_query is None):
            raise InputError("n_way and n_query go together; give both, or neither.")

    @property
    def shape(self) -> EpisodeShape:
        """The shape of the episodes, where batches are episodes."""
        if self.n_way is not None and self.n_query is not None:
            return EpisodeShape(self.n_way, self.n_shot, self.n_query)
        return EpisodeShape.from_batch(self.batch_size, self.n_shot, self.images_per_class)

    @property
    def warm_up_epochs(self) -> float:
        """Over how many epochs the learning rate rises."""
        return self.epochs * USUAL_WARM_UP if self.warm_up is None else self.warm_up

    @property
    def method_name(self) -> str:
        """The method's name; that of a loss of your own begins with "own-"."""
        return self.method if isinstance(self.method, str) else f"own-{self.method.name}"

    def as_dict(self) -> dict[str, Any]:
        """Return the settings as JSON values."""
        values = dataclasses.asdict(dataclasses.replace(self, method=self.method_name))
        return dict(json.loads(json.dumps(values, default=str)))

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Self:
        """Return the configuration with the settings that `as_dict` returned; missing settings get their default."""
        unknown = sorted(values.keys() - {item.name for item in dataclasses.fields(cls)})
        if unknown:
            message = f"A training configuration has no setting {unknown[0]!r}."
            raise InputError(
                f"{message} If another version of nearshot wrote it, use that version, or delete it."
            )
        inner = (
            {"augmentation": Augmentation(**values["augmentation"])}
            if "augmentation" in values
            else {}
        )
        return cls(**values | inner)


def differences(one: TrainConfig, other: TrainConfig) -> dict[str, tuple[Any, Any]]:
    """Return the settings in which two configurations differ, with both values; an augmentation's one by one.

    >>> differences(TrainConfig(), TrainConfig(seed=3))
    {'seed': (0, 3)}
    """
    here, there = one.as_dict(), other.as_dict()
    for values in (here, there):
        values |= {
            f"augmentation.{name}": value for name, value in values.pop("augmentation").items()
        }
    return {name: (here[name], there[name]) for name in here if here[name] != there[name]}


def dataset_name(dataset: str) -> str:
    """Return a dataset's name; for a folder of images, the folder's name."""
    return Path(dataset).name or "dataset"
