"""A prepared dataset split: one memory-mapped array of images with its labels, names and fingerprint.

A split is a folder, `<data folder>/<dataset>/<side>/<split>`:

    images.u8       the pixels, (image, height, width, 3) uint8
    labels.npy      (image,) int64
    hashes.bin      16 bytes per image, the BLAKE2b hash of its pixels
    names.txt       one line per image: its name in the source
    manifest.json   size, class names, how all splits were made, and the fingerprint; written last

Opening a split reads the manifest and the labels and maps the images; an image is read when it is
used.
"""

import hashlib
import json
import os
from collections.abc import Sequence
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import Any, Self

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from nearshot.data.datasets.source import SPLITS
from nearshot.data.images import Pixels
from nearshot.errors import FileFormatError, InputError
from nearshot.io import read_json
from nearshot.text import counted, with_progress

__all__ = ["Store", "data_folder", "prepared_datasets", "prepared_manifests", "prepared_splits"]

FORMAT, VERSION = "nearshot-store", 1
HASH_BYTES = 16
# The part of the manifest that a fingerprint covers, beside the pixels, labels and names.
FINGERPRINTED = ("format", "version", "class_names", "side", "fit", "interpolation")


def data_folder(data_dir: str | Path | None = None) -> Path:
    """Return the folder of prepared datasets: `data_dir`, or $NEARSHOT_DATA, or ~/.cache/nearshot."""
    return Path(
        data_dir or os.environ.get("NEARSHOT_DATA") or Path.home() / ".cache" / "nearshot"
    ).expanduser()


def prepared_splits(
    dataset: str, data_dir: str | Path | None = None, *, side: int | None = None
) -> dict[str, Path]:
    """Return the folders of a dataset's splits, at the given side or at the only one.

    Splits that were prepared in two different ways, and so may share classes, are an error.
    """
    manifests = prepared_manifests(dataset, data_dir, side=side)
    sides = sorted({int(path.parent.parent.name) for path in manifests}, reverse=True)
    if not sides:
        at_side = "" if side is None else f" with side {side}"
        raise InputError(
            f"Dataset {dataset!r} is not prepared in {data_folder(data_dir)}{at_side}."
        )
    if len(sides) > 1:
        raise InputError(
            f"Dataset {dataset!r} is prepared with sides {sides}; choose one with side."
        )
    preparations = []
    for path in manifests:
        with suppress(FileFormatError):  # opening that split gives the error
            preparations.append(read_manifest(path.parent).get("preparation"))
    if any(preparation != preparations[0] for preparation in preparations):
        raise FileFormatError(
            f"The splits in {manifests[0].parent.parent} are of two preparations, and may share classes. Prepare the "
            "dataset again (nearshot data prepare …), with the options that you want."
        )
    return {path.parent.name: path.parent for path in manifests}


def prepared_manifests(
    dataset: str, data_dir: str | Path | None = None, *, side: int | None = None
) -> list[Path]:
    """Return the manifests of a dataset's splits, <side>/<split>/manifest.json: training, validation, test, others."""

    def order(manifest: Path) -> tuple[int, int, str]:
        split, size = manifest.parent.name, manifest.parent.parent.name
        return int(size), SPLITS.index(split) if split in SPLITS else len(SPLITS), split

    found = (data_folder(data_dir) / dataset).glob(
        f"{'[0-9]*' if side is None else side}/[!.]*/manifest.json"
    )
    return sorted((file for file in found if file.parent.parent.name.isdecimal()), key=order)


def prepared_datasets(data_dir: str | Path | None = None) -> list[str]:
    """Return the names of all prepared datasets."""
    folders = sorted(data_folder(data_dir).glob("[!.]*/"))
    return [folder.name for folder in folders if prepared_manifests(folder.name, data_dir)]


