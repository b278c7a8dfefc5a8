"""miniImageNet (Vinyals et al., 2016), split by Ravi and Larochelle: 64, 16 and 20 classes, 600 images each."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import PurePosixPath
from typing import Any

import numpy as np

from nearshot.data.datasets.base import (
    SPLITS,
    Picture,
    Plan,
    Source,
    is_picture,
    picture_of,
    pictures_by_folder,
    read_table,
    split_pictures,
    standard_splits,
)
from nearshot.data.images import Pixels
from nearshot.data.pickles import load_pickle
from nearshot.data.readers import Files
from nearshot.errors import FileFormatError

__all__ = ["MINI_IMAGENET"]

IMAGES_PER_CLASS = 600
PHASES = {"train": "train_phase_train", "val": "val", "test": "test"}


def plan(files: Files) -> Plan:
    """Find the images in any of the five layouts in which people have miniImageNet."""
    by_name = {PurePosixPath(name).name: name for name in files.names()}
    if all(f"mini-imagenet-cache-{split}.pkl" in by_name for split in SPLITS):
        return Plan(
            "mini-imagenet-cache-*.pkl",
            {s: _from_cache(files, by_name[f"mini-imagenet-cache-{s}.pkl"]) for s in SPLITS},
        )
    phase_files = {s: f"miniImageNet_category_split_{phase}.pickle" for s, phase in PHASES.items()}
    if all(name in by_name for name in phase_files.values()):
        return Plan(
            "miniImageNet_category_split_*.pickle",
            {s: _from_category_split(files, by_name[name]) for s, name in phase_files.items()},
        )
    if all(f"{split}.csv" in by_name for split in SPLITS):
        return Plan(
            "images/ with train.csv, val.csv and test.csv",
            {s: _from_csv(files, by_name[f"{s}.csv"], by_name) for s in SPLITS},
        )
    return _from_wnid_folders(files)


def _from_csv(files: Files, table: str, by_name: dict[str, str]) -> list[Picture]:
    pictures = []
    for _, file, label in read_table(files, table):
        path = by_name.get(PurePosixPath(file).name)
        if path is None or not is_picture(path):
            raise FileFormatError(f"{table} in {files.label} lists {file!r}, which is not there.")
        pictures.append(picture_of(files, path, label, file))
    return sorted(pictures, key=lambda picture: (picture.class_name, picture.name))


def _from_wnid_folders(files: Files) -> Plan:
    groups, classes = pictures_by_folder(files), standard_splits("mini-imagenet")
    splits = split_pictures(groups, classes, files, "miniImageNet")
    layout = "folders by wnid"
    if any(len(groups[name]) > IMAGES_PER_CLASS for names in classes.values() for name in names):
        # ILSVRC2012's training images: Ravi and Larochelle's choice of 600 is known only to their tables.
        layout += f", the first {IMAGES_PER_CLASS} images of each by name (not Ravi and Larochelle's choice)"
        first = {name: group[:IMAGES_PER_CLASS] for name, group in groups.items()}
        splits = split_pictures(first, classes, files, "miniImageNet")
    return Plan(layout, splits)


def _from_cache(files: Files, path: str) -> list[Picture]:
    content = load_pickle(files.read(path), path)
    try:
        images, classes = content["image_data"], content["class_dict"]
        _check_images(images, path, files)
        return [
            Picture(name, f"{name}/{index}", _pixels(images, int(index)))
            for name in sorted(classes)
            for index in classes[name]
        ]
    except (KeyError, TypeError, AttributeError) as error:
        raise FileFormatError(f"{path} in {files.label} is not a cache of miniImageNet: {error!r}.") from error


def _from_category_split(files: Files, path: str) -> list[Picture]:
    content = load_pickle(files.read(path), path)
    try:
        images, labels = content["data"], content["labels"]
        _check_images(images, path, files)
        if len(labels) != len(images):
            raise FileFormatError(f"{path} in {files.label} has {len(images)} images and {len(labels)} labels.")
        order = np.argsort(np.asarray(labels), kind="stable").tolist()
        return [Picture(f"category {int(labels[i]):03}", f"{path}/{i}", _pixels(images, i)) for i in order]
    except (KeyError, TypeError, AttributeError) as error:
        raise FileFormatError(f"{path} in {files.label} is not a category split: {error!r}.") from error


def _check_images(images: Any, path: str, files: Files) -> None:
    if not isinstance(images, np.ndarray) or images.dtype != np.uint8 or images.ndim != 4 or images.shape[3] != 3:
        raise FileFormatError(f"{path} in {files.label} does not hold images (image, height, width, 3).")


def _pixels(images: Pixels, index: int) -> Callable[[], Pixels]:
    if not 0 <= index < len(images):
        raise FileFormatError(f"A class refers to image {index}; there are {len(images)}.")
    return lambda: images[index]


MINI_IMAGENET = Source(
    name="mini-imagenet",
    description="miniImageNet: 64 / 16 / 20 classes of ImageNet, 600 images each (Ravi and Larochelle's split)",
    side=84,
    plan=plan,
    where="images/ with train.csv, val.csv and test.csv; folders by wnid; ILSVRC2012's training images; "
    "mini-imagenet-cache-*.pkl; or miniImageNet_category_split_*.pickle",
)
