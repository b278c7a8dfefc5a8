"""Identify a training run by those of its resolved settings that differ from the defaults."""

import functools
import hashlib
import json
from typing import Any

from nearshot.training import TrainConfig
from nearshot.training.methods import UnknownMethod, method_as_dict

# Settings that change what is measured during training, but not the weights.
VALIDATION_SETTINGS = (
    "validate_every",
    "validation_episodes",
    "validation_n_shot",
    "validation_n_way",
    "validation_n_query",
)


def has_own_loss(config: TrainConfig) -> bool:
    """Return whether a run's method is a user's own, which files name by its module and class."""
    return ":" in config.method_name


def resolved(config: TrainConfig) -> dict[str, Any]:
    """Return the settings that decide a run's weights; runs that train the same weights have equal ones.

    With one shot, Prototypical Networks are Matching Networks, and NCA on queries and prototypes is
    NCA on the batch. NCA ignores roles, so its episodes have images of a class and no shots.
    Settings that the batches do not use are dropped.

    >>> from nearshot.training import METHODS
    >>> first, second = METHODS["prototypical"](n_shot=1), METHODS["matching"](n_shot=1)
    >>> resolved(TrainConfig(method=first)) == resolved(TrainConfig(method=second))
    True
    """
    unused = {*VALIDATION_SETTINGS, "n_way", "n_query", "images_per_class", "batch_size"}
    settings = _flat(config)
    method = settings.pop("method")
    defaults = method_as_dict(type(config.method)()) if not is_unknown(config) else {}
    method = {
        name: value
        for name, value in method.items()
        if name == "name" or (name != "n_shot" and value != defaults.get(name))
    }
    if config.batch_kind == "episodes":
        shape = config.shape
        has_shots = config.method.n_shot is not None
        if shape.n_shot == 1 and method["name"] == "prototypical":
            method["name"] = "matching"
        if shape.n_shot == 1 and method["name"] == "nca-prototypes":
            method["name"] = "nca"
            has_shots = False
        n_shot = shape.n_shot if has_shots else None
        batches = ["episodes", shape.n_way, shape.images_per_class, n_shot]
    else:
        batches = [config.batch_kind, config.batch_size]
    if config.optimiser == "adam":
        unused.update(("momentum", "nesterov"))
    if config.schedule != "steps":
        unused.update(("milestones", "decay"))
    if not config.augmentation.crop.startswith("padded"):
        unused.add("augmentation.padding")
    used = {setting: value for setting, value in settings.items() if setting not in unused}
    return used | {"method": method, "batches": batches, "warm_up": config.warm_up_epochs}


def is_unknown(config: TrainConfig) -> bool:
    """Return whether a run's method cannot be imported here."""
    return isinstance(config.method, UnknownMethod)


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
    settings = config.as_dict()
    augmentation = settings.pop("augmentation")
    return settings | {f"augmentation.{name}": value for name, value in augmentation.items()}
