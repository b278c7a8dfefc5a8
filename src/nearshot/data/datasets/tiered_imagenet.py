"""tieredImageNet (Ren et al., 2018): 351, 97 and 160 classes of ImageNet, far from each other in WordNet."""

from __future__ import annotations

from functools import partial
from pathlib import PurePosixPath
from typing import Any

import numpy as np

from nearshot.data.datasets.base import (
    SPLITS,
    Picture,
    Plan,
    Source,
    pictures_by_folder,
    split_pictures,
    standard_splits,
)
from nearshot.data.pickles import load_pickle
from nearshot.data.readers import Files
from nearshot.errors import FileFormatError

__all__ = ["TIERED_IMAGENET"]


def plan(files: Files) -> Plan:
    """Find the images in Ren et al.'s pickles, or in folders of ILSVRC2012's training images by wnid."""
    by_name = {PurePosixPath(name).name: name for name in files.names()}
    if all(f"{split}_{kind}.pkl" in by_name for split in SPLITS for kind in ("images_png", "labels")):
        return Plan(
            "*_images_png.pkl with *_labels.pkl",
            {s: _from_pickles(files, by_name[f"{s}_images_png.pkl"], by_name[f"{s}_labels.pkl"]) for s in SPLITS},
        )
    groups = pictures_by_folder(files)
    splits = split_pictures(groups, standard_splits("tiered-imagenet"), files, "tieredImageNet")
    return Plan("folders by wnid", splits)


def _from_pickles(files: Files, images_path: str, labels_path: str) -> list[Picture]:
    images: Any = load_pickle(files.read(images_path), images_path)
    content: Any = load_pickle(files.read(labels_path), labels_path)
    try:
        labels = np.asarray(content["label_specific"]).astype(np.int64)
        names = content.get("label_specific_str")
        if labels.shape != (len(images),):
            raise FileFormatError(f"{images_path} has {len(images)} images and {labels_path} {labels.size} labels.")
        order = np.argsort(labels, kind="stable").tolist()
        return [
            Picture(
                str(names[labels[i]]) if names is not None else f"class {labels[i]:03}",
                f"{images_path}/{i}",
                partial(_png, images[i]),
            )
            for i in order
        ]
    except (KeyError, TypeError, AttributeError, IndexError, ValueError) as error:
        raise FileFormatError(f"{files.label} does not have Ren et al.'s pickles: {error!r}.") from error


def _png(values: Any) -> bytes:
    """Return an encoded image, which is kept as an array of its bytes."""
    return np.asarray(values, dtype=np.uint8).tobytes()


TIERED_IMAGENET = Source(
    name="tiered-imagenet",
    description="tieredImageNet: 351 / 97 / 160 classes of ImageNet (Ren et al.'s split)",
    side=84,
    plan=plan,
    where="Ren et al.'s {train,val,test}_images_png.pkl and _labels.pkl, or ILSVRC2012's training images by wnid",
)
