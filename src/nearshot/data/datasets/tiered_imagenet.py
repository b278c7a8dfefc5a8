"""tieredImageNet (Ren et al., 2018): 351, 97 and 160 classes of ImageNet, far from each other in WordNet."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from nearshot.data.datasets.source import (
    SPLITS,
    Plan,
    Source,
    SourceImage,
    images_by_folder,
    paths_by_name,
    read_pickle,
    split_images,
    standard_splits,
)
from nearshot.data.readers import Files
from nearshot.errors import FileFormatError

__all__ = ["TIERED_IMAGENET"]


def plan_tiered_imagenet(files: Files) -> Plan:
    """Find the images in Ren et al.'s pickles, or in folders of ILSVRC2012's training images by wnid."""
    paths = paths_by_name(files)
    if all(f"{split}_{kind}.pkl" in paths for split in SPLITS for kind in ("images_png", "labels")):
        return Plan(
            "*_images_png.pkl with *_labels.pkl",
            {s: _from_pickles(files, paths[f"{s}_images_png.pkl"], paths[f"{s}_labels.pkl"]) for s in SPLITS},
        )
    groups = images_by_folder(files)
    splits = split_images(groups, standard_splits("tiered-imagenet"), files, "tieredImageNet")
    return Plan("folders by wnid", splits)


def _from_pickles(files: Files, images_path: str, labels_path: str) -> list[SourceImage]:
    with read_pickle(files, images_path) as images, read_pickle(files, labels_path) as content:
        labels = np.asarray(content["label_specific"]).astype(np.int64)
        names = content.get("label_specific_str")
        if labels.shape != (len(images),):
            raise FileFormatError(f"{images_path} has {len(images)} images and {labels_path} {labels.size} labels.")
        found = []
        for i in np.argsort(labels, kind="stable").tolist():
            class_name = str(names[labels[i]]) if names is not None else f"class {labels[i]:03}"
            found.append(SourceImage(class_name, f"{images_path}/{i}", partial(_png, images[i])))
        return found


def _png(values: Any) -> bytes:
    """Return an encoded image, which is kept as an array of its bytes."""
    return np.asarray(values, dtype=np.uint8).tobytes()


TIERED_IMAGENET = Source(
    name="tiered-imagenet",
    description="tieredImageNet: 351 / 97 / 160 classes of ImageNet (Ren et al.'s split)",
    side=84,
    plan=plan_tiered_imagenet,
    where="Ren et al.'s {train,val,test}_images_png.pkl and _labels.pkl, or ILSVRC2012's training images by wnid",
)
