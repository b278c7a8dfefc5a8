"""Beyond the paper: which ingredients make a single ResNet-12 stronger.

    nearshot reproduce strong --dataset cifar-fs --input-size 32 --seeds 1 --gpus-per-run 0.16
    nearshot reproduce strong --dataset mini-imagenet --seeds 1

Validation split. The plain recipe is cross-entropy on shuffled batches with the 12.4 M network of
Lee et al. for 100 epochs. Each ingredient is added to it, and each is left out of the candidate,
which is also measured with several views of each image. `docs/strong.md` explains the ingredients.
Students of an earlier run are not among them; `nearshot train --teacher` trains those. 20 runs a
seed, five minutes each on an H200 at 32×32.
"""

from collections.abc import Callable, Iterable
from dataclasses import replace

from nearshot.paper.accuracy_table import PAPER_DATASETS, both_shots, paired_table
from nearshot.paper.measurement import VIEWS
from nearshot.paper.numbers import SHOTS
from nearshot.paper.recipe import Recipe, Row
from nearshot.paper.results import Measurement, Results
from nearshot.paper.tables import Table
from nearshot.training import PRESETS, TrainConfig
from nearshot.training.methods import NCA, SimpleShot

# An eighth or a tenth of the side of the files.
PADDING = {"cifar-fs": 4, "mini-imagenet": 8}


def plain_config(dataset: str) -> TrainConfig:
    """Return the plain recipe."""
    preset = PRESETS[f"{dataset}-simpleshot"]
    augmentation = replace(
        preset.augmentation,
        crop="padded",
        padding=PADDING[dataset],
        brightness=0.4,
        contrast=0.4,
        saturation=0.4,
    )
    return replace(
        preset,
        backbone="resnet12-metaopt",
        epochs=100,
        batch_size=256,
        nesterov=True,
        schedule="cosine",
        warm_up=2.0,
        augmentation=augmentation,
    )


def rotations(config: TrainConfig) -> TrainConfig:
    """Add a classifier of four rotations."""
    return replace(config, rotation_weight=1.0)


def mixup_of_images(config: TrainConfig) -> TrainConfig:
    """Mix pairs of images."""
    return replace(config, mixup=2.0)


def mixup_of_stages(config: TrainConfig) -> TrainConfig:
    """Mix the outputs of a random stage."""
    return replace(config, mixup=2.0, mix_stages=True)


def mixup_in_half_of_the_batches(config: TrainConfig) -> TrainConfig:
    """Mix the outputs of a random stage in half of the batches."""
    return replace(config, mixup=2.0, mix_stages=True, mix_probability=0.5)


def cutmix(config: TrainConfig) -> TrainConfig:
    """Paste a part of another image into each."""
    return replace(config, cutmix=1.0)


def label_smoothing(config: TrainConfig) -> TrainConfig:
    """Spread a tenth of each target over all classes."""
    return replace(config, method=SimpleShot(label_smoothing=0.1))


def nca_beside_cross_entropy(config: TrainConfig) -> TrainConfig:
    """Average both losses."""
    return replace(config, method=NCA(cross_entropy_weight=0.5, temperature=16.0))


def average_of_the_weights(config: TrainConfig) -> TrainConfig:
    """Average the weights of the last thousand steps or so."""
    return replace(config, ema_decay=0.999)


def more_weight_decay(config: TrainConfig) -> TrainConfig:
    """Double the weight decay."""
    return replace(config, weight_decay=1e-3)


def random_operations(config: TrainConfig) -> TrainConfig:
    """Change each image by two random operations."""
    return replace(config, augmentation=replace(config.augmentation, n_operations=2))


def random_crops(config: TrainConfig) -> TrainConfig:
    """Crop a fifth of the image or more."""
    augmentation = replace(config.augmentation, crop="random", scale=(0.2, 1.0))
    return replace(config, augmentation=augmentation)


def padded_random_crops(config: TrainConfig) -> TrainConfig:
    """Crop half of the padded image or more."""
    augmentation = replace(config.augmentation, crop="padded-random", scale=(0.5, 1.0))
    return replace(config, augmentation=augmentation)


def constant_learning_rate(config: TrainConfig) -> TrainConfig:
    """Keep the learning rate until the end."""
    return replace(config, schedule="constant")


def larger_batches(config: TrainConfig) -> TrainConfig:
    """Double the batches."""
    return replace(config, batch_size=512)


def the_papers_network(config: TrainConfig) -> TrainConfig:
    """Use the smaller network of the paper."""
    return replace(config, backbone="resnet12")


INGREDIENTS: dict[str, Callable[[TrainConfig], TrainConfig]] = {
    "rotations": rotations,
    "mixup of images": mixup_of_images,
    "mixup of stages": mixup_of_stages,
    "mixup of stages, in half of the batches": mixup_in_half_of_the_batches,
    "CutMix": cutmix,
    "label smoothing": label_smoothing,
    "NCA beside cross-entropy": nca_beside_cross_entropy,
    "average of the weights": average_of_the_weights,
    "weight decay 0.001": more_weight_decay,
    "two random operations": random_operations,
    "crops of 20 % or more": random_crops,
    "padded crops of 50 % or more": padded_random_crops,
    "constant learning rate": constant_learning_rate,
    "batches of 512": larger_batches,
    "the paper's network": the_papers_network,
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
    config = plain_config(dataset)
    for name in ingredients:
        config = INGREDIENTS[name](config)
    return config


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
