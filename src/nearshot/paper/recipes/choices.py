"""Appendix F and beyond: schedules and choices that the text discusses, the loss's floor, every method alike.

    nearshot reproduce schedule choices --dataset cifar-fs --seeds 3
    nearshot reproduce floor methods --dataset cifar-fs --input-size 32 --seeds 1

Validation split. Time: five minutes a run on an H200 at 84×84, ten for 240 epochs.

**schedule** (Appendix F): batches of 256, PN 16-way 5-shot 11-query. Expected on CIFAR-FS: PN 53.76
/ 68.54 with SimpleShot's schedule against 59.60 / 74.64, NCA 59.41 / 73.29 against 62.07 / 76.26.

**choices**: what the paper says without a table (Section 2.2, Appendix F). DropBlock is at 0.1
after the last two stages, where Lee et al. have it. The paper's details list centre crops; its
published code crops at random, as all other recipes do. The quick form has centre crops only.

**floor**: the published experiments add 1e-10 to what is not a positive and skip anchors below it
(`background`). Without this floor PN loses points. Compared are the floor, the exact loss, and
other ways to keep the first steps from saturating, for 5-shot episodes with m+n = 16.

**methods**: a new entry in `METHODS` is a row here. Batches of 512 and 120 epochs, as in Figures 2
to 4.
"""

from dataclasses import replace
from typing import Any

from nearshot.data.augment import Augmentation
from nearshot.paper.accuracy_table import PAPER_DATASETS, AccuracyRow, AccuracyTable, both_shots
from nearshot.paper.numbers import SCHEDULE, SHOTS, figure_config
from nearshot.training import METHODS, TrainConfig

SIMPLESHOT_SCHEDULE: dict[str, Any] = {
    "epochs": 90,
    "milestones": (0.5, 0.73),
    "weight_decay": 1e-4,
}
Change = tuple[str, dict[str, Any]]  # of settings: a method, and what differs from its defaults
CHOICES: dict[str, Change] = {
    "NCA": ("nca", {}),
    "NCA, projection to 128": ("nca", {"projection": 128}),
    "NCA, 240 epochs": ("nca", {"epochs": 240}),
    "NCA, DropBlock": ("nca", {"backbone": "resnet12-dropblock"}),
    "MN, Euclidean": ("matching", {}),
    "MN, cosine": ("matching", {"distance": "cosine", "temperature": 0.1}),
    "NCA, flips and centre crops": ("nca", {"augmentation": Augmentation(crop="centre")}),
}
CHOICE_CLASSIFIERS = {"nca": "centroid", "matching": "soft"}
FLOOR_METHODS = {"nca": "NCA", "prototypical": "PN", "matching": "MN"}
FLOORS: dict[str, dict[str, Any]] = {
    "floor 1e-10 (published)": {},
    "exact": {"background": 0.0},
    "exact, warm-up of 10 epochs": {"background": 0.0, "warm_up": 10.0},
    "exact, temperature learnt from 640": {
        "background": 0.0,
        "temperature": 640.0,
        "learn_temperature": True,
    },
    "exact, temperature 64": {"background": 0.0, "temperature": 64.0},
    "exact, temperature 640": {"background": 0.0, "temperature": 640.0},
    "floor, Nesterov": {"nesterov": True},
    "floor, warm-up of 10 epochs": {"warm_up": 10.0},
}
CLASSIFIERS = ("centroid", "soft")


def schedule_config(dataset: str, row: str) -> TrainConfig:
    """Return the settings of a row of Appendix F's table."""
    config = figure_config(dataset, "nca" if row.startswith("NCA") else "prototypical", 256)
    return replace(config, **SIMPLESHOT_SCHEDULE) if "SimpleShot" in row else config


def choice_config(dataset: str, choice: str) -> TrainConfig:
    """Return the settings of a choice; batches of 512."""
    method, changes = CHOICES[choice]
    return replace(figure_config(dataset, method, 512), **changes)


def _floor(dataset: str, variant: str) -> AccuracyRow:
    configs = (
        replace(figure_config(dataset, method, 512), **FLOORS[variant]) for method in FLOOR_METHODS
    )
    return AccuracyRow((variant,), [side for config in configs for side in both_shots(config)])


def _method(dataset: str, method: str) -> AccuracyRow:
    config = figure_config(dataset, method, 512)
    sides = [side for one in CLASSIFIERS for side in both_shots(config, classifier=one)]
    return AccuracyRow((METHODS[method].title,), sides)


SCHEDULE_TABLE = AccuracyTable(
    "schedule-{on}",
    "SimpleShot's schedule and the paper's (Appendix F): {on}, validation split, nearest centroid",
    ("trained with",),
    lambda dataset: [
        AccuracyRow((row,), both_shots(schedule_config(dataset, row)), paper[dataset])
        for row, paper in SCHEDULE.items()
    ],
    with_paper=True,
)
SCHEDULES = SCHEDULE_TABLE.recipe("Appendix F: SimpleShot's schedule against the paper's")
CHOICES_TABLE = AccuracyTable(
    "choices-{on}",
    "Choices that the text discusses (Section 2.2, Appendix F): {on}, validation split",
    ("trained with",),
    lambda dataset: [
        AccuracyRow(
            (choice,),
            both_shots(choice_config(dataset, choice), classifier=CHOICE_CLASSIFIERS[method]),
        )
        for choice, (method, _) in CHOICES.items()
    ],
    notes=("Cosine distances are divided by a temperature of 0.1: at 1 they hardly differ.",),
)
STATED_CHOICES = CHOICES_TABLE.recipe("Section 2.2, Appendix F: statements about choices")
FLOOR = AccuracyTable(
    "floor-{on}",
    "The floor of the published arithmetic, and what can replace it: {on}, validation split, nearest centroid, best "
    "epoch",
    ("loss and schedule",),
    lambda dataset: [_floor(dataset, variant) for variant in FLOORS],
    tuple(f"{title} {shot}-shot" for title in FLOOR_METHODS.values() for shot in SHOTS),
).recipe("Beyond the paper: the floor of the published arithmetic, and what can replace it")
EVERY_METHOD = AccuracyTable(
    "methods-{on}",
    "Every method, trained alike: {on}, validation split",
    ("trained with",),
    lambda dataset: [_method(dataset, method) for method in METHODS],
    tuple(f"{shot}-shot {classifier}" for classifier in CLASSIFIERS for shot in SHOTS),
).recipe("Beyond the paper: every method, trained alike", (*PAPER_DATASETS, "tiered-imagenet"))
