"""Write the splits of a dataset: read, resize and pack every image once.

Splits are packed in the folder `.<side>.partial`, beside `<side>`. A killed process resumes there. When all splits are
complete, the partial folder replaces `<side>` by two renames, so that all splits are replaced or none.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from PIL import Image

from nearshot.data.datasets.source import Plan, SourceImage
from nearshot.data.images import Fit, Pixels, decode, fit_to_square
from nearshot.data.store import (
    FORMAT,
    HASH_BYTES,
    VERSION,
    OtherVersionError,
    Store,
    are_together,
    fingerprint_of,
    hash_of,
    read_manifest,
)
from nearshot.errors import FileFormatError, InputError, NearshotError
from nearshot.io import atomic_write
from nearshot.progress import with_progress
from nearshot.text import counted, print_message

__all__ = ["Broken", "finish_interrupted", "plan_hash", "unfinished_names", "write_splits"]

IMAGES_PER_STEP = 512
INTERPOLATION = "bilinear, Pillow"
Broken = Literal["refuse", "skip"]


@dataclass(frozen=True)
class _Job:
    """One split to pack: where, from which images, and what its manifest says about it."""

    folder: Path
    images: Sequence[SourceImage]
    manifest: Mapping[str, Any]

    @property
    def label(self) -> str:
        return f"{self.manifest['dataset']} {self.manifest['split']}"


def plan_hash(images: Sequence[SourceImage], side: int, fit: Fit = "crop", *, stamped: bool = True) -> str:
    """Return a hash of the images that a split is made of, and how. If `stamped`, it changes when a file does."""
    stamps = [f"\t{one.stamp}" if stamped and one.stamp else "" for one in images]
    listing = "\n".join(f"{one.class_name}\t{one.name}{stamp}" for one, stamp in zip(images, stamps, strict=True))
    return hashlib.sha256(f"{VERSION} {side} {fit} {INTERPOLATION}\n{listing}".encode()).hexdigest()


def write_splits(
    folder: Path,
    plan: Plan,
    *,
    dataset: str,
    side: int,
    fit: Fit = "crop",
    broken: Broken = "refuse",
    origin: str | None = None,
    progress: bool | None = None,
) -> dict[str, Store]:
    """Pack the splits of a plan, or resume an interrupted call. Splits that are finished already are kept.

    Two processes must not write a dataset at once; `prepare_plan` takes care of that.

    Args:
        folder: the folder of the splits.
        plan: the images of each split.
        dataset: the dataset's name.
        side: the side of the square images.
        fit: how images are resized to it.
        broken: whether an unreadable image is an error, or skipped and format_list in the manifest.
        origin: the path of the user's own folder or archive.
        progress: whether to show progress bars; by default on a terminal.
    """
    if broken not in ("refuse", "skip"):
        raise InputError(f"broken must be 'refuse' or 'skip', not {broken!r}.")
    for split, images in plan.splits.items():
        if not images:
            raise InputError(f"{dataset} {split} has no images.")
    finish_interrupted(folder.parent)
    _check_no_other(folder, plan.splits, dataset)
    plans = {split: plan_hash(images, side, fit) for split, images in plan.splits.items()}
    partial = _partial_folder(folder)
    if _complete_plans(folder) != plans or not _all_open(folder, plans, progress):
        if _complete_plans(partial) != plans:
            about = {"format": FORMAT, "version": VERSION, "dataset": dataset, "source": plan.layout, "side": side}
            about |= {"fit": fit, "interpolation": INTERPOLATION, "preparation": plans, "origin": origin}
            jobs = [
                _Job(partial / split, images, about | {"split": split, "plan": plans[split]})
                for split, images in plan.splits.items()
            ]
            _pack_all(partial, jobs, broken, progress)
        _replace(folder)
    for leftover in (partial, _old_folder(folder)):
        shutil.rmtree(leftover, ignore_errors=True)
    return {split: Store(folder / split) for split in plan.splits}


def finish_interrupted(dataset_folder: Path) -> None:
    """Complete a replacement of splits that was interrupted between its two renames."""
    for partial in sorted(dataset_folder.glob(".*.partial")):
        folder = partial.with_name(partial.name.removeprefix(".").removesuffix(".partial"))
        if not folder.exists() and _complete_plans(partial):
            _replace(folder)


def unfinished_names(folder: Path) -> dict[str, str]:
    """Return a hash of the images' names for each split that was begun in a folder and is not finished."""
    states = {split.name: _read_state(split) for split in sorted(_partial_folder(folder).glob("[!.]*"))}
    return {split: str(state["names"]) for split, state in states.items() if "names" in state}


