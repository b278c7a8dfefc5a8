"""Inspect prepared datasets: repeated images, shared classes, a contact sheet, images as files."""

import itertools
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from PIL import Image

from nearshot.data.store import Store
from nearshot.errors import InputError
from nearshot.io import atomic_write
from nearshot.text import with_progress

FORBIDDEN = r'[/\\<>:"|?*\0]'  # in the name of a file, on any system


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
    is_repeated = size[group] > 1
    occurrences: dict[int, list[Occurrence]] = {}
    start = 0  # of the split among all images
    for split, store in stores.items():
        for row in np.nonzero(is_repeated[start : start + len(store)])[0].tolist():
            class_name = store.class_names[int(store.labels[row])]
            occurrence = Occurrence(split, class_name, store.image_names[row])
            occurrences.setdefault(int(group[start + row]), []).append(occurrence)
        start += len(store)
    return sorted(occurrences.values())


def splits_that_share(groups: Sequence[Sequence[Occurrence]]) -> Counter[tuple[str, ...]]:
    """Return how many images each pair of splits shares."""
    counts: Counter[tuple[str, ...]] = Counter()
    for group in groups:
        splits = dict.fromkeys(occurrence.split for occurrence in group)
        counts.update(itertools.combinations(splits, 2))
    return counts


def shared_classes(stores: Mapping[str, Store]) -> list[str]:
    """Return the names of classes that more than one split has."""
    counts: Counter[str] = Counter()
    for store in stores.values():
        counts.update(store.class_names)
    return sorted(name for name, count in counts.items() if count > 1)


def contact_sheet(store: Store, *, n_classes: int = 10, n_images: int = 8) -> Image.Image:
    """Return an image that shows some images of some classes, one row per class, evenly chosen."""
    side = store.images.shape[1]
    gap = 2
    step = side + gap
    classes = _evenly(len(store.class_names), n_classes)
    sheet = np.full((len(classes) * step + gap, n_images * step + gap, 3), 255, dtype=np.uint8)
    labels = store.labels.numpy()
    for line, label in enumerate(classes):
        members = np.nonzero(labels == label)[0]
        top = line * step + gap
        for column, row in enumerate(members[_evenly(len(members), n_images)]):
            left = column * step + gap
            sheet[top : top + side, left : left + side] = store.images[row]
    return Image.fromarray(sheet)


def _evenly(n_all: int, n_chosen: int) -> list[int]:
    """Return some numbers under `n_all`, evenly chosen, or all if they are fewer."""
    chosen: list[int] = np.unique(np.linspace(0, n_all - 1, n_chosen).round().astype(int)).tolist()
    return chosen


def unpack(
    store: Store,
    folder: str | Path,
    *,
    n_classes: int | None = None,
    n_images: int | None = None,
    skip: int = 0,
) -> int:
    """Write images of a prepared split as `folder/<class>/<number>.png`; return how many.

    Args:
        store: the split.
        folder: the folder to write.
        n_classes: how many classes, evenly chosen; by default all.
        n_images: how many images of each; by default all.
        skip: how many first images of each class to skip.
    """
    n_known = len(store.class_names)
    if n_classes is None:
        n_classes = n_known
    if not 1 <= n_classes <= n_known:
        raise InputError(
            f"n_classes must be from 1 to {n_known}, the classes of {store!r}, not {n_classes}."
        )
    if n_images is not None and n_images < 1:
        raise InputError(f"n_images must be at least 1, not {n_images}.")
    if skip < 0:
        raise InputError(f"skip must be at least 0, not {skip}.")
    n_written = 0
    for label in with_progress(_evenly(n_known, n_classes), f"unpacking {store.dataset}"):
        members = np.nonzero(store.labels.numpy() == label)[0]
        members = members[skip:]
        if n_images is not None:
            members = members[:n_images]
        class_folder = Path(folder) / _file_name(store.class_names[label])
        class_folder.mkdir(parents=True, exist_ok=True)
        for number, row in enumerate(members.tolist(), skip):
            with atomic_write(class_folder / f"{number}.png", durable=False) as file:
                Image.fromarray(np.asarray(store.images[row])).save(file, "PNG")
        n_written += len(members)
    return n_written


def _file_name(class_name: str) -> str:
    """Return a class's name as that of a folder inside another, which is not hidden.

    >>> _file_name("../a:b")
    '--a-b'
    """
    return re.sub(r"^\.+", "-", re.sub(FORBIDDEN, "-", class_name).strip())
