"""CIFAR-FS (Bertinetto et al., 2019): CIFAR-100's 60,000 images in 64, 16 and 20 classes."""

from __future__ import annotations

from functools import partial
from pathlib import PurePosixPath
from typing import Any

import numpy as np

from nearshot.data.datasets.base import Picture, Plan, Source, pictures_by_folder, split_pictures, standard_splits
from nearshot.data.downloads import Download
from nearshot.data.images import Pixels
from nearshot.data.pickles import load_pickle
from nearshot.data.readers import Files
from nearshot.errors import FileFormatError

__all__ = ["CIFAR_FS"]


def plan(files: Files) -> Plan:
    """Find the images in `cifar100/data/<class>/*.png`, or in the pickles of CIFAR-100 for Python."""
    pickles = {PurePosixPath(name).name: name for name in files.names()}
    if {"train", "test", "meta"} <= pickles.keys():
        layout = "CIFAR-100's python pickles"
        groups = _from_pickles(files, pickles)
    else:
        layout = "cifar100.zip: data/<class>/<image>.png"
        groups = pictures_by_folder(files)
    return Plan(layout, split_pictures(groups, standard_splits("cifar-fs"), files, "CIFAR-FS"))


def _from_pickles(files: Files, paths: dict[str, str]) -> dict[str, list[Picture]]:
    content: dict[str, Any] = {
        name: load_pickle(files.read(paths[name]), paths[name]) for name in ("train", "test", "meta")
    }
    groups: dict[str, list[Picture]] = {}
    try:
        class_names = content["meta"]["fine_label_names"]
        for part in ("train", "test"):
            rows, labels, names = (content[part][key] for key in ("data", "fine_labels", "filenames"))
            if rows.dtype != np.uint8 or rows.shape != (len(labels), 3072) or len(names) != len(labels):
                raise FileFormatError(f"{paths[part]} in {files.label} does not have CIFAR-100's shape.")
            for row, label, name in zip(rows, labels, names, strict=True):
                class_name = class_names[label]
                groups.setdefault(class_name, []).append(
                    Picture(class_name, f"{class_name}/{name}", partial(_image, row))
                )
    except (KeyError, IndexError, TypeError, AttributeError) as error:
        raise FileFormatError(f"{files.label} does not have the pickles of CIFAR-100: {error!r}.") from error
    return {name: sorted(group, key=lambda picture: picture.name) for name, group in groups.items()}


def _image(row: Pixels) -> Pixels:
    """From 1,024 red, green and blue values to (32, 32, 3)."""
    return np.ascontiguousarray(row.reshape(3, 32, 32).transpose(1, 2, 0))


CIFAR_FS = Source(
    name="cifar-fs",
    description="CIFAR-FS: CIFAR-100 in 64 / 16 / 20 classes, 600 images each, 32×32",
    side=32,
    plan=plan,
    downloads=(
        Download(
            name="cifar-100-python.tar.gz",
            urls=(
                "https://www.cs.toronto.edu/~kriz/cifar-100-python.tar.gz",
                "https://cave.cs.toronto.edu/kriz/cifar-100-python.tar.gz",
            ),
            md5="eb9058c3a382ffc7106e4002c42a8d85",
            n_bytes=169_001_437,
        ),
    ),
    where="the original cifar100.zip, its parts, or CIFAR-100's python version (cifar-100-python.tar.gz)",
)
