"""Identify a training run by those of its resolved settings that differ from the defaults."""

import dataclasses
import functools
import hashlib
import json
from typing import Any

from nearshot.training import TrainConfig
from nearshot.training.methods import UnknownMethod

# Settings that change what is measured during training, but not the weights.
VALIDATION_SETTINGS = (
    "validate_every",
    "validation_episodes",
    "validation_n_shot",
    "validation_n_way",
    "validation_n_query",
)
# Methods that are another one if a class has one support image.
WITH_ONE_SHOT = {"prototypical": "matching", "nca-prototypes": "nca"}


def resolved(config: TrainConfig) -> dict[str, Any]:
    """Return the settings that decide a run's weights; runs that train the same have equal ones.

    With one shot, Prototypical Networks are Matching Networks, and NCA on queries and prototypes is
    NCA on the batch. NCA ignores roles, so its episodes have images of a class and no shots.
    Settings that are not used, such as the momentum of Adam, are dropped. Of the method, the name
    and the settings that differ from its defaults are left.

    >>> from nearshot.training.methods import MatchingNetworks, PrototypicalNetworks
    >>> prototypical = TrainConfig(method=PrototypicalNetworks(n_shot=1), images_per_class=8)
    >>> matching = TrainConfig(method=MatchingNetworks(n_shot=1), images_per_class=8)
    >>> resolved(prototypical) == resolved(matching)
    True
    """
    unused = {*VALIDATION_SETTINGS, "n_way", "n_query", "images_per_class", "batch_size"}
    if config.optimiser == "adam":
        unused.update(("momentum", "nesterov"))
    if config.schedule != "steps":
        unused.update(("milestones", "decay"))
    if config.teacher is None:
        unused.update(("distillation_weight", "distillation_temperature", "distillation_distance"))
    if not config.augmentation.crop.startswith("padded"):
        unused.add("augmentation.padding")
    settings = {name: value for name, value in _flat(config).items() if name not in unused}
    return settings | {
        "method": _method(config),
        "batches": _batches(config),
        "warm_up": config.warm_up_epochs,
    }


def _method(config: TrainConfig) -> dict[str, Any]:
    """Return the name of the method and its settings that differ from the defaults."""
    method = config.method
    values: dict[str, Any] = config.as_dict()["method"]
    if isinstance(method, UnknownMethod):
        return values
    name = values["name"]
    if method.n_shot == 1:
        name = WITH_ONE_SHOT.get(name, name)
    settings = {"name": name}
    for field in dataclasses.fields(method):
        # n_shot is a part of the batches.
        if field.name != "n_shot" and getattr(method, field.name) != field.default:
            settings[field.name] = values[field.name]
    return settings


def _batches(config: TrainConfig) -> list[Any]:
    """Return the kind of batches, and their shape or size."""
    if config.batch_kind != "episodes":
        return [config.batch_kind, config.batch_size]
    shape = config.shape
    n_shot = None if _method(config)["name"] == "nca" else config.method.n_shot
    return ["episodes", shape.n_way, shape.images_per_class, n_shot]


@functools.lru_cache(10_000)
def run_id(config: TrainConfig) -> str:
    """Return a short hash of the resolved settings that differ from the defaults.

    A new setting therefore leaves the identities of all earlier runs unchanged, as long as it has
    its default.
    """
    return _hash_of_changes(config, resolved(config))[:16]


def validation_id(config: TrainConfig) -> str:
    """Return a short hash of the validation settings that differ from the defaults."""
    settings = config.as_dict()
    return _hash_of_changes(config, {name: settings[name] for name in VALIDATION_SETTINGS})[:8]


def _hash_of_changes(config: TrainConfig, settings: dict[str, Any]) -> str:
    defaults = _defaults(type(config))  # type: ignore[arg-type]  # a type is hashable
    changed = {
        name: value
        for name, value in settings.items()
        if name not in defaults or value != defaults[name]
    }
    return hashlib.sha256(json.dumps(changed, sort_keys=True).encode()).hexdigest()


@functools.cache
def _defaults(kind: type[TrainConfig]) -> dict[str, Any]:
    return _flat(kind()) | resolved(kind())


def _flat(config: TrainConfig) -> dict[str, Any]:
    """Return the settings in one dictionary, with those of the augmentation."""
    settings = config.as_dict()
    for name, value in settings.pop("augmentation").items():
        settings[f"augmentation.{name}"] = value
    return settings
