"""Named settings: the paper's, by dataset and method, and some for other data.

Others are for 84×84 files of miniImageNet, for the 64×64 files of tiny-tiered, for Omniglot and for
glyphs.

The paper's settings are those of its comparison table, as the published experiments ran them;
`docs/presets.md` lists where they differ from the text.
"""

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any

from nearshot.data.augment import Augmentation
from nearshot.training.config import TrainConfig, differences
from nearshot.training.methods import (
    NCA,
    MatchingNetworks,
    Method,
    PrototypicalNetworks,
    SimpleShot,
    SupCon,
)

__all__ = ["PRESETS", "closest_preset"]

COMMON = ("nca", "prototypical", "matching", "simpleshot")
PUBLISHED_BACKGROUND = 1e-10  # of the published arithmetic, where a method has a background

# Settings that hold for every method on a dataset.
PAPER = TrainConfig(input_size=84, warm_up=0.0)
CIFAR_FS = replace(PAPER, dataset="cifar-fs", epochs=240)
MINI_IMAGENET = replace(PAPER, dataset="mini-imagenet")
TIERED_IMAGENET = replace(
    PAPER, dataset="tiered-imagenet", epochs=150, milestones=(0.5, 0.75), steps_per_epoch=439
)
TINY_TIERED = replace(PAPER, dataset="tiny-tiered", input_size=64)
# For letters: a mirrored one may be another letter, and most are thin, so crops stay mild.
UPRIGHT = Augmentation(scale=(0.6, 1.0), flip=0.0)
GLYPHS = TrainConfig(
    backbone="conv4-32",
    epochs=10,
    batch_size=256,
    images_per_class=8,
    optimiser="adam",
    learning_rate=1e-3,
    weight_decay=0.0,
    schedule="cosine",
    augmentation=UPRIGHT,
    warm_up=0.0,
    validate_every=2,
)
OMNIGLOT = replace(
    GLYPHS, dataset="omniglot", backbone="conv4", epochs=40, batch_size=512, validate_every=5
)

# For photos of one's own, without a preset. Chosen on validation classes of birds;
# docs/train-photos.md has figures.
PHOTOS = TrainConfig(
    method=NCA(distance="cosine", temperature=0.05),
    init="auto",
    freeze=3,
    epochs=5,
    batches="episodes",
    batch_size=128,
    images_per_class=8,
    optimiser="adam",
    learning_rate=1e-4,
    weight_decay=0.0,
    schedule="cosine",
    augmentation=Augmentation(scale=(0.35, 1.0)),
    validate_every=1,
)
PHOTOS_FROM_SCRATCH = replace(
    PHOTOS, init=None, freeze=0, backbone="conv4", epochs=50, learning_rate=1e-3, validate_every=5
)


def published(name: str) -> Method:
    """Return a method with the arithmetic of the published experiments."""
    if name == "simpleshot":
        return SimpleShot()
    if name == "prototypical":
        return PrototypicalNetworks(background=PUBLISHED_BACKGROUND)
    if name == "matching":
        return MatchingNetworks(background=PUBLISHED_BACKGROUND)
    return NCA(background=PUBLISHED_BACKGROUND)


def for_small_files(config: TrainConfig) -> TrainConfig:
    """Return settings for small files, of which the published crops magnify small patches.

    Chosen for NCA on miniImageNet's 84×84 files, on validation: docs/results-mini-imagenet.md.
    """
    return replace(
        config,
        augmentation=Augmentation(
            crop="padded", padding=8, brightness=0.4, contrast=0.4, saturation=0.4
        ),
        weight_decay=1e-3,
        ema_decay=0.999,
        schedule="constant",
        epochs=100,
    )


def snell_episodes(config: TrainConfig) -> TrainConfig:
    """Return settings with Snell et al.'s episodes: 20-way, 5-shot, 15 queries."""
    return replace(config, n_way=20, n_query=15, steps_per_epoch=config.steps_per_epoch or 75)


def _all() -> dict[str, TrainConfig]:
    presets = {}
    for base in (CIFAR_FS, MINI_IMAGENET, TIERED_IMAGENET):
        for name in ("nca", "prototypical", "matching"):
            presets[f"{base.dataset}-{name}"] = replace(base, method=published(name))
        for name in ("prototypical", "matching"):
            snell = snell_episodes(replace(base, method=published(name)))
            presets[f"{base.dataset}-{name}-snell"] = snell
        presets[f"{base.dataset}-simpleshot"] = replace(base, method=SimpleShot())
        presets[f"{base.dataset}-supcon"] = replace(
            base, method=SupCon(variant="published", projection=128)
        )
    presets["mini-imagenet-nca"] = replace(
        MINI_IMAGENET,
        method=NCA(background=PUBLISHED_BACKGROUND, projection=128, temperature=0.9),
    )
    for name in COMMON:
        presets[f"mini-imagenet-84-{name}"] = for_small_files(presets[f"mini-imagenet-{name}"])
    for name in COMMON:
        config = replace(TINY_TIERED, method=published(name))
        presets[f"tiny-tiered-{name}"] = for_small_files(config)
    # Where a shuffled batch would have few images of a class, NCA uses episodes, too.
    presets["tiered-imagenet-nca"] = replace(
        TIERED_IMAGENET,
        method=NCA(background=PUBLISHED_BACKGROUND, temperature=0.9),
        batches="episodes",
        batch_size=1008,
    )
    presets["tiered-imagenet-simpleshot"] = replace(
        TIERED_IMAGENET,
        method=SimpleShot(),
        batch_size=1023,
        milestones=(0.5, 0.7),
        steps_per_epoch=None,
    )
    for base in (OMNIGLOT, GLYPHS):
        for name in COMMON:
            presets[f"{base.dataset}-{name}"] = replace(base, method=published(name))
        presets[f"{base.dataset}-nca"] = replace(base, method=published("nca"), batches="episodes")
    return presets


PRESETS: Mapping[str, TrainConfig] = MappingProxyType(_all())
"""Settings by name, such as "cifar-fs-nca"; change some with `dataclasses.replace`."""


def closest_preset(config: TrainConfig) -> tuple[str, dict[str, tuple[Any, Any]]]:
    """Return the preset that a configuration differs least from, and how.

    The differences are {setting: (the preset's, its own)}.
    Only presets of the same dataset count; where there is none, the default settings do.

    >>> closest_preset(replace(PRESETS["cifar-fs-nca"], seed=3))
    ('cifar-fs-nca', {'seed': (0, 3)})
    """
    same_data = {
        name: preset for name, preset in PRESETS.items() if preset.dataset == config.dataset
    }
    candidates = {name: differences(preset, config) for name, preset in same_data.items()}
    if not same_data or config.dataset == TrainConfig().dataset:
        candidates["default"] = differences(TrainConfig(), config)
    name = min(candidates, key=lambda name: len(candidates[name]))
    return name, candidates[name]
