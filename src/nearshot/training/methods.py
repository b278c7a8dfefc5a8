"""The training methods by name: a loss and its batches. The one place where a configuration meets the losses.

To add a method, write its loss in `nearshot.losses` and one entry in `METHODS`.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, NamedTuple, cast

import numpy as np
import torch
from torch import Tensor, nn

from nearshot import losses
from nearshot.data import EpisodeBatches, IndependentBatches, ShuffledBatches
from nearshot.data.samplers import Batches
from nearshot.errors import InputError, look_up
from nearshot.evaluation.classifiers import ClassifierName
from nearshot.training.config import BatchKind, OwnLoss, TrainConfig

__all__ = ["METHODS", "LossInputs", "Method", "batch_kind", "resolve_method"]


class LossInputs(NamedTuple):
    """The input of a loss: a whole batch, gathered from all devices."""

    embeddings: Tensor  # (image, dim), after the projection if there is one
    logits: Tensor | None  # (image, class), of the linear head
    labels: Tensor  # (image,)
    temperature: float | Tensor  # the learnt one is a tensor
    generator: torch.Generator | None  # of a loss that samples


@dataclass(frozen=True)
class Method:
    """A training method.

    Attributes:
        title: its name in tables.
        loss: the loss of a batch, under a configuration.
        batches: its default kind of batches; a method of episodes is undefined on others.
        roles: (prototypes, separate) as in `episode_loss`, for counting its pairs; None if it does
            not compare images.
        classifier: the classifier that the paper reports it with.
    """

    title: str
    loss: Callable[[LossInputs, TrainConfig], Tensor]
    batches: BatchKind = "shuffled"
    roles: tuple[bool, bool] | None = None
    classifier: ClassifierName = "centroid"


def _nca(inputs: LossInputs, config: TrainConfig) -> Tensor:
    how = _distances(inputs, config)
    if inputs.logits is not None:
        how |= {
            "cross_entropy_weight": config.cross_entropy_weight,
            "label_smoothing": config.label_smoothing,
        }
        return losses.mixed_loss(inputs.embeddings, inputs.logits, inputs.labels, **how)
    how |= {"keep_positives": config.keep_positives, "keep_negatives": config.keep_negatives}
    return losses.nca_loss(inputs.embeddings, inputs.labels, generator=inputs.generator, **how)


def _episodic(prototypes: bool, separate: bool) -> Callable[[LossInputs, TrainConfig], Tensor]:
    def loss(inputs: LossInputs, config: TrainConfig) -> Tensor:
        how = _distances(inputs, config) | {"prototypes": prototypes, "separate": separate}
        return losses.episode_loss(inputs.embeddings, inputs.labels, config.shape, **how)

    return loss


def _distances(inputs: LossInputs, config: TrainConfig) -> dict[str, Any]:
    """Return the arguments that all neighbour losses have."""
    return {
        "temperature": inputs.temperature,
        "background": config.background,
        "distance": config.distance,
    }


def _simpleshot(inputs: LossInputs, config: TrainConfig) -> Tensor:
    logits = cast(Tensor, inputs.logits)  # see `has_linear_head`
    return losses.cross_entropy_loss(logits, inputs.labels, label_smoothing=config.label_smoothing)


def _supcon(inputs: LossInputs, config: TrainConfig) -> Tensor:
    return losses.supervised_contrastive_loss(
        inputs.embeddings,
        inputs.labels,
        temperature=inputs.temperature,
        variant=config.supcon_variant,
    )


def _own(loss: OwnLoss) -> Callable[[LossInputs, TrainConfig], Tensor]:
    function = loss.function
    if isinstance(function, nn.Module) and any(
        parameter.requires_grad for parameter in function.parameters()
    ):
        raise InputError(
            f"The loss {loss.name} has parameters, which would not be trained. Freeze or remove them."
        )

    def checked(inputs: LossInputs, _: TrainConfig) -> Tensor:
        value = function(inputs.embeddings, inputs.labels)
        if not isinstance(value, Tensor) or value.ndim or not value.requires_grad:
            raise InputError(
                f"The loss {loss.name} must return a scalar tensor with a gradient (got {value!r})."
            )
        return value

    return checked


METHODS: Mapping[str, Method] = MappingProxyType(
    {
        "nca": Method("NCA", _nca, roles=(False, False)),
        "prototypical": Method(
            "Prototypical Networks", _episodic(True, True), "episodes", (True, True)
        ),
        "matching": Method(
            "Matching Networks", _episodic(False, True), "episodes", (False, True), "soft"
        ),
        "nca-prototypes": Method(
            "NCA with prototypes", _episodic(True, False), "episodes", (True, False)
        ),
        "simpleshot": Method("SimpleShot", _simpleshot),
        "supcon": Method("SupCon", _supcon, roles=(False, False)),
    }
)
"""The training methods by name; `TrainConfig.method` may also be an `OwnLoss`."""

# Settings that only some methods have, and settings that a method's loss ignores. Such a setting
# must keep its default, except for `background`, which the paper's presets set for all methods.
ONLY = {"keep_positives": ("nca",), "keep_negatives": ("nca",), "cross_entropy_weight": ("nca",)}
IGNORED = {
    "simpleshot": ("projection", "learn_temperature", "temperature", "distance", "background"),
    "supcon": ("distance", "background"),
}


def has_linear_head(config: TrainConfig) -> bool:
    """Return whether a run trains a linear classifier of the training classes, for cross-entropy."""
    return config.method == "simpleshot" or config.cross_entropy_weight > 0


def batch_kind(config: TrainConfig) -> BatchKind:
    """Return the kind of a run's batches: the one in the configuration, or else its method's default."""
    return config.batches or METHODS.get(config.method_name, Method).batches


def resolve_method(config: TrainConfig) -> Method:
    """Return a configuration's method, and refuse settings that do not go together."""
    name, kind = config.method_name, batch_kind(config)
    ignored = tuple(setting for setting, methods in ONLY.items() if name not in methods)
    if isinstance(config.method, OwnLoss):
        method = Method(name, _own(config.method))
        ignored += ("learn_temperature",)
    else:
        method = look_up(METHODS, config.method, "method")
        ignored += IGNORED.get(name, ())
    if method.batches == "episodes" and kind != "episodes":
        raise InputError(f"{method.title} are trained on episodes; batches must not be {kind!r}.")
    for setting in ignored:
        neutral = getattr(TrainConfig, setting)
        if setting != "background" and getattr(config, setting) != neutral:
            raise InputError(
                f"{setting} is not a setting of the method {name}; leave it at {neutral}."
            )
    if config.cross_entropy_weight and (config.keep_positives < 1 or config.keep_negatives < 1):
        raise InputError(
            "cross_entropy_weight does not go together with keep_positives or keep_negatives under 1."
        )
    if config.label_smoothing and not has_linear_head(config):
        raise InputError(
            "label_smoothing needs cross-entropy: the method simpleshot, or cross_entropy_weight."
        )
    if (config.mixup or config.cutmix) and kind == "episodes":
        raise InputError("mixup and cutmix need batches in random order, not episodes.")
    if config.nesterov and config.optimiser != "sgd":
        raise InputError(f"nesterov needs the optimiser sgd, not {config.optimiser}.")
    if kind != "episodes" and config.least_images > 1:
        raise InputError(
            f"least_images applies to batches of episodes, not to {kind} batches, which have all classes."
        )
    return method


