"""A prepared dataset split: one array of images on disk, mapped into memory, with its labels, names and fingerprint.

A split is a folder:

    images.u8       the images' bytes one after the other, (image, height, width, 3) uint8
    labels.npy      (image,) int64
    hashes.bin      16 bytes an image, the BLAKE2b hash of its pixels
    names.txt       a line an image: its name in the source
    manifest.json   size, class names, how it and the splits beside it were made, and the fingerprint; written last

Opening reads the manifest and the labels and maps the images; no image is read until it is used.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from nearshot.data.images import Pixels
from nearshot.errors import FileFormatError, InputError
from nearshot.progress import with_progress
from nearshot.text import counted

__all__ = [
    "FORMAT",
    "HASH_BYTES",
    "PLACING",
    "VERSION",
    "OtherVersionError",
    "Store",
    "are_together",
    "check_together",
    "data_folder",
    "fingerprint_of",
    "hash_of",
    "prepared_datasets",
    "prepared_manifests",
    "prepared_splits",
    "read_manifest",
    "side_folders",
]

FORMAT, VERSION = "nearshot-store", 1
HASH_BYTES = 16
# Beside a dataset's splits while new ones take their places: what each of them is made of.
PLACING = ".placing.json"
# What a fingerprint covers beside the pixels, labels and names: how the pictures became images.
FINGERPRINTED = ("format", "version", "class_names", "side", "fit", "interpolation")
# What a manifest must have to be used.
KEYS = {
    "version": int,
    "dataset": str,
    "split": str,
    "n_images": int,
    "side": int,
    "class_names": list,
    "broken": list,
    "fingerprint": str,
}


def data_folder(data_dir: str | Path | None = None) -> Path:
    """Return where prepared datasets live: `data_dir`, or $NEARSHOT_DATA, or ~/.cache/nearshot."""
    return Path(data_dir or os.environ.get("NEARSHOT_DATA") or Path.home() / ".cache" / "nearshot").expanduser()


def prepared_splits(dataset: str, data_dir: str | Path | None = None, *, side: int | None = None) -> dict[str, Path]:
    """Return the folders of a dataset's finished splits, at the given side or at the only one there is."""
    manifests = prepared_manifests(dataset, data_dir, side=side)
    sides = sorted({int(path.parent.parent.name) for path in manifests}, reverse=True)
    if not sides:
        at_side = "" if side is None else f" with side {side}"
        raise InputError(f"Dataset {dataset!r} is not prepared in {data_folder(data_dir)}{at_side}.")
    if len(sides) > 1:
        raise InputError(f"Dataset {dataset!r} is prepared with sides {sides}; say which.")
    return {path.parent.name: path.parent for path in manifests}


def prepared_manifests(dataset: str, data_dir: str | Path | None = None, *, side: int | None = None) -> list[Path]:
    """Return the manifests of a dataset's finished splits, <side>/<split>/manifest.json; none where there are none."""
    # A name with a dot is one that is being made, and may have its manifest already.
    folders = side_folders(dataset, data_dir, side=side)
    return sorted(manifest for folder in folders for manifest in folder.glob("[!.]*/manifest.json"))


def side_folders(dataset: str, data_dir: str | Path | None = None, *, side: int | None = None) -> list[Path]:
    """Return the folders of a dataset's splits, one for each side, or for the given one; finished splits or not."""
    found = (data_folder(data_dir) / dataset).glob("[0-9]*" if side is None else str(side))
    return [folder for folder in found if folder.name.isdecimal()]  # 84, and no 84.old


def prepared_datasets(data_dir: str | Path | None = None) -> list[str]:
    """Return the names of all datasets that have a finished split."""
    folders = sorted(data_folder(data_dir).glob("[!.]*/"))
    return [folder.name for folder in folders if prepared_manifests(folder.name, data_dir)]


class OtherVersionError(FileFormatError):
    """A split was prepared by another version of nearshot, and is not replaced unasked."""