def _partial_folder(folder: Path) -> Path:
    return folder.with_name(f".{folder.name}.partial")


def _old_folder(folder: Path) -> Path:
    return folder.with_name(f".{folder.name}.old")


def _complete_plans(folder: Path) -> dict[str, str]:
    """Return the plan of each split in a folder; nothing if splits are damaged, missing or of two preparations."""
    try:
        manifests = {file.parent.name: read_manifest(file.parent) for file in folder.glob("[!.]*/manifest.json")}
    except OtherVersionError:
        raise
    except FileFormatError:
        return {}
    plans = {split: str(manifest.get("plan")) for split, manifest in manifests.items()}
    needed = {split for manifest in manifests.values() for split in manifest.get("preparation", ())}
    return plans if needed <= plans.keys() and are_together(manifests) else {}


def _all_open(folder: Path, splits: Collection[str], progress: bool | None) -> bool:
    try:
        for split in splits:
            Store(folder / split)
    except FileFormatError:
        print_message(f"{folder / split} is damaged; the dataset is packed again.", show=progress)
        return False
    return True


def _check_no_other(folder: Path, splits: Collection[str], dataset: str) -> None:
    """Refuse to drop a split that was prepared before; the user may still need it."""
    for manifest in sorted(folder.glob("[!.]*/manifest.json")):
        if manifest.parent.name not in splits:
            raise InputError(
                f"{dataset!r} was prepared before with a split {manifest.parent.name!r}, which it does not have now. "
                f"Give it another name, or delete {folder}."
            )


def _replace(folder: Path) -> None:
    """Replace a folder of splits by the complete partial one."""
    partial = _partial_folder(folder)
    shutil.rmtree(_old_folder(folder), ignore_errors=True)
    try:
        for leftover in [*partial.glob("*/state.json"), *partial.glob("*/.*.partial")]:
            leftover.unlink()
        if folder.exists():
            folder.rename(_old_folder(folder))
        partial.rename(folder)
    except OSError as error:
        raise NearshotError(f"The splits in {folder} could not be replaced: {error}.") from error
    shutil.rmtree(_old_folder(folder), ignore_errors=True)


def _pack_all(partial: Path, jobs: Sequence[_Job], broken: Broken, progress: bool | None) -> None:
    """Pack all splits into the partial folder; it is complete when every split has its manifest."""
    for leftover in set(partial.glob("*")) - {job.folder for job in jobs}:
        shutil.rmtree(leftover)
    for job in jobs:
        (job.folder / "manifest.json").unlink(missing_ok=True)
    for job in jobs:
        try:
            job.folder.mkdir(parents=True, exist_ok=True)
            state = _resume(job, broken)
            _read_all(job, state, broken, progress)
            _describe(job, state)
        except OSError as error:
            raise NearshotError(f"{job.label} could not be written to {job.folder}: {error}.") from error


def _read_state(split: Path) -> dict[str, Any]:
    """Return the progress of an interrupted split; an empty state if it is unknown."""
    try:
        state = json.loads((split / "state.json").read_text())
    except (OSError, ValueError):
        state = None
    return state if isinstance(state, dict) else {}


