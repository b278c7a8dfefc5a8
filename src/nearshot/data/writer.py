"""Write the splits of a dataset: read, resize and pack every image once.

Splits are packed in the folder `.<side>.partial`, beside `<side>`. A killed process resumes there.
When all splits are complete, the partial folder replaces `<side>` by two renames, so that all
splits are replaced or none: if the second rename never came, `restore_interrupted` undoes the
first.
"""

import hashlib
import shutil
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
from PIL import Image

from nearshot.data import store as stores
from nearshot.data.datasets.source import Plan, SourceImage
from nearshot.data.images import Fit, Pixels, decoded, fit_to_square, without_frames
from nearshot.data.store import HASH_BYTES, Store
from nearshot.errors import FileFormatError, InputError
from nearshot.io import atomic_write, naming_a_full_disk, read_json, write_json
from nearshot.text import counted, with_progress

IMAGES_PER_STEP = 512
# The bytes of a file from which on threads read faster. Those that read small images would mostly
# wait for each other, for the interpreter.
LARGE_FILE = 20_000
INTERPOLATION = "bilinear, Pillow"
FILES = ("images.u8", "hashes.bin", "labels.npy", "names.txt", "manifest.json")
Broken = Literal["refuse", "skip"]


def write_splits(
    folder: Path,
    plan: Plan,
    *,
    dataset: str,
    side: int,
    fit: Fit = "crop",
    origin: str | None = None,
    broken: Broken = "refuse",
    progress: bool | None = None,
) -> dict[str, Store]:
    """Pack the splits of a plan into a folder, or resume an interrupted call.

    Splits that were packed by the same plan are kept. The caller holds the dataset's lock.

    Args:
        folder: the folder of the splits, which is named after the side.
        plan: the images of each split.
        dataset: the name of the dataset.
        side: the side of the square images.
        fit: how images are resized to a square.
        origin: the path of the user's own images.
        broken: whether images that cannot be read are refused, or skipped and listed in the
            manifest.
        progress: whether to show progress bars; by default on a terminal.
    """
    if broken not in ("refuse", "skip"):
        raise InputError(f"broken must be 'refuse' or 'skip', not {broken!r}.")
    restore_interrupted(folder.parent)
    hashes = {split: _plan_hash(images, side, fit) for split, images in plan.splits.items()}
    unfinished = folder.with_name(f".{folder.name}.partial")
    old = folder.with_name(f".{folder.name}.old")
    if not _is_complete(folder, hashes):
        if not _is_complete(unfinished, hashes):
            for leftover in set(unfinished.glob("*")) - {unfinished / split for split in hashes}:
                shutil.rmtree(leftover)
            for split, images in plan.splits.items():
                manifest = {
                    "format": stores.FORMAT,
                    "version": stores.VERSION,
                    "dataset": dataset,
                    "side": side,
                    "fit": fit,
                    "origin": origin,
                    "source": plan.layout,
                    "interpolation": INTERPOLATION,
                    "preparation": hashes,
                    "split": split,
                    "plan": hashes[split],
                }
                with naming_a_full_disk(unfinished / split):
                    _pack(unfinished / split, images, manifest, broken=broken, progress=progress)
        _replace(folder, unfinished, old)
    for leftover in (unfinished, old):
        shutil.rmtree(leftover, ignore_errors=True)
    return {split: Store(folder / split) for split in hashes}


def restore_interrupted(dataset_folder: Path) -> None:
    """Restore the splits of each side whose replacement was interrupted between its two renames."""
    for old in dataset_folder.glob(".*.old"):
        folder = old.with_name(old.name.removeprefix(".").removesuffix(".old"))
        if not folder.exists():
            old.rename(folder)


def _replace(folder: Path, unfinished: Path, old: Path) -> None:
    """Let the finished splits take the place of those in a folder."""
    for file in unfinished.glob("*/*"):
        if file.name not in FILES:  # of an interrupted call
            file.unlink()
    shutil.rmtree(old, ignore_errors=True)
    if folder.exists():
        folder.rename(old)
    unfinished.rename(folder)


def _plan_hash(images: Sequence[SourceImage], side: int, fit: Fit) -> str:
    """Return a hash of the images that a split is made of, and how. It changes when a file does."""
    lines = [f"{stores.VERSION} {side} {fit} {INTERPOLATION}"]
    for image in images:
        columns = [image.class_name, image.name]
        if image.stamp:
            columns.append(image.stamp)
        lines.append("\t".join(columns))
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()


def _is_complete(folder: Path, hashes: Mapping[str, str]) -> bool:
    """Return whether a folder has all splits of a preparation, undamaged."""
    try:
        return all(Store(folder / split).manifest["preparation"] == hashes for split in hashes)
    except (InputError, FileFormatError):  # missing or damaged
        return False


