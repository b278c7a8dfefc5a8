"""Identify a training run by those of its resolved settings that differ from the defaults."""

import functools
import hashlib
import json
from typing import Any

from nearshot.training import TrainConfig
from nearshot.training.config import BatchKind
from nearshot.training.methods import IGNORED, batch_kind, resolve_method

# Settings that change what is measured during training, but not the weights.
VALIDATION_SETTINGS = (
    "validate_every",
    *(f"validation_{name}" for name in ("episodes", "shots", "way", "queries")),
)
LOSS_SETTINGS = ("background", "temperature", "learn_temperature", "distance")


def has_own_loss(config: TrainConfig) -> bool:
    """Return whether a run's loss is a user's own function, of which files hold the name only."""
    return config.method_name.startswith("own-")


def batches_of(config: TrainConfig) -> BatchKind:
    """Return the kind of a run's batches; settings that contradict each other are an error."""
    if not has_own_loss(config):  # whose code may be missing
        resolve_method(config)
    return batch_kind(config)


def resolved(config: TrainConfig) -> dict[str, Any]:
    """Return the settings that decide a run's weights; runs that train the same weights have equal ones.

    With one shot, Prototypical Networks are Matching Networks, and NCA on queries and prototypes is
    NCA on the batch. NCA ignores roles, so its episodes have images of a class and no shots.
    Settings that the method or the batches do not use are dropped, or have their default: others
    are refused. A user's own loss sees embeddings and labels.

    >>> one_shot = {"n_shot": 1, "images_per_class": 8}
    >>> resolved(TrainConfig(method="prototypical", **one_shot)) == resolved(TrainConfig(method="matching", **one_shot))
    True
    """
    kind = batches_of(config)
    name = config.method_name
    unused = {*VALIDATION_SETTINGS, "n_way", "n_query", "n_shot", "images_per_class", "batch_size"}
    if kind == "episodes":
        shape = config.shape
        if shape.n_shot == 1:
            name = {"prototypical": "matching", "nca-prototypes": "nca"}.get(name, name)
        has_roles = name in ("prototypical", "matching", "nca-prototypes")
        batches = [
            "episodes",
            shape.n_way,
            shape.images_per_class,
            shape.n_shot if has_roles else None,
        ]
    else:
        batches = [kind, config.batch_size]
    unused.update(LOSS_SETTINGS if has_own_loss(config) else IGNORED.get(name, ()))
    if name != "supcon":
        unused.add("supcon_variant")
    if config.optimiser == "adam":
        unused.update(("momentum", "nesterov"))
    if config.schedule != "steps":
        unused.update(("milestones", "decay"))
    if not config.augmentation.crop.startswith("padded"):
        unused.add("augmentation.padding")
    settings = {setting: value for setting, value in _flat(config).items() if setting not in unused}
    return settings | {"method": name, "batches": batches, "warm_up": config.warm_up_epochs}


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
