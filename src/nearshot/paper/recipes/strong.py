"""Beyond the paper: which ingredients make a single ResNet-12 stronger.

    nearshot reproduce strong --dataset cifar-fs --input-size 32 --seeds 1 --gpus-per-run 0.16
    nearshot reproduce strong --dataset mini-imagenet --seeds 1

Validation split. The plain recipe is cross-entropy on shuffled batches with the 12.4 M network of
Lee et al. for 100 epochs. Each ingredient is added to it, and each is left out of the candidate,
which is also measured with several views of each image. `docs/strong.md` explains the ingredients.
Students of an earlier run are not among them, since no run of a recipe depends on another: train
them with `nearshot train --teacher`. 21 runs a seed, five minutes each on an H200 at 32×32.
"""

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from nearshot.paper.accuracy_table import PAPER_DATASETS, both_shots, paired_table
from nearshot.paper.measurement import VIEWS
from nearshot.paper.numbers import SHOTS, with_settings
from nearshot.paper.recipe import Recipe, Row
from nearshot.paper.results import Measurement, Results
from nearshot.paper.tables import Table
from nearshot.training import METHODS, PRESETS, TrainConfig
from nearshot.training.methods import change_method

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

NOTE = (
    "Paired differences are from the first row. ± is over episodes for one training seed, without "
    "seed variance, and between seeds for several. The same episodes chose the epochs."
)


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
    preset = replace(preset, augmentation=replace(preset.augmentation, **of_images))
    if "method" in changes:
        kind = METHODS[changes.pop("method")]
        preset = replace(preset, method=change_method(preset.method, kind))
    return with_settings(preset, **changes)


def added_rows(dataset: str) -> list[Row]:
    """Return the plain recipe, and each ingredient added to it alone."""
    result = [Row("plain", config_with(dataset, ()), both_shots(), from_validation=True)]
    for name in INGREDIENTS:
        config = config_with(dataset, [name])
        result.append(Row(name, config, both_shots(), from_validation=True))
    return result


def left_out_rows(dataset: str) -> list[Row]:
    """Return the candidate, and the candidate without each of its ingredients."""
    candidate = config_with(dataset, CANDIDATE)
    result = [Row(", ".join(CANDIDATE), candidate, both_shots(), from_validation=True)]
    for name in CANDIDATE:
        config = config_with(dataset, [other for other in CANDIDATE if other != name])
        result.append(Row(f"without {name}", config, both_shots(), from_validation=True))
    return result


def view_rows(dataset: str) -> list[Row]:
    """Return the candidate with one and with several views of each image."""
    result = []
    for how in ("", *VIEWS):
        measurements = [Measurement("val", n_shot, "centroid", how=how) for n_shot in SHOTS]
        result.append(Row(how or "1 view", config_with(dataset, CANDIDATE), measurements))
    return result


def rows(dataset: str) -> list[Row]:
    """Return the rows of all tables."""
    return [*added_rows(dataset), *left_out_rows(dataset), *view_rows(dataset)]


def tables(results: Results, dataset: str) -> list[Table]:
    """Return the ingredients added alone, left out alone, and several views."""
    name = results.dataset(dataset)
    where = f"{name}, validation split, nearest centroid"
    added = paired_table(
        f"strong-added-{name}",
        f"Ingredients, each added alone: {where}",
        results,
        added_rows(dataset),
        labels=("added",),
        notes=(NOTE,),
    )
    left_out = paired_table(
        f"strong-left-out-{name}",
        f"Ingredients of the candidate, each left out: {where}",
        results,
        left_out_rows(dataset),
        notes=(NOTE,),
    )
    views = paired_table(
        f"strong-views-{name}",
        f"Several views of each image: {where}",
        results,
        view_rows(dataset),
        labels=("features",),
        notes=(f"Trained with {', '.join(CANDIDATE)}.", NOTE),
    )
    return [added, left_out, views]


RECIPE = Recipe(
    "strong",
    "Beyond the paper: ingredients of a stronger network",
    PAPER_DATASETS,
    rows,
    tables,
)
