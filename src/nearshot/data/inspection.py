"""Inspect prepared datasets: repeated images, classes that two splits share, a contact sheet, and images as files."""

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
    owners = [(split, index) for split, store in stores.items() for index in range(len(store))]
    found: dict[int, list[Occurrence]] = {}
    for place in np.nonzero(size[group] > 1)[0].tolist():
        split, index = owners[place]
        store = stores[split]
        occurrence = Occurrence(
            split, store.class_names[int(store.labels[index])], store.image_names[index]
        )
        found.setdefault(int(group[place]), []).append(occurrence)
    return sorted(found.values())


def splits_that_share(groups: Sequence[Sequence[Occurrence]]) -> Counter[tuple[str, ...]]:
    """Return how many images each pair of splits shares."""
    splits = (dict.fromkeys(occurrence.split for occurrence in group) for group in groups)
    return Counter(pair for names in splits for pair in itertools.combinations(names, 2))


def shared_classes(stores: Mapping[str, Store]) -> list[str]:
    """Return the names of classes that more than one split has."""
    counts = Counter(name for store in stores.values() for name in store.class_names)
    return sorted(name for name, count in counts.items() if count > 1)


def contact_sheet(store: Store, *, n_classes: int = 10, n_images: int = 8) -> Image.Image:
    """Return an image that shows some images of some classes, one row per class, evenly chosen."""
    side, gap = store.images.shape[1], 2
    classes = _evenly(len(store.class_names), n_classes)
    sheet = np.full(
        (len(classes) * (side + gap) + gap, n_images * (side + gap) + gap, 3), 255, dtype=np.uint8
    )
    labels = store.labels.numpy()
    for row, label in enumerate(classes):
        members = np.nonzero(labels == label)[0]
        for column, index in enumerate(members[_evenly(len(members), n_images)]):
            top, left = row * (side + gap) + gap, column * (side + gap) + gap
            sheet[top : top + side, left : left + side] = store.images[index]
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

    `n_classes` are chosen evenly; of each, `skip` images are skipped and `n_images` written. By
    default all are.
    """
    n_known = len(store.class_names)
    n_classes = n_known if n_classes is None else n_classes
    if not 1 <= n_classes <= n_known:
        raise InputError(
            f"n_classes must be from 1 to {n_known}, the classes of {store!r}, not {n_classes}."
        )
    if skip < 0 or (n_images is not None and n_images < 1):
        raise InputError(
            f"n_images must be at least 1 and skip at least 0 (got {n_images} and {skip})."
        )
    n_written = 0
    for label in with_progress(_evenly(n_known, n_classes), f"unpacking {store.dataset}"):
        members = np.nonzero(store.labels.numpy() == label)[0]
        members = members[skip : None if n_images is None else skip + n_images]
        place = Path(folder) / _file_name(store.class_names[label])
        place.mkdir(parents=True, exist_ok=True)
        for number, index in enumerate(members.tolist(), skip):
            with atomic_write(place / f"{number}.png", durable=False) as file:
                Image.fromarray(np.asarray(store.images[index])).save(file, "PNG")
        n_written += len(members)
    return n_written


def _file_name(class_name: str) -> str:
    """Return a class's name as that of a folder inside another, which is not hidden.

    >>> _file_name("../a:b")
    '--a-b'
    """
    return re.sub(r"^\.+", "-", re.sub(FORBIDDEN, "-", class_name).strip())
