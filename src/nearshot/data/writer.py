"""Write the splits of a dataset: read, resize and pack every image once.

Splits are packed in the folder `.<side>.partial`, beside `<side>`. A killed process resumes there. When all splits are
complete, the partial folder replaces `<side>` by two renames, so that all splits are replaced or none.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from PIL import Image

from nearshot.data import store as stores
from nearshot.data.datasets.source import Plan, SourceImage
from nearshot.data.images import Fit, decode, fit_to_square
from nearshot.data.store import HASH_BYTES, OtherVersionError, Store
from nearshot.errors import FileFormatError, InputError, NearshotError
from nearshot.io import atomic_write
from nearshot.progress import with_progress
from nearshot.text import counted

IMAGES_PER_STEP = 512
LARGE = 20_000  # bytes of a file
INTERPOLATION = "bilinear, Pillow"
Broken = Literal["refuse", "skip"]


def plan_hash(images: Sequence[SourceImage], side: int, fit: Fit = "crop", *, stamped: bool = True) -> str:
    """Return a hash of the images that a split is made of, and how. If `stamped`, it changes when a file does."""
    stamps = [f"\t{one.stamp}" if stamped and one.stamp else "" for one in images]
    listing = "\n".join(f"{one.class_name}\t{one.name}{stamp}" for one, stamp in zip(images, stamps, strict=True))
    return hashlib.sha256(f"{stores.VERSION} {side} {fit} {INTERPOLATION}\n{listing}".encode()).hexdigest()


def write_splits(
    folder: Path, plan: Plan, about: Mapping[str, Any], *, broken: Broken = "refuse", progress: bool | None = None
) -> dict[str, Store]:
    """Pack the splits of a plan into a folder, or resume an interrupted call. Finished splits are kept.

    Two processes must not write a dataset at once; `prepare_plan` takes care of that. `about` is what the manifests
    say of all splits: "dataset", "side", "fit", and "origin", the path of the user's own images.
    """
    dataset, side, fit = about["dataset"], about["side"], about["fit"]
    if broken not in ("refuse", "skip"):
        raise InputError(f"broken must be 'refuse' or 'skip', not {broken!r}.")
    for split, images in plan.splits.items():
        if not images:
            raise InputError(f"{dataset} {split} has no images.")
    finish_interrupted(folder.parent)
    for manifest in sorted(folder.glob("[!.]*/manifest.json")):
        if manifest.parent.name not in plan.splits:  # the user may still need it
            raise InputError(
                f"{dataset!r} was prepared before with a split {manifest.parent.name!r}, which it does not have now. "
                f"Give it another name, or delete {folder}."
            )
    plans = {split: plan_hash(images, side, fit) for split, images in plan.splits.items()}
    partial = _partial_folder(folder)
    if _complete_plans(folder) != plans:
        if _complete_plans(partial) != plans:
            about = {"format": stores.FORMAT, "version": stores.VERSION, **about, "source": plan.layout}
            about |= {"interpolation": INTERPOLATION, "preparation": plans}
            jobs = [
                _Job(partial / split, images, about | {"split": split, "plan": plans[split]}, broken, progress)
                for split, images in plan.splits.items()
            ]
            _pack_all(partial, jobs)
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
        manifests = {file.parent.name: Store(file.parent).manifest for file in folder.glob("[!.]*/manifest.json")}
    except OtherVersionError:
        raise
    except FileFormatError:
        return {}
    plans = {split: str(manifest.get("plan")) for split, manifest in manifests.items()}
    needed = {split for manifest in manifests.values() for split in manifest.get("preparation", ())}
    return plans if needed <= plans.keys() and stores.are_together(manifests) else {}


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


def _pack_all(partial: Path, jobs: Sequence[_Job]) -> None:
    """Pack all splits into the partial folder; it is complete when every split has its manifest."""
    for leftover in set(partial.glob("*")) - {job.folder for job in jobs}:
        shutil.rmtree(leftover)
    for job in jobs:
        (job.folder / "manifest.json").unlink(missing_ok=True)
    for job in jobs:
        try:
            job.folder.mkdir(parents=True, exist_ok=True)
            state = job.resume()
            job.read_all(state)
            job.describe(dict(state["broken"]))
        except OSError as error:
            raise NearshotError(f"{job.label} could not be written to {job.folder}: {error}.") from error


def _read_state(split: Path) -> dict[str, Any]:
    """Return the progress of an interrupted split; an empty state if it is unknown."""
    try:
        state = json.loads((split / "state.json").read_text())
    except (OSError, ValueError):
        state = None
    return state if isinstance(state, dict) else {}


def _write_json(file: Path, content: Mapping[str, Any], indent: int | None = None) -> None:
    with atomic_write(file) as opened:
        opened.write(json.dumps(content, indent=indent).encode())


@dataclass(frozen=True)
class _Job:
    """One split to pack: where, from which images, and what its manifest says about it."""

    folder: Path
    images: Sequence[SourceImage]
    manifest: Mapping[str, Any]
    broken: Broken
    progress: bool | None

    @property
    def label(self) -> str:
        return f"{self.manifest['dataset']} {self.manifest['split']}"

    def resume(self) -> dict[str, Any]:
        """Return the progress of an interrupted split, with its files cut back to it; or start again."""
        side, fit, plan = (self.manifest[key] for key in ("side", "fit", "plan"))
        state = _read_state(self.folder)
        if self.broken == "refuse" and state.get("broken"):
            state = {}  # images were skipped, which are an error now
        n_kept = state.get("n_read", 0) - len(state.get("broken", ()))
        files = {self.folder / "images.u8": n_kept * side**2 * 3, self.folder / "hashes.bin": n_kept * HASH_BYTES}
        if state.get("plan") != plan or any(not f.is_file() or f.stat().st_size < size for f, size in files.items()):
            names = plan_hash(self.images, side, fit, stamped=False)
            state = {"plan": plan, "names": names, "n_read": 0, "broken": []}
            files = dict.fromkeys(files, 0)
            _write_json(self.folder / "state.json", state)
        for file, size in files.items():
            with file.open("ab") as opened:
                opened.truncate(size)
        return state

    def read_all(self, state: dict[str, Any]) -> None:
        """Append the images to the split's files, and record the progress after every few hundred."""
        side, fit = self.manifest["side"], self.manifest["fit"]
        steps = range(state["n_read"], len(self.images), IMAGES_PER_STEP)
        # Threads that read small images would mostly wait for each other, for the interpreter.
        in_threads = any(image.n_bytes > LARGE for image in self.images[:100])
        with (
            ThreadPoolExecutor() as pool,
            (self.folder / "images.u8").open("ab") as pixel_file,
            (self.folder / "hashes.bin").open("ab") as hash_file,
        ):
            for start in with_progress(steps, self.label, show=self.progress):
                batch = self.images[start : start + IMAGES_PER_STEP]
                found = list((pool.map if in_threads else map)(lambda image: _read(image, side, fit), batch))
                for index, error in enumerate(found, start):
                    if isinstance(error, FileFormatError):
                        if self.broken == "refuse":
                            raise FileFormatError(f"{error} Repair the file, or skip such images with broken='skip'.")
                        state["broken"].append([index, str(error)])
                good = [one for one in found if not isinstance(one, FileFormatError)]
                pixel_file.write(b"".join(pixels for pixels, _ in good))
                hash_file.write(b"".join(digest for _, digest in good))
                pixel_file.flush()
                hash_file.flush()
                state["n_read"] = start + len(batch)
                _write_json(self.folder / "state.json", state)

    def describe(self, skipped: Mapping[int, str]) -> None:
        """Write the labels, the names and, last, the manifest."""
        images = [image for index, image in enumerate(self.images) if index not in skipped]
        if not images:
            raise InputError(f"None of the {counted(len(self.images), 'image')} of {self.label} could be read.")
        class_names = sorted({image.class_name for image in images})
        number = {name: label for label, name in enumerate(class_names)}
        labels = np.array([number[image.class_name] for image in images], dtype=np.int64)
        names = [image.name for image in images]
        hashes = np.fromfile(self.folder / "hashes.bin", np.uint8).reshape(-1, HASH_BYTES)
        found = {"n_images": len(images), "class_names": class_names, "broken": list(skipped.values())}
        manifest = {**self.manifest, **found}
        manifest["fingerprint"] = stores.fingerprint_of(manifest, hashes, labels, names)
        with atomic_write(self.folder / "labels.npy") as file:
            np.save(file, labels)
        with atomic_write(self.folder / "names.txt") as file:
            file.write("\n".join(names).encode())
        _write_json(self.folder / "manifest.json", manifest, indent=1)


def _read(source: SourceImage, side: int, fit: Fit) -> tuple[bytes, bytes] | FileFormatError:
    """Return the pixels of an image and their hash, or the error of an image that cannot be read."""
    try:
        data = source.read()
        image = decode(data, source.name) if isinstance(data, bytes) else Image.fromarray(data)
        pixels = fit_to_square(image, side, fit, source.name)
        return pixels.tobytes(), stores.hash_of(pixels).tobytes()
    except FileFormatError as error:
        return error