class Store:
    """An opened split. Its pickle holds the path, not the images, so that `DataLoader` workers map the same file.

    Attributes:
        images: (image, height, width, 3) uint8, mapped from disk and read-only.
        labels: (image,) int64.
        class_names: the names of the labels 0, 1, ….
        fingerprint: a hash of the pixels, labels and names and of how the images were resized.
    """

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        self.manifest = read_manifest(self.folder)
        self.dataset: str = self.manifest["dataset"]
        self.split: str = self.manifest["split"]
        self.class_names: tuple[str, ...] = tuple(self.manifest["class_names"])
        self.fingerprint: str = self.manifest["fingerprint"]
        n_images, side, n_classes = (
            self.manifest["n_images"],
            self.manifest["side"],
            len(self.class_names),
        )
        for name, size in (
            ("images.u8", n_images * side * side * 3),
            ("hashes.bin", n_images * HASH_BYTES),
        ):
            file = self.folder / name
            if not file.is_file() or file.stat().st_size != size:
                raise self._damaged(f"{file} is missing or cut short")
        self.images: Pixels = np.memmap(
            self.folder / "images.u8", np.uint8, "r", shape=(n_images, side, side, 3)
        )
        file = self.folder / "labels.npy"
        try:
            labels: npt.NDArray[np.int64] = np.load(file, allow_pickle=False)
            is_valid = labels.dtype == np.int64 and labels.shape == (n_images,)
            is_valid = is_valid and 0 <= labels.min() <= labels.max() < n_classes
        except Exception:  # a damaged file can raise anything
            is_valid = False
        if not is_valid:
            raise self._damaged(f"{file} does not have {n_images} labels from 0 to {n_classes - 1}")
        self.labels: Tensor = torch.from_numpy(labels)

    @classmethod
    def open(
        cls,
        dataset: str,
        split: str,
        data_dir: str | Path | None = None,
        *,
        side: int | None = None,
    ) -> Self:
        """Open a prepared split by name, such as "cifar-fs" and "train".

        `data_dir` is the folder of prepared datasets; see `data_folder`. `side` is the images'
        side, if the dataset was prepared with several.
        """
        splits = prepared_splits(dataset, data_dir, side=side)
        if split not in splits:
            side = int(next(iter(splits.values())).parent.name)
            raise InputError(
                f"{dataset!r} has no split {split!r} at side {side}; it has {sorted(splits)}."
            )
        return cls(splits[split])

    def __reduce__(self) -> tuple[Any, ...]:
        return Store, (self.folder.absolute(),)

    def __len__(self) -> int:
        return len(self.labels)

    def __repr__(self) -> str:
        side, n_classes = self.manifest["side"], counted(len(self.class_names), "class", "classes")
        return f"<Store {self.dataset} {self.split}: {counted(len(self), 'image')} of {n_classes}, {side}×{side}>"

    @cached_property
    def image_names(self) -> list[str]:
        """The images' names in the source."""
        return (self.folder / "names.txt").read_text(encoding="utf-8", errors="replace").split("\n")

    @cached_property
    def hashes(self) -> npt.NDArray[np.uint8]:
        """(image, 16) the hash of each image's pixels."""
        return np.fromfile(self.folder / "hashes.bin", np.uint8).reshape(-1, HASH_BYTES)

    @cached_property
    def content(self) -> Tensor:
        """(image,) a number that is equal for images with equal pixels."""
        _, groups = np.unique(self.hashes, axis=0, return_inverse=True)
        return torch.from_numpy(groups.reshape(-1).astype(np.int64))

    def verify(self) -> None:
        """Read all images again, and raise an error if anything differs from what was written."""
        advice = "Delete this folder, and prepare the dataset again."
        for index in with_progress(range(len(self)), f"{self.dataset} {self.split}"):
            if not np.array_equal(hash_of(self.images[index]), self.hashes[index]):
                name = self.image_names[index]
                raise FileFormatError(
                    f"Image {index} ({name}) of {self.folder} has changed. {advice}"
                )
        if (
            fingerprint_of(self.manifest, self.hashes, self.labels.numpy(), self.image_names)
            != self.fingerprint
        ):
            raise FileFormatError(f"The labels or names of {self.folder} have changed. {advice}")

    def _damaged(self, how: str) -> FileFormatError:
        return FileFormatError(
            f"The store is damaged: {how}. Prepare the dataset {self.dataset!r} again."
        )


def hash_of(pixels: Pixels) -> npt.NDArray[np.uint8]:
    """Return the BLAKE2b hash of an image's pixels, (16,) uint8."""
    digest = hashlib.blake2b(
        np.ascontiguousarray(pixels).tobytes(), digest_size=HASH_BYTES
    ).digest()
    return np.frombuffer(digest, np.uint8)


def fingerprint_of(
    manifest: dict[str, Any],
    hashes: npt.NDArray[np.uint8],
    labels: npt.NDArray[np.int64],
    names: Sequence[str],
) -> str:
    """Return the hash of a split's content and of how its images were resized."""
    described = json.dumps({key: manifest[key] for key in FINGERPRINTED}, sort_keys=True)
    parts = (
        described.encode(),
        hashes.tobytes(),
        labels.astype("<i8").tobytes(),
        "\n".join(names).encode(),
    )
    return hashlib.sha256(b"".join(hashlib.sha256(part).digest() for part in parts)).hexdigest()


def read_manifest(folder: Path) -> dict[str, Any]:
    """Return the manifest of a split, if it is complete and of this version."""
    file = folder / "manifest.json"
    if not file.is_file():
        raise InputError(f"There is no prepared dataset in {folder}.")
    manifest = read_json(file)
    if manifest.get("format") != FORMAT:
        raise FileFormatError(f"{file} is damaged: it is not the manifest of a prepared dataset.")
    if manifest["version"] != VERSION:
        raise FileFormatError(
            f"{folder} was prepared by another version of nearshot (format {manifest['version']}, this one has "
            f"{VERSION}). Use that version, or prepare the dataset again."
        )
    return manifest