def make_batches(
    config: TrainConfig, labels: Tensor, class_names: Sequence[str], *, n_ranks: int = 1
) -> Batches:
    """Return the sampler of a configuration's batches, in an order that all ranks share."""
    kind, n_images, size = batch_kind(config), len(labels), config.batch_size
    common: dict[str, Any] = {
        "n_batches": config.steps_per_epoch,
        "seed": config.seed,
        "n_ranks": n_ranks,
    }
    if kind == "episodes":
        common |= {"least_images": config.least_images, "class_names": class_names}
        return EpisodeBatches(labels, config.shape, **common)
    if kind == "independent":
        return IndependentBatches(n_images, size, **common)
    return ShuffledBatches(n_images, size, drop_last=True, **common)


class Composition(NamedTuple):
    """The anchors of a batch that have no other image of their class, and the pairs that a loss uses."""

    anchors_without_positive: int
    positive_pairs: float
    negative_pairs: float


def compositions(labels: Tensor, config: TrainConfig, method: Method) -> list[Composition] | None:
    """Return the composition of each batch of labels (batch, image); None where a method does not compare images.

    Where every image is compared with every other, pairs are unordered. A kept fraction applies to
    ordered pairs, and their number is rounded down; an ordered pair is half a pair.
    """
    if method.roles is None:
        return None
    prototypes, separate = method.roles
    if prototypes or separate:
        pairs = losses.count_pairs(config.shape, prototypes=prototypes, separate=separate)
        return [Composition(0, *pairs)] * len(labels)
    found = []
    for batch in labels.numpy():
        sizes = np.unique(batch, return_counts=True)[1]
        positives = int((sizes * (sizes - 1)).sum())  # ordered
        negatives = len(batch) * (len(batch) - 1) - positives
        kept = (
            math.floor(positives * config.keep_positives) / 2,
            math.floor(negatives * config.keep_negatives) / 2,
        )
        found.append(Composition(int((sizes == 1).sum()), *kept))
    return found
