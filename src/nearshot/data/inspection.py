"""Inspect prepared datasets: repeated images, classes that two splits share, and a contact sheet."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from PIL import Image

from nearshot.data.datasets.source import SPLITS
from nearshot.data.store import Store

__all__ = ["Occurrence", "contact_sheet", "repeated_images", "shared_classes", "splits_that_share"]


class Occurrence(NamedTuple):
    """Where an image occurs."""

    split: str
    class_name: str
    image_name: str


def repeated_images(stores: Mapping[str, Store]) -> list[list[Occurrence]]:
    """Return groups of images with equal pixels, within and across splits."""
    hashes = np.concatenate([store.hashes for store in stores.values()])
    _, group, size = np.unique(hashes, axis=0, return_inverse=True, return_counts=True)
    group = group.reshape(-1)
    owners = [(split, index) for split, store in stores.items() for index in range(len(store))]
    found: dict[int, list[Occurrence]] = {}
    for place in np.nonzero(size[group] > 1)[0].tolist():
        split, index = owners[place]
        store = stores[split]
        occurrence = Occurrence(split, store.class_names[int(store.labels[index])], store.image_names[index])
        found.setdefault(int(group[place]), []).append(occurrence)
    return sorted(found.values())


def splits_that_share(groups: Sequence[Sequence[Occurrence]]) -> dict[tuple[str, str], int]:
    """Return how many images each pair of splits shares.

    >>> of_class = {split: Occurrence(split, "cat", "1.png") for split in ("train", "val", "test")}
    >>> splits_that_share([[of_class["test"], of_class["train"]], [of_class["val"], of_class["val"]]])
    {('train', 'test'): 1}
    """
    found = Counter(
        pair
        for group in groups
        for pair in itertools.combinations(sorted({occurrence.split for occurrence in group}, key=_in_order), 2)
    )
    return {pair: found[pair] for pair in sorted(found, key=lambda pair: tuple(map(_in_order, pair)))}


def _in_order(split: str) -> tuple[int, str]:
    """Return a sort key: training, validation, test, then other splits by name."""
    return (SPLITS.index(split) if split in SPLITS else len(SPLITS), split)


def shared_classes(stores: Mapping[str, Store]) -> list[str]:
    """Return the names of classes that more than one split has."""
    counts = Counter(name for store in stores.values() for name in store.class_names)
    return sorted(name for name, count in counts.items() if count > 1)


def contact_sheet(store: Store, *, n_classes: int = 10, n_images: int = 8, gap: int = 2) -> Image.Image:
    """Return an image that shows some images of some classes, one row per class, evenly chosen."""
    side = store.images.shape[1]
    classes = np.unique(np.linspace(0, len(store.class_names) - 1, n_classes).round().astype(int))
    sheet = np.full((len(classes) * (side + gap) + gap, n_images * (side + gap) + gap, 3), 255, dtype=np.uint8)
    labels = store.labels.numpy()
    for row, label in enumerate(classes):
        members = np.nonzero(labels == label)[0]
        chosen = members[np.unique(np.linspace(0, len(members) - 1, n_images).round().astype(int))]
        for column, index in enumerate(chosen):
            top, left = row * (side + gap) + gap, column * (side + gap) + gap
            sheet[top : top + side, left : left + side] = store.images[index]
    return Image.fromarray(sheet)
