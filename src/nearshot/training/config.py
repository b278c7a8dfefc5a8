"""All settings of a training, in one frozen dataclass. The command line is made from it.

>>> TrainConfig(method="prototypical", batch_size=256).shape
EpisodeShape(n_way=16, n_shot=5, n_query=11)
>>> TrainConfig(epochs=0)
Traceback (most recent call last):
nearshot.errors.InputError: epochs must be at least 1, not 0.
"""

from __future__ import annotations

import dataclasses
import functools
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro
from torch import Tensor

from nearshot.checks import convert_numpy_fields
from nearshot.data.augment import Augmentation
from nearshot.devices import Precision
from nearshot.episode_shape import EpisodeShape
from nearshot.errors import InputError
from nearshot.training.own_losses import name_of_own

__all__ = ["BatchKind", "Loss", "TrainConfig"]

Loss = Callable[[Tensor, Tensor], Tensor]
BatchKind = Literal["shuffled", "independent", "episodes"]

# What a training has by default: in the first steps distances are large and softmaxes saturate, and small steps get
# through that (docs/results.md has the measurements).
USUAL_WARM_UP = 1 / 12


# The types, as they are written below, of settings that are numbers.
NUMBERS = ("int", "int | None", "float", "float | None", "tuple[int, ...]", "tuple[float, ...]")


def _without_brackets(default: str) -> str:
    """Say a default that help would show as a list, as it does where a setting has a constructor of its own."""
    return f"(default: {default.strip('[]').strip(chr(39))})"


