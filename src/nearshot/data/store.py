"""A prepared split: one memory-mapped array of images with labels, names and a fingerprint.

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
import math
import os
from collections.abc import Sequence
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple, Self

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from nearshot.checks import is_integer
from nearshot.data.datasets.source import SPLITS
from nearshot.data.images import Pixels
from nearshot.errors import FileFormatError, InputError
from nearshot.io import read_json
from nearshot.text import counted, with_progress

__all__ = [
    "PreparedSplit",
    "Store",
    "data_folder",
    "find_splits",
    "prepared_datasets",
    "prepared_splits",
]

FORMAT = "nearshot-store"
VERSION = 1
HASH_BYTES = 16
# The part of the manifest that a fingerprint covers, beside the pixels, labels and names.
FINGERPRINTED = ("format", "version", "class_names", "side", "fit", "interpolation")
MANIFEST_FIELDS = {
    *FINGERPRINTED,
    "broken",
    "dataset",
    "fingerprint",
    "n_images",
    "origin",
    "preparation",
    "source",
    "split",
}


class PreparedSplit(NamedTuple):
    """A split on disk."""

    folder: Path
    side: int
    split: str


def data_folder(data_dir: str | Path | None = None) -> Path:
    """Return the folder of prepared datasets: `data_dir`, $NEARSHOT_DATA, or ~/.cache/nearshot."""
    folder = data_dir or os.environ.get("NEARSHOT_DATA")
    if folder:
        return Path(folder).expanduser()
    return Path.home() / ".cache" / "nearshot"


def find_splits(
    dataset: str, data_dir: str | Path | None = None, *, side: int | None = None
) -> list[PreparedSplit]:
    """Return the prepared splits of a dataset, by side: training, validation, test, others.

    There are none if the dataset is not prepared.
    """
    pattern = "[0-9]*" if side is None else str(side)
    splits = []
    for manifest in (data_folder(data_dir) / dataset).glob(f"{pattern}/[!.]*/manifest.json"):
        folder = manifest.parent
        side_folder = folder.parent.name
        if side_folder.isdecimal():
            splits.append(PreparedSplit(folder, int(side_folder), folder.name))
    return sorted(splits, key=_order)


def _order(prepared: PreparedSplit) -> tuple[int, int, str]:
    is_usual = prepared.split in SPLITS
    number = SPLITS.index(prepared.split) if is_usual else len(SPLITS)
    return prepared.side, number, prepared.split


def prepared_splits(
    dataset: str, data_dir: str | Path | None = None, *, side: int | None = None
) -> dict[str, Path]:
    """Return the folders of a dataset's splits, at the given side or at the only one.

    Splits that were prepared in two different ways, and so may share classes, are an error.
    """
    splits = find_splits(dataset, data_dir, side=side)
    if not splits:
        at_side = "" if side is None else f" with side {side}"
        raise InputError(
            f"Dataset {dataset!r} is not prepared in {data_folder(data_dir)}{at_side}."
        )
    sides = sorted({prepared.side for prepared in splits}, reverse=True)
    if len(sides) > 1:
        raise InputError(
            f"Dataset {dataset!r} is prepared with sides {sides}; choose one with side."
        )
    preparations = []
    for prepared in splits:
        with suppress(FileFormatError):  # opening that split gives the error
            preparations.append(read_manifest(prepared.folder)["preparation"])
    if any(preparation != preparations[0] for preparation in preparations):
        raise FileFormatError(
            f"The splits in {splits[0].folder.parent} are of two preparations, and may share "
            "classes. Prepare the dataset again (nearshot data prepare …), with the options that "
            "you want."
        )
    return {prepared.split: prepared.folder for prepared in splits}


def prepared_datasets(data_dir: str | Path | None = None) -> list[str]:
    """Return the names of all prepared datasets."""
    folders = sorted(data_folder(data_dir).glob("[!.]*/"))
    return [folder.name for folder in folders if find_splits(folder.name, data_dir)]


class Store:
    """An opened split.

    Its pickle holds the path, not the images, so that `DataLoader` workers map the same file.

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
        side = self.manifest["side"]
        shape = (self.manifest["n_images"], side, side, 3)
        self._check_size("images.u8", math.prod(shape))
        self._check_size("hashes.bin", shape[0] * HASH_BYTES)
        self.images: Pixels = np.memmap(self.folder / "images.u8", np.uint8, "r", shape=shape)
        self.labels: Tensor = torch.from_numpy(self._read_labels())

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

        Args:
            dataset: the name of the dataset.
            split: "train", "val" or "test".
            data_dir: the folder of prepared datasets; see `data_folder`.
            side: the images' side, if the dataset was prepared with several.
        """
        splits = prepared_splits(dataset, data_dir, side=side)
        if split not in splits:
            raise InputError(
                f"split must be one of {sorted(splits)}, those of {dataset!r}, not {split!r}."
            )
        return cls(splits[split])

    def __reduce__(self) -> tuple[Any, ...]:
        return Store, (self.folder.absolute(),)

    def __len__(self) -> int:
        return len(self.labels)

    def __repr__(self) -> str:
        n_images = counted(len(self), "image")
        n_classes = counted(len(self.class_names), "class", "classes")
        side = self.manifest["side"]
        return f"<Store {self.dataset} {self.split}: {n_images} of {n_classes}, {side}×{side}>"

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
        for row in with_progress(range(len(self)), f"{self.dataset} {self.split}"):
            if not np.array_equal(hash_of(self.images[row]), self.hashes[row]):
                name = self.image_names[row]
                raise FileFormatError(
                    f"Image {row} ({name}) of {self.folder} has changed. {advice}"
                )
        labels = self.labels.numpy()
        fingerprint = fingerprint_of(self.manifest, self.hashes, labels, self.image_names)
        if fingerprint != self.fingerprint:
            raise FileFormatError(f"The labels or names of {self.folder} have changed. {advice}")

    def _check_size(self, name: str, n_bytes: int) -> None:
        file = self.folder / name
        if not file.is_file() or file.stat().st_size != n_bytes:
            raise self._damaged(f"{file} is missing or cut short")

    def _read_labels(self) -> npt.NDArray[np.int64]:
        file = self.folder / "labels.npy"
        n_images = self.manifest["n_images"]
        n_classes = len(self.class_names)
        try:
            labels: npt.NDArray[np.int64] = np.load(file, allow_pickle=False)
            is_valid = labels.dtype == np.int64 and labels.shape == (n_images,)
            is_valid = is_valid and 0 <= labels.min() <= labels.max() < n_classes
        except Exception:  # a damaged file can raise anything
            is_valid = False
        if not is_valid:
            raise self._damaged(f"{file} does not have {n_images} labels from 0 to {n_classes - 1}")
        return labels

    def _damaged(self, how: str) -> FileFormatError:
        return FileFormatError(
            f"The store is damaged: {how}. Prepare the dataset {self.dataset!r} again."
        )


def hash_of(pixels: Pixels) -> npt.NDArray[np.uint8]:
    """Return the BLAKE2b hash of an image's pixels, (16,) uint8."""
    content = np.ascontiguousarray(pixels).tobytes()
    digest = hashlib.blake2b(content, digest_size=HASH_BYTES).digest()
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
    if manifest.get("version") != VERSION:
        raise FileFormatError(
            f"{folder} was prepared by another version of nearshot (format "
            f"{manifest.get('version')}, this one has {VERSION}). Use that version, or prepare the "
            "dataset again."
        )
    missing = sorted(MANIFEST_FIELDS - manifest.keys())
    if missing:
        raise FileFormatError(
            f"{file} is damaged: it lacks {', '.join(missing)}. Prepare the dataset again."
        )
    names = manifest["class_names"]
    wrong = [
        name for name in ("dataset", "split", "fingerprint") if type(manifest[name]) is not str
    ]
    wrong += [name for name in ("n_images", "side") if not _is_count(manifest[name])]
    if type(names) is not list or not all(type(name) is str for name in names):
        wrong.append("class_names")
    if wrong:
        raise FileFormatError(
            f"{file} is damaged: its values of {', '.join(wrong)} are of a wrong type. Prepare the "
            "dataset again."
        )
    return manifest


def _is_count(value: object) -> bool:
    return is_integer(value) and 1 <= value < 1 << 40  # type: ignore[operator]
