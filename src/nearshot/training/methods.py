"""The methods by name: which loss, on which batches. The one place where a configuration meets the losses.

To add a method, write its loss in `nearshot.losses` and one line in `METHODS`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import NamedTuple

import torch
from torch import Tensor, nn

from nearshot.episode_shape import EpisodeShape
from nearshot.errors import InputError, look_up
from nearshot.evaluation.classifiers import ClassifierName
from nearshot.losses import (
    cross_entropy_loss,
    episode_loss,
    mixed_loss,
    nca_loss,
    supervised_contrastive_loss,
)
from nearshot.training.config import BatchKind, Loss, TrainConfig

__all__ = ["METHODS", "Method", "Outputs", "batch_kind", "resolve_method"]


class Outputs(NamedTuple):
    """What a loss may look at: a whole batch, of all devices together.

    Attributes:
        embeddings: (image, dim), after the projection if there is one.
        logits: (image, class), of the linear head; None where the method has none.
        labels: (image,).
        temperature: a number, or the learnt one.
        generator: where a loss that chooses at random draws from.
    """

    embeddings: Tensor
    logits: Tensor | None
    labels: Tensor
    temperature: float | Tensor
    generator: torch.Generator | None


@dataclass(frozen=True)
class Method:
    """A way to train.

    Attributes:
        title: what to call it in a table.
        loss: the loss of a batch, under a configuration.
        batches: what its batches are, if nobody says otherwise.
        needs_episodes: whether it makes no sense on other batches.
        roles: (prototypes, separate) as in `episode_loss`, from which its pairs are counted; None if it has none.
        classifier: what it is reported with in the paper.
    """

    title: str
    loss: Callable[[Outputs, TrainConfig], Tensor]
    batches: BatchKind = "shuffled"
    needs_episodes: bool = False
    roles: tuple[bool, bool] | None = None
    classifier: ClassifierName = "centroid"


def _nca(outputs: Outputs, config: TrainConfig) -> Tensor:
    if outputs.logits is not None:
        return mixed_loss(
            outputs.embeddings,
            outputs.logits,
            outputs.labels,
            cross_entropy_weight=config.cross_entropy_weight,
            temperature=outputs.temperature,
            background=config.background,
            distance=config.distance,
        )
    return nca_loss(
        outputs.embeddings,
        outputs.labels,
        temperature=outputs.temperature,
        background=config.background,
        distance=config.distance,
        keep_positives=config.keep_positives,
        keep_negatives=config.keep_negatives,
        generator=outputs.generator,
    )


def _episodic(prototypes: bool, separate: bool) -> Callable[[Outputs, TrainConfig], Tensor]:
    def loss(outputs: Outputs, config: TrainConfig) -> Tensor:
        return episode_loss(
            outputs.embeddings,
            outputs.labels,
            config.shape,
            prototypes=prototypes,
            separate=separate,
            temperature=outputs.temperature,
            background=config.background,
            distance=config.distance,
        )

    return loss


def _simpleshot(outputs: Outputs, config: TrainConfig) -> Tensor:
    if outputs.logits is None:
        raise InputError("SimpleShot is trained with a linear head; there is none.")
    return cross_entropy_loss(outputs.logits, outputs.labels)


def _supcon(outputs: Outputs, config: TrainConfig) -> Tensor:
    return supervised_contrastive_loss(
        outputs.embeddings, outputs.labels, temperature=outputs.temperature, variant=config.supcon_variant
    )


def _own(loss: Loss) -> Callable[[Outputs, TrainConfig], Tensor]:
    """Return a loss of somebody's own as a method has it; what it returns is looked at."""
    if isinstance(loss, nn.Module) and any(parameter.requires_grad for parameter in loss.parameters()):
        raise InputError(f"The loss {type(loss).__name__} has parameters of its own, which would not be trained.")

    def checked(outputs: Outputs, _: TrainConfig) -> Tensor:
        value = loss(outputs.embeddings, outputs.labels)
        if not isinstance(value, Tensor) or value.ndim != 0 or not value.requires_grad:
            what = f"a tensor of shape {tuple(value.shape)}" if isinstance(value, Tensor) else f"{value!r}"
            if isinstance(value, Tensor) and value.ndim == 0:
                what = "one that does not depend on the embeddings"
            raise InputError(f"A loss must return one number, a tensor that gradients go through, not {what}.")
        return value

    return checked


