"""Write the splits of a dataset: read, resize and pack every image once.

Splits are packed in the folder `.<side>.partial`, beside `<side>`. A killed process resumes there.
When all splits are complete, the partial folder replaces `<side>` by two renames, so that all
splits are replaced or none: if the second rename never came, `restore_interrupted` undoes the
first.
"""

import hashlib
import shutil
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
from PIL import Image

from nearshot.data import store as stores
from nearshot.data.datasets.source import Plan, SourceImage
from nearshot.data.images import Fit, Pixels, decode, fit_to_square
from nearshot.data.store import HASH_BYTES, Store
from nearshot.errors import FileFormatError, InputError
from nearshot.io import atomic_write, naming_a_full_disk, read_json, write_json
from nearshot.text import counted, with_progress

IMAGES_PER_STEP = 512
LARGE = 20_000  # bytes of a file
INTERPOLATION = "bilinear, Pillow"
FILES = ("images.u8", "hashes.bin", "labels.npy", "names.txt", "manifest.json")
Broken = Literal["refuse", "skip"]


def write_splits(
    folder: Path,
    plan: Plan,
    about: Mapping[str, Any],
    *,
    broken: Broken = "refuse",
    progress: bool | None = None,
) -> dict[str, Store]:
    """Pack the splits of a plan into a folder, or resume an interrupted call; the caller holds the dataset's lock.

    Splits that were packed by the same plan are kept. `about` is what the manifests say of all
    splits: "dataset", "side", "fit", and "origin", the path of the user's own images.
    """
    if broken not in ("refuse", "skip"):
        raise InputError(f"broken must be 'refuse' or 'skip', not {broken!r}.")
    restore_interrupted(folder.parent)
    plans = {
        split: _plan_hash(images, about["side"], about["fit"])
        for split, images in plan.splits.items()
    }
    unfinished, old = (
        folder.with_name(f".{folder.name}.partial"),
        folder.with_name(f".{folder.name}.old"),
    )
    if not _is_complete(folder, plans):
        if not _is_complete(unfinished, plans):
            for leftover in set(unfinished.glob("*")) - {unfinished / split for split in plans}:
                shutil.rmtree(leftover)
            about = {
                "format": stores.FORMAT,
                "version": stores.VERSION,
                **about,
                "source": plan.layout,
            }
            about |= {"interpolation": INTERPOLATION, "preparation": plans}
            for split, images in plan.splits.items():
                manifest = {**about, "split": split, "plan": plans[split]}
                with naming_a_full_disk(unfinished / split):
                    _pack(unfinished / split, images, manifest, broken=broken, progress=progress)
        for file in unfinished.glob("*/*"):
            if file.name not in FILES:  # of the interrupted call
                file.unlink()
        shutil.rmtree(old, ignore_errors=True)
        if folder.exists():
            folder.rename(old)
        unfinished.rename(folder)
    for leftover in (unfinished, old):
        shutil.rmtree(leftover, ignore_errors=True)
    return {split: Store(folder / split) for split in plans}


def restore_interrupted(dataset_folder: Path) -> None:
    """Restore the splits of each side whose replacement was interrupted between its two renames."""
    for old in dataset_folder.glob(".*.old"):
        folder = old.with_name(old.name.removeprefix(".").removesuffix(".old"))
        if not folder.exists():
            old.rename(folder)


def _plan_hash(images: Sequence[SourceImage], side: int, fit: Fit) -> str:
    """Return a hash of the images that a split is made of, and how. It changes when a file does."""
    listing = "\n".join(
        f"{one.class_name}\t{one.name}" + (f"\t{one.stamp}" if one.stamp else "") for one in images
    )
    return hashlib.sha256(
        f"{stores.VERSION} {side} {fit} {INTERPOLATION}\n{listing}".encode()
    ).hexdigest()


def _is_complete(folder: Path, plans: Mapping[str, str]) -> bool:
    try:
        return all(Store(folder / split).manifest.get("preparation") == plans for split in plans)
    except (InputError, FileFormatError):  # missing or damaged
        return False