class Store:
    """A prepared split, opened. Pickled, as for the workers of a `DataLoader`, it is small: they open the same files.

    Attributes:
        images: (image, height, width, 3) uint8, mapped from disk and read-only.
        labels: (image,) int64.
        class_names: the names of the labels 0, 1, ….
        dataset: the dataset's name.
        split: the split's name.
        fingerprint: a hash of the pixels, labels and names and of how the images were resized.
    """

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        self.manifest = read_manifest(self.folder)
        self.dataset: str = self.manifest["dataset"]
        self.split: str = self.manifest["split"]
        self.class_names: tuple[str, ...] = tuple(self.manifest["class_names"])
        self.fingerprint: str = self.manifest["fingerprint"]
        self.images: npt.NDArray[np.uint8] = self._map_images()
        self.labels: Tensor = torch.from_numpy(self._read_labels())

    @classmethod
    def open(cls, dataset: str, split: str, data_dir: str | Path | None = None, *, side: int | None = None) -> Store:
        """Open a prepared split by name, if all splits of the dataset are of one preparation.

        Args:
            dataset: its name, such as "cifar-fs".
            split: "train", "val" or "test".
            data_dir: where datasets live; by default $NEARSHOT_DATA, or ~/.cache/nearshot.
            side: the images' side, where the dataset was prepared in several.
        """
        splits = prepared_splits(dataset, data_dir, side=side)
        if split not in splits:
            at = next(iter(splits.values())).parent.name
            raise InputError(f"{dataset!r} has no split {split!r} at side {at}; it has {sorted(splits)}.")
        check_together(splits[split].parent)
        return cls(splits[split])

    def __getstate__(self) -> dict[str, Any]:
        """Pickle where the images are rather than the images, which a process that is handed the store maps itself."""
        return {name: value for name, value in vars(self).items() if name != "images"} | {
            "folder": self.folder.absolute()
        }

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        if read_manifest(self.folder)["fingerprint"] != self.fingerprint:
            raise FileFormatError(f"{self.folder} was prepared anew since this store of it was pickled. Open it again.")
        self.images = self._map_images()

    def __len__(self) -> int:
        return len(self.labels)

    def __repr__(self) -> str:
        side, n_classes = self.manifest["side"], counted(len(self.class_names), "class", "classes")
        return f"<Store {self.dataset} {self.split}: {counted(len(self), 'image')} of {n_classes}, {side}×{side}>"

    @cached_property
    def image_names(self) -> list[str]:
        """The images' names in the source."""
        file = self.folder / "names.txt"
        try:
            names = file.read_text(encoding="utf-8").split("\n")
        except (OSError, UnicodeDecodeError):
            raise self._damaged(file, "is missing or damaged") from None
        if len(names) != len(self):
            raise self._damaged(file, f"has {counted(len(names), 'name')} for {counted(len(self), 'image')}")
        return names

    @cached_property
    def hashes(self) -> npt.NDArray[np.uint8]:
        """(image, 16) the hash of each image's pixels."""
        return np.fromfile(self.folder / "hashes.bin", np.uint8).reshape(-1, HASH_BYTES)

    @cached_property
    def content(self) -> Tensor:
        """(image,) a number for each image's pixels, equal for equal pictures."""
        _, groups = np.unique(self.hashes, axis=0, return_inverse=True)
        return torch.from_numpy(groups.reshape(-1).astype(np.int64))

    def verify(self, *, progress: bool | None = None) -> None:
        """Read all images again, and refuse the store if anything differs from what was written."""
        advice = "Delete this folder, and prepare the dataset again."
        for index in with_progress(range(len(self)), f"{self.dataset} {self.split}", show=progress):
            if not np.array_equal(hash_of(self.images[index]), self.hashes[index]):
                raise FileFormatError(
                    f"Image {index} ({self.image_names[index]}) of {self.folder} has changed. {advice}"
                )
        if fingerprint_of(self.manifest, self.hashes, self.labels.numpy(), self.image_names) != self.fingerprint:
            raise FileFormatError(f"The labels or names of {self.folder} have changed. {advice}")

    def _map_images(self) -> npt.NDArray[np.uint8]:
        n_images, side = self.manifest["n_images"], self.manifest["side"]
        for name, size in (("images.u8", n_images * side * side * 3), ("hashes.bin", n_images * HASH_BYTES)):
            file = self.folder / name
            if not file.is_file() or file.stat().st_size != size:
                raise self._damaged(file, "is missing or cut short")
        return np.memmap(self.folder / "images.u8", np.uint8, "r", shape=(n_images, side, side, 3))

    def _read_labels(self) -> npt.NDArray[np.int64]:
        file = self.folder / "labels.npy"
        try:
            labels = np.load(file, allow_pickle=False)
        except (OSError, ValueError, EOFError):
            raise self._damaged(file, "is missing or damaged") from None
        n_images, n_classes = len(self.images), len(self.class_names)
        if not isinstance(labels, np.ndarray) or labels.dtype != np.int64 or labels.shape != (n_images,):
            raise self._damaged(file, f"has no label for each of {counted(n_images, 'image')}")
        if n_images and not 0 <= labels.min() <= labels.max() < n_classes:
            raise self._damaged(file, f"has labels of more than {counted(n_classes, 'class', 'classes')}")
        return labels

    def _damaged(self, file: Path, how: str) -> FileFormatError:
        return FileFormatError(f"The store is damaged: {file} {how}. Prepare the dataset {self.dataset!r} again.")