METHODS: Mapping[str, Method] = MappingProxyType(
    {
        "nca": Method("NCA", _nca, roles=(False, False)),
        "prototypical": Method("Prototypical Networks", _episodic(True, True), "episodes", True, (True, True)),
        "matching": Method("Matching Networks", _episodic(False, True), "episodes", True, (False, True), "soft"),
        "nca-prototypes": Method("NCA with prototypes", _episodic(True, False), "episodes", True, (True, False)),
        "simpleshot": Method("SimpleShot", _simpleshot),
        "supcon": Method("SupCon", _supcon, roles=(False, False)),
    }
)
"""What can be trained with, by name; `TrainConfig.method` may also be a function of embeddings and labels."""


# Settings that a method ignores, with the value that says nothing.
_UNUSED: Mapping[str, Mapping[str, object]] = {
    "simpleshot": {"projection": None, "learn_temperature": False, "temperature": 1.0, "distance": "euclidean"},
    "supcon": {"distance": "euclidean"},
}


def batch_kind(config: TrainConfig) -> BatchKind:
    """Return what a training's batches are: what is asked for, or else what its method usually has."""
    return config.batches or METHODS.get(config.method_name, Method).batches


def resolve_method(config: TrainConfig, free: Collection[str] = ()) -> Method:
    """Return a configuration's method, and refuse settings that do not go together.

    Args:
        config: the settings.
        free: the names of those that may yet change, so that nothing has to go together with them.
    """
    if not isinstance(config.method, str):
        method = Method(config.method_name, _own(config.method))
        if config.learn_temperature:
            raise InputError("A loss of your own has no temperature to learn; leave it out.")
    else:
        method = look_up(METHODS, config.method, "method")
    kind = batch_kind(config)
    if method.needs_episodes and kind != "episodes":
        raise InputError(f"{method.title} are trained on episodes; batches of the kind {kind!r} have none.")
    if config.method != "nca":
        for name, neutral in (("keep_positives", 1.0), ("keep_negatives", 1.0), ("cross_entropy_weight", 0.0)):
            if getattr(config, name) != neutral:
                raise InputError(f"{name} is a setting of the method nca, not of {config.method_name}.")
    elif config.cross_entropy_weight and (config.keep_positives < 1 or config.keep_negatives < 1):
        raise InputError("Keeping a fraction of the pairs does not go together with a cross-entropy weight.")
    for name, says_nothing in _UNUSED.get(config.method_name, {}).items():
        if getattr(config, name) != says_nothing:
            raise InputError(f"{config.method_name} has no use for {name}; leave it out.")
    if config.nesterov and config.optimiser != "sgd":
        raise InputError("Nesterov's momentum is of the optimiser sgd.")
    if kind == "episodes":
        _check_shape(config, free)
    elif config.least_images > 1:
        raise InputError(
            f"least_images leaves classes out of episodes, and {kind} batches have all classes. Do without it, or have "
            "--batches episodes (in Python, batches='episodes')."
        )
    return method


def _check_shape(config: TrainConfig, free: Collection[str]) -> None:
    """Refuse numbers of an episode that do not go together, whatever those that are free will be."""
    if config.n_way is not None:
        _ = config.shape  # checks the numbers
    elif "images_per_class" not in free:
        per_class = config.images_per_class
        batch_size = 2 * per_class if "batch_size" in free else config.batch_size
        EpisodeShape.from_batch(batch_size, 1 if "n_shot" in free else config.n_shot, per_class)