def _pack(
    folder: Path,
    images: Sequence[SourceImage],
    manifest: Mapping[str, Any],
    *,
    broken: Broken,
    progress: bool | None,
) -> None:
    """Append the images of a split to its files, from where an interrupted call stopped; then describe them."""
    side, fit, label = (
        manifest["side"],
        manifest["fit"],
        f"{manifest['dataset']} {manifest['split']}",
    )
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "manifest.json").unlink(missing_ok=True)  # of another plan
    begin: dict[str, Any] = {"plan": manifest["plan"], "if_broken": broken}
    state = begin | {"n_read": 0, "broken": []}
    image_bytes = {folder / "images.u8": side * side * 3, folder / "hashes.bin": HASH_BYTES}
    with suppress(OSError, FileFormatError):  # nothing was begun, or its files are damaged
        found = read_json(folder / "state.json")
        n_kept = found["n_read"] - len(found["broken"])
        if found.items() >= begin.items() and all(
            f.stat().st_size >= n_kept * n for f, n in image_bytes.items()
        ):
            state = found
    for file, n_bytes in image_bytes.items():
        with file.open("ab") as opened:
            opened.truncate((state["n_read"] - len(state["broken"])) * n_bytes)
    write_json(folder / "state.json", state, checksum=True)
    # Threads that read small images would mostly wait for each other, for the interpreter.
    in_threads = any(image.n_bytes > LARGE for image in images[:100])
    with (
        ThreadPoolExecutor() as pool,
        (folder / "images.u8").open("ab") as pixel_file,
        (folder / "hashes.bin").open("ab") as hash_file,
    ):
        for start in with_progress(
            range(state["n_read"], len(images), IMAGES_PER_STEP), label, show=progress
        ):
            batch = images[start : start + IMAGES_PER_STEP]
            for index, read in enumerate(
                (pool.map if in_threads else map)(partial(_read, side, fit), batch), start
            ):
                if not isinstance(read, FileFormatError):
                    pixel_file.write(read.tobytes())
                    hash_file.write(stores.hash_of(read).tobytes())
                elif broken == "skip":
                    state["broken"].append([index, str(read)])
                else:
                    raise FileFormatError(
                        f"{read} Repair the file, or skip such images with broken='skip'."
                    )
            pixel_file.flush()
            hash_file.flush()
            state["n_read"] = start + len(batch)
            write_json(folder / "state.json", state, checksum=True)
    _describe(folder, images, manifest, dict(state["broken"]))


def _read(side: int, fit: Fit, source: SourceImage) -> Pixels | FileFormatError:
    """Return the pixels of an image, or the error of one that cannot be read."""
    try:
        data = source.read()
        image = decode(data, source.name) if isinstance(data, bytes) else Image.fromarray(data)
        return fit_to_square(image, side, fit, source.name)
    except FileFormatError as error:
        return error


def _describe(
    folder: Path,
    images: Sequence[SourceImage],
    manifest: Mapping[str, Any],
    skipped: Mapping[int, str],
) -> None:
    """Write the labels, the names and, last, the manifest of the images that were not skipped."""
    kept = [image for index, image in enumerate(images) if index not in skipped]
    if not kept:
        label = f"{manifest['dataset']} {manifest['split']}"
        raise InputError(f"None of the {counted(len(images), 'image')} of {label} could be read.")
    class_names = sorted({image.class_name for image in kept})
    number = {name: label for label, name in enumerate(class_names)}
    labels = np.array([number[image.class_name] for image in kept], dtype=np.int64)
    names = [image.name for image in kept]
    hashes = np.fromfile(folder / "hashes.bin", np.uint8).reshape(-1, HASH_BYTES)
    found = {
        **manifest,
        "n_images": len(kept),
        "class_names": class_names,
        "broken": list(skipped.values()),
    }
    with atomic_write(folder / "labels.npy") as file:
        np.save(file, labels)
    with atomic_write(folder / "names.txt") as file:
        file.write("\n".join(names).encode())
    fingerprint = stores.fingerprint_of(found, hashes, labels, names)
    write_json(folder / "manifest.json", found | {"fingerprint": fingerprint}, checksum=True)