@dataclass
class _State:
    """How far the packing of a split has come, as `state.json` has it.

    Attributes:
        plan: the hash of the images.
        if_broken: what happens to images that cannot be read.
        n_read: how many images were read.
        broken: the number of each image that was skipped, and why.
    """

    plan: str
    if_broken: Broken
    n_read: int = 0
    broken: dict[int, str] = field(default_factory=dict)

    @property
    def n_written(self) -> int:
        """How many images are in the split's files."""
        return self.n_read - len(self.broken)

    def write(self, folder: Path) -> None:
        """Write the state into the folder of a split."""
        content = {
            "plan": self.plan,
            "if_broken": self.if_broken,
            "n_read": self.n_read,
            "broken": list(self.broken.items()),
        }
        write_json(folder / "state.json", content, checksum=True)

    def resume(self, folder: Path, image_bytes: Mapping[str, int]) -> None:
        """Continue from an interrupted call with the same plan, unless its files are damaged.

        `image_bytes` are the bytes of an image in each file.
        """
        try:
            content = read_json(folder / "state.json")
        except (OSError, FileFormatError):  # nothing was begun, or the file is damaged
            return
        if content["plan"] != self.plan or content["if_broken"] != self.if_broken:
            return
        n_written = content["n_read"] - len(content["broken"])
        for name, n_bytes in image_bytes.items():
            file = folder / name
            if not file.exists() or file.stat().st_size < n_written * n_bytes:
                return
        self.n_read = content["n_read"]
        self.broken = dict(content["broken"])


def _pack(
    folder: Path,
    images: Sequence[SourceImage],
    manifest: Mapping[str, Any],
    *,
    broken: Broken,
    progress: bool | None,
) -> None:
    """Append the images of a split to its files, from where an interrupted call stopped.

    Then describe them.
    """
    side = manifest["side"]
    label = f"{manifest['dataset']} {manifest['split']}"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "manifest.json").unlink(missing_ok=True)  # of another plan
    image_bytes = {"images.u8": side * side * 3, "hashes.bin": HASH_BYTES}
    state = _State(manifest["plan"], broken)
    state.resume(folder, image_bytes)
    for name, n_bytes in image_bytes.items():
        with (folder / name).open("ab") as file:
            file.truncate(state.n_written * n_bytes)
    state.write(folder)
    in_threads = any(image.n_bytes > LARGE_FILE for image in images[:100])
    read = partial(_read, side, manifest["fit"])
    with (
        ThreadPoolExecutor() as pool,
        (folder / "images.u8").open("ab") as pixel_file,
        (folder / "hashes.bin").open("ab") as hash_file,
    ):
        starts = range(state.n_read, len(images), IMAGES_PER_STEP)
        for start in with_progress(starts, label, progress=progress):
            batch = images[start : start + IMAGES_PER_STEP]
            results: Iterator[Pixels | FileFormatError]
            results = pool.map(read, batch) if in_threads else map(read, batch)
            for number, result in enumerate(results, start):
                if not isinstance(result, FileFormatError):
                    pixel_file.write(result.tobytes())
                    hash_file.write(stores.hash_of(result).tobytes())
                elif broken == "skip":
                    state.broken[number] = str(result)
                else:
                    raise FileFormatError(
                        f"{result} Repair the file, or skip such images with broken='skip'."
                    )
            pixel_file.flush()
            hash_file.flush()
            state.n_read = start + len(batch)
            state.write(folder)
    _describe(folder, images, manifest, state.broken)


def _read(side: int, fit: Fit, source: SourceImage) -> Pixels | FileFormatError:
    """Return the pixels of an image, or the error of one that cannot be read."""
    try:
        data = source.read()
        if not isinstance(data, bytes):
            return fit_to_square(Image.fromarray(data), side, fit, source.name)
        with decoded(data, source.name) as image:
            return fit_to_square(image, side, fit, source.name)
    except FileFormatError as error:
        return without_frames(error)


def _describe(
    folder: Path,
    images: Sequence[SourceImage],
    manifest: Mapping[str, Any],
    skipped: Mapping[int, str],
) -> None:
    """Write the labels, the names and, last, the manifest of the images that were not skipped."""
    kept = [image for number, image in enumerate(images) if number not in skipped]
    if not kept:
        label = f"{manifest['dataset']} {manifest['split']}"
        raise InputError(f"None of the {counted(len(images), 'image')} of {label} could be read.")
    class_names = sorted({image.class_name for image in kept})
    label_of = {name: label for label, name in enumerate(class_names)}
    labels = np.array([label_of[image.class_name] for image in kept], dtype=np.int64)
    names = [image.name for image in kept]
    hashes = np.fromfile(folder / "hashes.bin", np.uint8).reshape(-1, HASH_BYTES)
    with atomic_write(folder / "labels.npy") as file:
        np.save(file, labels)
    with atomic_write(folder / "names.txt") as file:
        file.write("\n".join(names).encode())
    content = {
        **manifest,
        "n_images": len(kept),
        "class_names": class_names,
        "broken": list(skipped.values()),
    }
    content["fingerprint"] = stores.fingerprint_of(content, hashes, labels, names)
    write_json(folder / "manifest.json", content, checksum=True)
