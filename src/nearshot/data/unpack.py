"""From a store back to files: a folder of pictures for each class."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from PIL import Image

from nearshot.data.store import Store
from nearshot.errors import InputError
from nearshot.io import atomic_write
from nearshot.progress import with_progress
from nearshot.text import counted

__all__ = ["unpack"]

FORBIDDEN = '/\\<>:"|?*\0'  # in the name of a file, here or elsewhere


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
        folder: where to; it is made, and files of the same names are replaced.
        n_classes: how many classes, evenly chosen; by default all.
        n_images: how many images of each; by default all.
        skip: leave out so many first images of each class.
        progress: whether to show a bar; by default on a terminal.
    """
    n_known = len(store.class_names)
    if not 1 <= (n_known if n_classes is None else n_classes) <= n_known:
        known = counted(n_known, "class", "classes")
        raise InputError(f"{store.dataset!r} has {known} in its split {store.split!r}, not {n_classes}.")
    if skip < 0 or (n_images is not None and n_images < 1):
        raise InputError(f"There must be an image of each class, and none before the first: not {n_images}, {skip}.")
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
    """Return a class's name as that of a folder.

    >>> _file_name("../a:b")
    '--a-b'
    """
    name = "".join("-" if letter in FORBIDDEN else letter for letter in class_name).strip(" ")
    return f"-{name.lstrip('.')}" if name.startswith(".") else name  # a hidden folder would not be seen again
