"""Write the images of a store as files, one folder per class."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from PIL import Image

from nearshot.data.store import Store
from nearshot.errors import InputError
from nearshot.io import atomic_write
from nearshot.progress import with_progress

__all__ = ["unpack"]

FORBIDDEN = '/\\<>:"|?*\0'  # in the name of a file, on any system


def unpack(
    store: Store,
    folder: str | Path,
    *,
    n_classes: int | None = None,
    n_images: int | None = None,
    skip: int = 0,
    progress: bool | None = None,
) -> int:
    """Write images of a prepared split as `folder/<class>/<number>.png`; return how many.

    Args:
        store: the split.
        folder: the folder to write; files of the same names are replaced.
        n_classes: how many classes, evenly chosen; by default all.
        n_images: how many images of each; by default all.
        skip: skip so many first images of each class.
        progress: whether to show a progress bar; by default on a terminal.
    """
    n_known = len(store.class_names)
    if n_classes is not None and not 1 <= n_classes <= n_known:
        raise InputError(f"n_classes must be from 1 to {n_known}, the classes of {store!r}, not {n_classes}.")
    if skip < 0 or (n_images is not None and n_images < 1):
        raise InputError(f"n_images must be at least 1 and skip at least 0, not {n_images} and {skip}.")
    chosen = np.linspace(0, n_known - 1, n_classes or n_known).round().astype(int).tolist()
    n_written = 0
    for label in with_progress(chosen, f"unpacking {store.dataset}", show=progress):
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
    """Return a class's name as the name of a folder.

    >>> _file_name("../a:b")
    '--a-b'
    """
    name = "".join("-" if letter in FORBIDDEN else letter for letter in class_name).strip(" ")
    return f"-{name.lstrip('.')}" if name.startswith(".") else name  # a hidden folder would be skipped by readers