def _write_state(job: _Job, state: dict[str, Any]) -> None:
    with atomic_write(job.folder / "state.json") as file:
        file.write(json.dumps(state).encode())


def _resume(job: _Job, broken: Broken) -> dict[str, Any]:
    """Return the progress of an interrupted split, with its files cut back to it; or start again."""
    side, fit, plan = (job.manifest[key] for key in ("side", "fit", "plan"))
    state = _read_state(job.folder)
    if broken == "refuse" and state.get("broken"):
        state = {}  # images were skipped, which are an error now
    n_kept = state.get("n_read", 0) - len(state.get("broken", ()))
    files = {job.folder / "images.u8": n_kept * side**2 * 3, job.folder / "hashes.bin": n_kept * HASH_BYTES}
    if state.get("plan") != plan or any(not f.is_file() or f.stat().st_size < size for f, size in files.items()):
        names = plan_hash(job.images, side, fit, stamped=False)
        state = {"plan": plan, "names": names, "n_read": 0, "broken": []}
        files = dict.fromkeys(files, 0)
        _write_state(job, state)
    for file, size in files.items():
        with file.open("ab") as opened:
            opened.truncate(size)
    return state


def _read_all(job: _Job, state: dict[str, Any], broken: Broken, progress: bool | None) -> None:
    """Append the images to the split's files, and record the progress after every few hundred."""
    side, fit = job.manifest["side"], job.manifest["fit"]
    steps = range(state["n_read"], len(job.images), IMAGES_PER_STEP)
    with (
        ThreadPoolExecutor() as pool,
        (job.folder / "images.u8").open("ab") as pixel_file,
        (job.folder / "hashes.bin").open("ab") as hash_file,
    ):
        for start in with_progress(steps, job.label, show=progress):
            stop = min(start + IMAGES_PER_STEP, len(job.images))
            results: Iterator[Pixels | FileFormatError] = pool.map(
                lambda image: _read(image, side, fit), job.images[start:stop]
            )
            for index, pixels in enumerate(results, start):
                if isinstance(pixels, FileFormatError):
                    if broken == "refuse":
                        raise FileFormatError(f"{pixels} Repair the file, or skip such images with broken='skip'.")
                    state["broken"].append([index, str(pixels)])
                    continue
                pixel_file.write(pixels.tobytes())
                hash_file.write(hash_of(pixels).tobytes())
            pixel_file.flush()
            hash_file.flush()
            state["n_read"] = stop
            _write_state(job, state)


def _describe(job: _Job, state: dict[str, Any]) -> None:
    """Write the labels, the names and, last, the manifest."""
    skipped = dict(state["broken"])
    images = [image for index, image in enumerate(job.images) if index not in skipped]
    if not images:
        raise InputError(f"None of the {counted(len(job.images), 'image')} of {job.label} could be read.")
    class_names = sorted({image.class_name for image in images})
    number = {name: label for label, name in enumerate(class_names)}
    labels = np.array([number[image.class_name] for image in images], dtype=np.int64)
    names = [image.name for image in images]
    hashes = np.fromfile(job.folder / "hashes.bin", np.uint8).reshape(-1, HASH_BYTES)
    found = {"n_images": len(images), "class_names": class_names, "broken": list(skipped.values())}
    manifest = {**job.manifest, **found}
    manifest["fingerprint"] = fingerprint_of(manifest, hashes, labels, names)
    with atomic_write(job.folder / "labels.npy") as file:
        np.save(file, labels)
    with atomic_write(job.folder / "names.txt") as file:
        file.write("\n".join(names).encode())
    with atomic_write(job.folder / "manifest.json") as file:
        file.write(json.dumps(manifest, indent=1).encode())


def _read(source: SourceImage, side: int, fit: Fit) -> Pixels | FileFormatError:
    try:
        data = source.read()
        image = decode(data, source.name) if isinstance(data, bytes) else Image.fromarray(data)
        return fit_to_square(image, side, fit, source.name)
    except FileFormatError as error:
        return error
