"""The paper's settings by dataset and method, and settings for 84×84 files of miniImageNet, Omniglot and glyphs.

The paper's settings are those of its comparison table, as the published experiments ran them;
`docs/presets.md` lists where they differ from the text.
"""

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any

from nearshot.data.augment import Augmentation
from nearshot.training.config import TrainConfig, differences

__all__ = ["PRESETS", "closest_preset"]

# Settings that hold for every method on a dataset.
PAPER = TrainConfig(input_size=84, background=1e-10, warm_up=0.0)
CIFAR_FS = replace(PAPER, dataset="cifar-fs", epochs=240)
MINI_IMAGENET = replace(PAPER, dataset="mini-imagenet")
# For files of 84×84, where the published crops magnify small patches. Chosen for NCA, on
# validation: docs/results-mini-imagenet.md.
SMALL_FILES: dict[str, Any] = {
    "augmentation": Augmentation(
        crop="padded", padding=8, brightness=0.4, contrast=0.4, saturation=0.4
    ),
    "weight_decay": 1e-3,
    "ema_decay": 0.999,
    "schedule": "constant",
    "epochs": 100,
}
TIERED_IMAGENET = replace(
    PAPER, dataset="tiered-imagenet", epochs=150, milestones=(0.5, 0.75), steps_per_epoch=439
)
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
    background=1e-10,
    warm_up=0.0,
    validate_every=2,
)
OMNIGLOT = replace(
    GLYPHS, dataset="omniglot", backbone="conv4", epochs=40, batch_size=512, validate_every=5
)

# For photos of one's own, without a preset. Chosen on validation classes of birds;
# docs/train-photos.md has figures.
PHOTOS = TrainConfig(
    init="auto",
    freeze=3,
    epochs=5,
    batches="episodes",
    batch_size=128,
    images_per_class=8,
    distance="cosine",
    temperature=0.05,
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

COMMON = ("nca", "prototypical", "matching", "simpleshot")


def _all() -> dict[str, TrainConfig]:
    presets = {}
    for base in (CIFAR_FS, MINI_IMAGENET, TIERED_IMAGENET):
        # 20-way, 5-shot, 15 queries, as Snell et al. have them; one model for both columns
        snell: dict[str, Any] = {
            "n_way": 20,
            "n_query": 15,
            "steps_per_epoch": base.steps_per_epoch or 75,
        }
        for name in (
            "nca",
            "prototypical",
            "matching",
            "prototypical-snell",
            "matching-snell",
            "simpleshot",
        ):
            changes = snell if name.endswith("-snell") else {}
            presets[f"{base.dataset}-{name}"] = replace(
                base, method=name.removesuffix("-snell"), **changes
            )
        presets[f"{base.dataset}-supcon"] = replace(
            base, method="supcon", supcon_variant="published", projection=128
        )
    presets["mini-imagenet-nca"] = replace(MINI_IMAGENET, projection=128, temperature=0.9)
    for name in COMMON:
        presets[f"mini-imagenet-84-{name}"] = replace(
            presets[f"mini-imagenet-{name}"], **SMALL_FILES
        )
    # Where a shuffled batch would have few images of a class, NCA uses episodes, too.
    presets["tiered-imagenet-nca"] = replace(
        TIERED_IMAGENET, batches="episodes", batch_size=1008, temperature=0.9
    )
    presets["tiered-imagenet-simpleshot"] = replace(
        TIERED_IMAGENET,
        method="simpleshot",
        batch_size=1023,
        milestones=(0.5, 0.7),
        steps_per_epoch=None,
    )
    for base in (OMNIGLOT, GLYPHS):
        for name in COMMON:
            presets[f"{base.dataset}-{name}"] = replace(base, method=name)
        presets[f"{base.dataset}-nca"] = replace(base, batches="episodes")
    return presets


PRESETS: Mapping[str, TrainConfig] = MappingProxyType(_all())
"""Settings by dataset and method, such as "cifar-fs-nca"; change some with `dataclasses.replace`."""


def closest_preset(config: TrainConfig) -> tuple[str, dict[str, tuple[Any, Any]]]:
    """Return the preset that a configuration differs least from, and how: {setting: (the preset's, its own)}.

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
