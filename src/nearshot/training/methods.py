"""The methods by name: which loss, on which batches. The one place where a configuration meets the losses.

To add a method, write its loss in `nearshot.losses` and one line in `METHODS`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import NamedTuple

import torch
from torch import Tensor

from nearshot.errors import InputError, look_up
from nearshot.losses import (
    cross_entropy_loss,
    episode_loss,
    mixed_loss,
    nca_loss,
    supervised_contrastive_loss,
)
from nearshot.training.config import BatchKind, TrainConfig

__all__ = ["METHODS", "Method", "Outputs", "resolve_method"]


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
    """

    title: str
    loss: Callable[[Outputs, TrainConfig], Tensor]
    batches: BatchKind = "shuffled"
    needs_episodes: bool = False
    roles: tuple[bool, bool] | None = None


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


METHODS: Mapping[str, Method] = MappingProxyType(
    {
        "nca": Method("NCA", _nca, roles=(False, False)),
        "prototypical": Method("Prototypical Networks", _episodic(True, True), "episodes", True, (True, True)),
        "matching": Method("Matching Networks", _episodic(False, True), "episodes", True, (False, True)),
        "nca-prototypes": Method("NCA with prototypes", _episodic(True, False), "episodes", True, (True, False)),
        "simpleshot": Method("SimpleShot", _simpleshot),
        "supcon": Method("SupCon", _supcon, roles=(False, False)),
    }
)


# Settings that a method ignores, with the value that says nothing.
_UNUSED: Mapping[str, Mapping[str, object]] = {
    "simpleshot": {"projection": None, "learn_temperature": False, "temperature": 1.0, "distance": "euclidean"},
    "supcon": {"distance": "euclidean"},
}


def resolve_method(config: TrainConfig) -> Method:
    """Return a configuration's method, and refuse settings that do not go together."""
    if not isinstance(config.method, str):
        own = config.method
        method = Method(config.method_name, lambda outputs, _: own(outputs.embeddings, outputs.labels))
    else:
        method = look_up(METHODS, config.method, "method")
    kind = config.batches or method.batches
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
        _ = config.shape  # checks the numbers
    return method