@dataclass(frozen=True)
class TrainConfig:
    """What to train, on what, and how. Two trainings of equal settings and equal data are the same training."""

    dataset: str = "glyphs"
    """A prepared dataset (see `nearshot data list`), or a folder of pictures. Glyphs need no download."""
    method: Annotated[
        str | Loss, tyro.conf.arg(constructor=str, metavar="NAME", help_behavior_hint=_without_brackets)
    ] = "nca"
    """nca, prototypical, matching, nca-prototypes (row 7 of Figure 4), simpleshot or supcon. From Python also a
    function of your own, of embeddings (image, dim) and labels (image,), that returns the loss; the settings of the
    losses below are not for it."""
    backbone: str = "resnet12"
    """resnet12 (the paper's), resnet12-metaopt, conv4, conv4-32; resnet12- and conv4-32-dropblock; or timm:NAME."""
    input_size: int | None = None
    """The side of the images that the network sees; by default the side of the prepared images."""
    side: int | None = None
    """The side of the prepared images, where the dataset was prepared in several."""
    epochs: int = 120
    """How long to train: an epoch is as many steps as fit the training images once."""
    steps_per_epoch: int | None = None
    """Another number of steps in an epoch; by default as many batches as the images fill."""
    seed: int = 0
    """Another seed gives another network, other batches and other crops; the same seed gives the same run."""

    batches: BatchKind | None = None
    """shuffled: every image once an epoch. independent: each batch a fresh random set. episodes: random classes, so
    many images of each. By default episodes for the methods that need them and shuffled for the rest."""
    batch_size: int = 512
    """Images in a batch, over all devices together."""
    n_shot: int = 5
    """Support images of a class in an episode."""
    images_per_class: int = 16
    """Support and query images of a class in an episode, m+n; the ways are batch size over this."""
    n_way: int | None = None
    """Classes in an episode, together with --n-query, instead of the batch size and images per class."""
    n_query: int | None = None
    """Query images of a class in an episode, together with --n-way."""
    least_images: int = 1
    """Classes of fewer images are left out of training episodes; other batches have all classes. On the command line
    and without a preset it is a few classes that are far smaller than the others, which is said; else a class that is
    too small is refused."""

    background: float = 0.0
    """0 for the exact loss; 1e-10 for the arithmetic of the published experiments, which leaves out anchors that are
    far from everything. The paper's presets have 1e-10; with a warm-up it is not needed."""
    temperature: float = 1.0
    """What squared distances are divided by."""
    learn_temperature: bool = False
    """Learn the temperature, starting from the one given."""
    distance: Literal["euclidean", "cosine"] = "euclidean"
    """Squared Euclidean, as in the paper, or one minus the cosine."""
    keep_positives: float = 1.0
    """For nca: the fraction of positive pairs that a batch keeps, chosen at random."""
    keep_negatives: float = 1.0
    """For nca: the same for negative pairs."""
    cross_entropy_weight: float = 0.0
    """For nca: the share of a cross-entropy loss in the whole; simpleshot is cross-entropy alone."""
    supcon_variant: Literal["khosla", "published"] = "khosla"
    """For supcon: Khosla et al.'s loss, or the one that the paper's experiments ran."""
    projection: int | None = None
    """Put a linear layer to this many dimensions between network and loss, in training only."""

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
    """Multiply the learning rate at some points, let it fall to zero along a cosine, or leave it."""
    milestones: tuple[float, ...] = (0.7,)
    """For steps: after which fractions of the training."""
    decay: float = 0.1
    """For steps: by how much."""
    warm_up: float | None = None
    """Over how many epochs the learning rate rises from zero at the start; None is a twelfth of the training, such as
    10 of 120 epochs. The paper's presets have none."""

    augmentation: Augmentation = field(default_factory=Augmentation)
    """What may happen to a training image; each image of a batch draws its own."""

    validate_every: int = 10
    """Measure on the validation split every so many epochs, and at the end."""
    validation_episodes: int = 10_000
    """On how many episodes."""
    validation_shots: tuple[int, ...] = (1, 5)
    """With how many shots; the best epoch is kept for each."""
    validation_way: int = 5
    """Classes in a validation episode."""
    validation_queries: int = 15
    """Query images of each of them; fewer where the classes have too few images, which is said."""

    precision: Precision = "auto"
    """What the network computes in; auto is bfloat16 on a GPU and float32 elsewhere. Losses are always in float32."""
    micro_batch: int | None = None
    """Send only so many images at once through the network, where a batch does not fit the memory. The loss still sees
    the whole batch; batch norm sees the parts."""
    sync_batch_norm: bool = False
    """On several devices: batch norm over the whole batch instead of each device's share."""

    def __post_init__(self) -> None:
        convert_numpy_fields(self)
        self._check_numbers()
        at_least_one = (
            "epochs",
            "batch_size",
            "least_images",
            "validate_every",
            "validation_episodes",
            "validation_queries",
        )
        optional = ("steps_per_epoch", "micro_batch", "projection", "input_size", "side")
        for name in (*at_least_one, *(name for name in optional if getattr(self, name) is not None)):
            if getattr(self, name) < 1:
                raise InputError(f"{name} must be at least 1, not {getattr(self, name)}.")
        for name in ("learning_rate", "temperature"):
            if not getattr(self, name) > 0:
                raise InputError(f"{name} must be positive, not {getattr(self, name)}.")
        for name in ("weight_decay", "momentum", "warm_up_epochs", "decay", "background"):
            if not getattr(self, name) >= 0:
                raise InputError(f"{name} must not be negative, but is {getattr(self, name)}.")
        if not self.momentum < 1:
            raise InputError(f"momentum must be under 1, not {self.momentum}.")
        for name in ("keep_positives", "keep_negatives"):
            if not 0 < getattr(self, name) <= 1:
                raise InputError(f"{name} must be over 0 and at most 1, not {getattr(self, name)}.")
        if not 0 <= self.cross_entropy_weight <= 1:
            raise InputError(f"cross_entropy_weight must be between 0 and 1, not {self.cross_entropy_weight}.")
        if not isinstance(self.backbone, str):
            raise InputError(f"backbone must be a name, such as 'conv4', not a {type(self.backbone).__name__}.")
        if not callable(self.method) and not isinstance(self.method, str):
            raise InputError(f"method must be a name or a function, not {self.method!r}.")
        if any(not 0 < fraction < 1 for fraction in self.milestones):
            raise InputError(f"Milestones are fractions of the training, between 0 and 1, not {self.milestones}.")
        if self.warm_up_epochs > self.epochs:
            raise InputError(f"A warm-up of {self.warm_up} epochs is longer than the training of {self.epochs}.")
        if (self.n_way is None) != (self.n_query is None):
            raise InputError("n_way and n_query go together; give both, or neither.")
        if self.validation_way < 2:
            raise InputError(f"validation_way must be at least 2, not {self.validation_way}.")
        if not self.validation_shots or min(self.validation_shots) < 1:
            raise InputError(f"validation_shots must be numbers of at least 1, not {self.validation_shots}.")

    def _check_numbers(self) -> None:
        """Refuse what is no number where there must be one, or a fraction where something is counted."""
        for one in dataclasses.fields(self):
            kind, value = str(one.type), getattr(self, one.name)
            is_counted, is_row = "int" in kind, kind.startswith("tuple")
            if kind not in NUMBERS or (value is None and "None" in kind):
                continue
            if is_row and not isinstance(value, tuple):
                raise InputError(f"{one.name} must be numbers in a row, such as (1, 5), not {value!r}.")
            for number in value if is_row else (value,):
                is_number = isinstance(number, int | float) and not isinstance(number, bool)
                if not is_number or (is_counted and number != number // 1):
                    raise InputError(f"{one.name} must be a {'whole ' if is_counted else ''}number, not {number!r}.")
            if is_counted and not isinstance(value, int):
                whole = tuple(map(int, value)) if is_row else int(value)
                object.__setattr__(self, one.name, whole)

    @property
    def shape(self) -> EpisodeShape:
        """The shape of its episodes, where batches are episodes."""
        if self.n_way is not None and self.n_query is not None:
            return EpisodeShape(self.n_way, self.n_shot, self.n_query)
        return EpisodeShape.from_batch(self.batch_size, self.n_shot, self.images_per_class)

    @property
    def warm_up_epochs(self) -> float:
        """Over how many epochs the learning rate rises."""
        return self.epochs * USUAL_WARM_UP if self.warm_up is None else self.warm_up

    @property
    def method_name(self) -> str:
        """What to call the method; a function's name comes with a mark of its code, so that another is another."""
        return self.method if isinstance(self.method, str) else self._own_name

    @functools.cached_property
    def _own_name(self) -> str:
        """The name of a loss of one's own, as it was first asked for: one that counts its calls stays the same."""
        return name_of_own(self.method)  # type: ignore[arg-type]

    def changed(self, **changes: Any) -> TrainConfig:
        """Return the settings with some changed, and a loss of one's own under the name that it has already."""
        other = dataclasses.replace(self, **changes)
        if "method" not in changes and "_own_name" in vars(self):
            vars(other)["_own_name"] = self._own_name
        return other

    def as_dict(self) -> dict[str, Any]:
        """Return the settings as JSON can hold them."""
        values = dataclasses.asdict(dataclasses.replace(self, method=self.method_name))
        plain: dict[str, Any] = json.loads(json.dumps(values, default=str))
        return plain

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> TrainConfig:
        """Return the configuration of which `as_dict` gave the settings; those that are missing get their default."""
        fields = {item.name for item in dataclasses.fields(cls)}
        unknown = sorted(values.keys() - fields)
        if unknown:
            raise InputError(f"There is no setting {unknown[0]!r} in a training's configuration.")
        given = _with_tuples(values)
        if "augmentation" in given:
            given["augmentation"] = Augmentation(**_with_tuples(values["augmentation"]))
        return cls(**given)


def differences(one: TrainConfig, other: TrainConfig) -> dict[str, tuple[Any, Any]]:
    """Return the settings in which two configurations differ, with both values; those of an augmentation one by one.

    >>> differences(TrainConfig(), TrainConfig(seed=3))
    {'seed': (0, 3)}
    """
    here, there = (_flat(config.as_dict()) for config in (one, other))
    return {name: (here[name], there[name]) for name in here if here[name] != there[name]}


def dataset_name(dataset: str) -> str:
    """Return a dataset's name, or of a folder of pictures the folder's."""
    return Path(dataset).name or "dataset"


def _flat(values: dict[str, Any]) -> dict[str, Any]:
    inner = values.pop("augmentation")
    return values | {f"augmentation.{name}": value for name, value in inner.items()}


def _with_tuples(values: dict[str, Any]) -> dict[str, Any]:
    """Return the values with tuples for lists, which is all that JSON has."""
    return {name: tuple(value) if isinstance(value, list) else value for name, value in values.items()}
