"""Statements of the text about choices: distance, projection, DropBlock, epochs, crops.

    nearshot reproduce choices --dataset cifar-fs --seeds 3

The paper says, without a table: the Euclidean distance beats the cosine for Matching Networks (Section 2.2); a
projection to 128 helps NCA on miniImageNet only; DropBlock adds nothing (the same network with DropBlock at 0.1 after
its last two stages, where Lee et al. have it); 240 epochs add about 0.5 on CIFAR-FS (Appendix F). Its implementation
details list flips and centre crops; the published code crops at random, as all other recipes do. The quick form has
centre crops only. Validation split. Time: five minutes a run on an H200 at 84×84, ten for 240 epochs.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache

from nearshot.experiments.accuracy_table import AccuracyRow, AccuracyTable, both_shots
from nearshot.experiments.paper_configs import figure_config
from nearshot.training import TrainConfig

__all__ = ["CHOICES", "RECIPE", "choice_config"]

CHOICES = (
    "NCA",
    "NCA, projection to 128",
    "NCA, 240 epochs",
    "NCA, DropBlock",
    "MN, Euclidean",
    "MN, cosine",
    "NCA, flips and centre crops",
)


@cache
def choice_config(dataset: str, choice: str) -> TrainConfig:
    """Return the settings of a choice; batches of 512."""
    nca, matching = (figure_config(dataset, method, 512) for method in ("nca", "matching"))
    return {
        CHOICES[0]: nca,
        CHOICES[1]: replace(nca, projection=128),
        CHOICES[2]: replace(nca, epochs=240),
        CHOICES[3]: replace(nca, backbone="resnet12-dropblock"),
        CHOICES[4]: matching,
        CHOICES[5]: replace(matching, distance="cosine", temperature=0.1),
        CHOICES[6]: replace(nca, augmentation=replace(nca.augmentation, crop="centre")),
    }[choice]


def _line(dataset: str, choice: str) -> AccuracyRow:
    classifier = "soft" if choice.startswith("MN") else "centroid"
    return AccuracyRow((choice,), both_shots(choice_config(dataset, choice), classifier=classifier))


TABLE = AccuracyTable(
    "choices-{on}",
    "Choices that the text discusses (Section 2.2, Appendix F): {on}, validation split",
    ("trained with",),
    lambda dataset: [_line(dataset, choice) for choice in CHOICES],
    notes=lambda found: ("Cosine distances are divided by a temperature of 0.1: at 1 they hardly differ.",),
)
RECIPE = TABLE.recipe("Section 2.2, Appendix F: statements about choices")
