"""Omniglot (Lake et al., 2015): 1,623 characters of 50 alphabets, 20 drawings each."""

from functools import partial
from typing import Literal

import numpy as np

from nearshot.data.datasets.source import (
    Plan,
    Source,
    SourceImage,
    images_by_folder,
    split_images,
    standard_splits,
)
from nearshot.data.downloads import Download
from nearshot.data.images import Pixels, decode
from nearshot.data.readers import Files
from nearshot.errors import InputError

Split = Literal["vinyals", "background"]


def plan_omniglot(files: Files, *, split: Split = "vinyals", rotations: bool = False) -> Plan:
    """Find the drawings in images_background.zip and images_evaluation.zip.

    Args:
        files: the two archives, or what they unpack to.
        split: "vinyals" for the split of Vinyals et al. (1,028, 172 and 423 characters), or
            "background" for Lake et al.'s (train: background, test: evaluation).
        rotations: add each character rotated by 90, 180 and 270 degrees as three more classes.
    """
    groups = images_by_folder(files, depth=3)
    if split not in ("vinyals", "background"):
        raise InputError(f"split must be 'vinyals' or 'background', not {split!r}.")
    classes = standard_splits("omniglot-vinyals")
    if split == "background":
        names = set().union(*classes.values())
        classes = {
            "train": [name for name in names if name.startswith("images_background/")],
            "test": [name for name in names if name.startswith("images_evaluation/")],
        }
    splits = split_images(groups, classes, files, "Omniglot")
    layout = f"images_background and images_evaluation, {split} split"
    if rotations:
        layout += ", with rotations"
        for images in splits.values():
            upright = list(images)
            for quarter_turns in (1, 2, 3):
                images += [_turned(image, quarter_turns) for image in upright]
            images.sort(key=lambda image: (image.class_name, image.name))
    return Plan(layout, splits)


def omniglot_name(split: Split = "vinyals", *, rotations: bool = False) -> str:
    """Return the name under which a variant of Omniglot is prepared.

    Variants have different names, so that they do not replace each other.

    >>> omniglot_name(), omniglot_name("background", rotations=True)
    ('omniglot', 'omniglot-background-rotations')
    """
    name = "omniglot"
    if split == "background":
        name += "-background"
    if rotations:
        name += "-rotations"
    return name


def _turned(image: SourceImage, quarter_turns: int) -> SourceImage:
    """Return an image rotated counter-clockwise, in a class of its own."""

    def read() -> Pixels:
        data = image.read()
        upright = decode(data, image.name) if isinstance(data, bytes) else data
        return np.ascontiguousarray(np.rot90(np.asarray(upright, dtype=np.uint8), quarter_turns))

    suffix = f"turned {90 * quarter_turns} degrees"
    return SourceImage(
        f"{image.class_name} {suffix}", f"{image.name} {suffix}", read, image.n_bytes, image.stamp
    )


def _half(name: str, md5: str, n_bytes: int) -> Download:
    urls = (
        f"https://raw.githubusercontent.com/brendenlake/omniglot/master/python/{name}",
        f"https://github.com/brendenlake/omniglot/raw/master/python/{name}",
    )
    return Download(name, urls, md5, n_bytes)


VARIANTS: dict[tuple[Split, bool], str] = {
    ("vinyals", False): "1,623 characters, 20 drawings each, 105×105 (Vinyals et al.'s split)",
    ("vinyals", True): "each character in four rotations, as four classes",
    ("background", False): "split into background (train) and evaluation (test)",
    ("background", True): "split into background and evaluation, in four rotations",
}
OMNIGLOT = tuple(
    Source(
        name=omniglot_name(split, rotations=rotations),
        description=f"Omniglot: {description}",
        side=28,
        plan=partial(plan_omniglot, split=split, rotations=rotations),
        downloads=(
            _half("images_background.zip", "68d2efa1b9178cc56df9314c21c6e718", 9_464_212),
            _half("images_evaluation.zip", "6b91aef0f799c5bb55b94e3f2daec811", 6_462_886),
        ),
        where="images_background.zip and images_evaluation.zip",
    )
    for (split, rotations), description in VARIANTS.items()
)