def hash_of(pixels: Pixels) -> npt.NDArray[np.uint8]:
    """Return the BLAKE2b hash of an image's pixels, (16,) uint8."""
    digest = hashlib.blake2b(np.ascontiguousarray(pixels).tobytes(), digest_size=HASH_BYTES).digest()
    return np.frombuffer(digest, np.uint8)


def fingerprint_of(
    manifest: dict[str, Any], hashes: npt.NDArray[np.uint8], labels: npt.NDArray[np.int64], names: Sequence[str]
) -> str:
    """Return the hash of everything that makes a split what it is."""
    described = json.dumps({key: manifest[key] for key in FINGERPRINTED}, sort_keys=True)
    parts = (described.encode(), hashes.tobytes(), labels.astype("<i8").tobytes(), "\n".join(names).encode())
    return hashlib.sha256(b"".join(hashlib.sha256(part).digest() for part in parts)).hexdigest()


def read_manifest(folder: Path) -> dict[str, Any]:
    """Return the manifest of a split, if it is whole and of this version."""
    file = folder / "manifest.json"
    if not file.is_file():
        raise InputError(f"There is no prepared dataset in {folder}.")
    try:
        manifest: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
        is_another = manifest["format"] == FORMAT and manifest["version"] not in (None, VERSION)
        complete = manifest["format"] == FORMAT and (
            is_another
            or (all(isinstance(manifest[key], kind) for key, kind in KEYS.items()) and manifest["n_images"] > 0)
        )
    except (OSError, ValueError, KeyError, TypeError):
        complete = False
    if not complete:
        raise FileFormatError(f"{file} is damaged. Prepare the dataset again.")
    if is_another:
        raise OtherVersionError(
            f"{folder} was prepared by another version of nearshot (format {manifest['version']}, this one has "
            f"{VERSION}). Use that version, or delete the folder and prepare the dataset again."
        )
    return manifest


def check_together(folder: Path) -> None:
    """Refuse a dataset's splits that are of two preparations, as when one was killed before all were in their places.

    Args:
        folder: that of the splits.
    """
    manifests = {}
    for file in sorted(folder.glob("[!.]*/manifest.json")):
        with suppress(InputError, FileFormatError):  # which whoever opens that split will hear
            manifests[file.parent.name] = read_manifest(file.parent)
    if (folder / PLACING).exists() or not are_together(manifests):
        raise FileFormatError(
            f"The splits in {folder} are of two preparations, of which the last is not finished. Prepare the dataset "
            "again (nearshot data prepare …), with the options that it is to have."
        )


def are_together(manifests: Mapping[str, Mapping[str, Any]]) -> bool:
    """Whether splits are of one preparation, as far as their manifests tell; those of older versions do not.

    >>> new, old = {"plan": "b", "preparation": {"train": "b", "val": "c"}}, {"plan": "a"}
    >>> are_together({"train": new, "val": old}), are_together({"train": old, "val": old})
    (False, True)
    """
    preparations = [manifest.get("preparation") for manifest in manifests.values()]
    plans = {split: manifest["plan"] for split, manifest in manifests.items() if manifest.get("plan") is not None}
    return all(
        preparation.get(split, plan) == plan
        for preparation in preparations
        if isinstance(preparation, dict)
        for split, plan in plans.items()
    )
