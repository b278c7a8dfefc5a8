"""Beyond the paper: which ingredients make a single ResNet-12 stronger.

    nearshot reproduce strong --dataset cifar-fs --input-size 32 --seeds 1 --gpus-per-run 0.16
    nearshot reproduce strong --dataset mini-imagenet --seeds 1

Validation split. The plain recipe is cross-entropy on shuffled batches with the 12.4 M network of
Lee et al. for 100 epochs. Each ingredient is added to it, and each is left out of the candidate,
which is also measured with several views of each image. `docs/strong.md` explains the ingredients.
Students of an earlier run are not among them, since no run of a recipe depends on another: train
them with `nearshot train --teacher`, and add them with `nearshot reproduce --collect`.
"""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

from nearshot.paper.accuracy_table import PAPER_DATASETS, AccuracyRow, AccuracyTable, both_shots
from nearshot.paper.measurement import VIEWS
from nearshot.paper.numbers import SHOTS
from nearshot.paper.recipe import Recipe, Wanted
from nearshot.paper.results import Measurement
from nearshot.training import PRESETS, TrainConfig

# What the plain recipe changes of the paper's SimpleShot; settings of the augmentation have the
# prefix "augmentation.".
PLAIN: dict[str, Any] = {
    "backbone": "resnet12-metaopt",
    "epochs": 100,
    "batch_size": 256,
    "nesterov": True,
    "schedule": "cosine",
    "warm_up": 2.0,
    "augmentation.crop": "padded",
    "augmentation.brightness": 0.4,
    "augmentation.contrast": 0.4,
    "augmentation.saturation": 0.4,
}
PADDING = {"cifar-fs": 4, "mini-imagenet": 8}  # an eighth or a tenth of the side of the files
# The settings that each ingredient changes.
INGREDIENTS: dict[str, dict[str, Any]] = {
    "rotations": {"rotation_weight": 1.0},
    "mixup of images": {"mixup": 2.0},
    "mixup of stages": {"mixup": 2.0, "mix_stages": True},
    "mixup of stages, in half of the batches": {
        "mixup": 2.0,
        "mix_stages": True,
        "mix_probability": 0.5,
    },
    "CutMix": {"cutmix": 1.0},
    "label smoothing": {"label_smoothing": 0.1},
    "NCA beside cross-entropy": {
        "method": "nca",
        "cross_entropy_weight": 0.5,
        "temperature": 16.0,
        "background": 0.0,
    },
    "average of the weights": {"ema_decay": 0.999},
    "weight decay 0.001": {"weight_decay": 1e-3},
    "two random operations": {"augmentation.n_operations": 2},
    "crops of 20 % or more": {"augmentation.crop": "random", "augmentation.scale": (0.2, 1.0)},
    "padded crops of 50 % or more": {
        "augmentation.crop": "padded-random",
        "augmentation.scale": (0.5, 1.0),
    },
    "constant learning rate": {"schedule": "constant"},
    "batches of 512": {"batch_size": 512},
    "the paper's network": {"backbone": "resnet12"},
}
# What has helped others, until the search has chosen.
CANDIDATE: tuple[str, ...] = ("rotations", "mixup of stages", "average of the weights")


def config_with(dataset: str, ingredients: Iterable[str]) -> TrainConfig:
    """Return the plain recipe with some ingredients.

    >>> config_with("cifar-fs", ["rotations", "two random operations"]).augmentation.n_operations
    2
    """
    changes = PLAIN | {"augmentation.padding": PADDING[dataset]}
    for name in ingredients:
        changes |= INGREDIENTS[name]
    preset, prefix = PRESETS[f"{dataset}-simpleshot"], "augmentation."
    of_images = {
        key.removeprefix(prefix): changes.pop(key) for key in [*changes] if key.startswith(prefix)
    }
    return replace(preset, augmentation=replace(preset.augmentation, **of_images), **changes)


def _added(dataset: str) -> list[AccuracyRow]:
    rows = {"plain": (), **{name: (name,) for name in INGREDIENTS}}
    return [
        AccuracyRow((row,), both_shots(config_with(dataset, names))) for row, names in rows.items()
    ]


def _left_out(dataset: str) -> list[AccuracyRow]:
    rows = {
        ", ".join(CANDIDATE): CANDIDATE,
        **{f"without {name}": tuple(one for one in CANDIDATE if one != name) for name in CANDIDATE},
    }
    return [
        AccuracyRow((row,), both_shots(config_with(dataset, names))) for row, names in rows.items()
    ]


def _viewed(dataset: str) -> list[AccuracyRow]:
    config = config_with(dataset, CANDIDATE)
    return [
        AccuracyRow(
            (how or "1 view",),
            [(config, Measurement("val", shot, "centroid", how=how)) for shot in SHOTS],
        )
        for how in ("", *VIEWS)
    ]


TITLE = "{on}, validation split, nearest centroid"
NOTE = (
    "Paired differences are from the first row. ± is over episodes for one training seed, without seed variance, and "
    "between seeds for several. The same episodes chose the epochs."
)
TABLES: Sequence[AccuracyTable] = (
    AccuracyTable(
        "strong-added-{on}",
        f"Ingredients, each added alone: {TITLE}",
        ("added",),
        _added,
        paired=True,
        notes=(NOTE,),
    ),
    AccuracyTable(
        "strong-left-out-{on}",
        f"Ingredients of the candidate, each left out: {TITLE}",
        ("trained with",),
        _left_out,
        paired=True,
        notes=(NOTE,),
    ),
    AccuracyTable(
        "strong-views-{on}",
        f"Several views of each image: {TITLE}",
        ("features",),
        _viewed,
        measured=True,
        paired=True,
        notes=(f"Trained with {', '.join(CANDIDATE)}.", NOTE),
    ),
)


def _wanted(dataset: str) -> Wanted:
    wanted: dict[TrainConfig, list[Measurement]] = {}
    for table in TABLES:
        for config, measurements in table.wanted(dataset).items():
            wanted.setdefault(config, []).extend(measurements)
    return wanted


RECIPE = Recipe(
    name="strong",
    title="Beyond the paper: ingredients of a stronger network",
    datasets=PAPER_DATASETS,
    wanted=_wanted,
    tables=lambda found, dataset: [table.table(found, dataset) for table in TABLES],
)
