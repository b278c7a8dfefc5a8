"""Which trainings are the same. A run is identified by its resolved loss, batches and settings, not by its name."""

from __future__ import annotations

import hashlib
import json
import re
from typing import Any

from nearshot.data.augment import Augmentation
from nearshot.training import TrainConfig
from nearshot.training.config import BatchKind
from nearshot.training.methods import batch_kind, resolve_method

__all__ = ["batches_of", "has_own_loss", "resolved", "run_id"]

# Settings that change what is measured along the way, but not the weights that come out.
WATCHING = ("validate_every", "validation_episodes", "validation_shots", "validation_way", "validation_queries")


def has_own_loss(config: TrainConfig) -> bool:
    """Whether a training's loss is somebody's own, of which its files know the name and a mark of the code.

    >>> has_own_loss(TrainConfig(method="own-triplet-6759a127")), has_own_loss(TrainConfig(method="nca"))
    (True, False)
    """
    return re.fullmatch(r"own-\w*(-[0-9a-f]{8})+", config.method_name) is not None


def batches_of(config: TrainConfig) -> BatchKind:
    """Return what a training's batches are; settings that do not go together are refused."""
    if not has_own_loss(config):  # whose code is not here
        resolve_method(config)
    return batch_kind(config)


def resolved(config: TrainConfig) -> dict[str, Any]:
    """Return what a training does, in one way for each thing that can be said in several.

    One shot makes Prototypical Networks Matching Networks, and NCA on queries and prototypes NCA on the whole batch.
    NCA does not look at roles, so its episodes have images of a class and no shots. Settings that a method does not
    have, or that its batches do not use, are left out. A loss of one's own sees embeddings and labels only.

    >>> one_shot = {"n_shot": 1, "images_per_class": 8}
    >>> resolved(TrainConfig(method="prototypical", **one_shot)) == resolved(TrainConfig(method="matching", **one_shot))
    True
    """
    kind = batches_of(config)
    settings = {name: value for name, value in config.as_dict().items() if name not in WATCHING}
    for name in ("n_way", "n_query", "n_shot", "images_per_class", "least_images", "batch_size", "batches", "method"):
        del settings[name]
    settings["warm_up"] = config.warm_up_epochs
    if config.augmentation.crop != "padded" or config.augmentation.padding == Augmentation().padding:
        del settings["augmentation"]["padding"]  # runs from before there was one keep their identity
    name = config.method_name
    if kind == "episodes":
        shape = config.shape
        if shape.n_shot == 1:
            name = {"prototypical": "matching", "nca-prototypes": "nca"}.get(name, name)
        has_roles = name in ("prototypical", "matching", "nca-prototypes")
        settings["batches"] = ["episodes", shape.n_way, shape.images_per_class, shape.n_shot if has_roles else None]
        if config.least_images > 1:
            settings["least_images"] = config.least_images
    else:
        settings["batches"] = [kind, config.batch_size]
    if name == "simpleshot":
        for unused in ("background", "temperature", "learn_temperature", "distance", "projection"):
            del settings[unused]
    if has_own_loss(config):
        for unused in ("background", "temperature", "learn_temperature", "distance"):
            del settings[unused]
    if name == "supcon":
        for unused in ("background", "distance"):
            del settings[unused]
    else:
        del settings["supcon_variant"]
    if config.optimiser == "adam":
        del settings["momentum"], settings["nesterov"]
    if config.schedule != "steps":
        del settings["milestones"], settings["decay"]
    return settings | {"method": name}


def run_id(config: TrainConfig) -> str:
    """Return a short name for a training: equal for equal ones, different for different ones.

    >>> run_id(TrainConfig(batches="episodes", least_images=8)) == run_id(TrainConfig(batches="episodes"))
    False
    """
    content = json.dumps(resolved(config), sort_keys=True)
    return hashlib.sha256(content.encode()).hexdigest()[:16]
