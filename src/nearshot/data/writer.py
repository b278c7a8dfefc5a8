"""Packing pictures into a store: read, resized and written once, in a way that survives being killed."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np
from PIL import Image

from nearshot.data.commit import clear_leftovers, finish_placing, partial_folder, place_splits
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
)
from nearshot.errors import FileFormatError, InputError, NearshotError
from nearshot.io import atomic_write
from nearshot.progress import with_progress
from nearshot.text import counted, print_message

__all__ = ["Broken", "Picture", "begun_plans", "plan_hash", "write_splits"]

PICTURES_PER_STEP = 512
INTERPOLATION = "bilinear, Pillow"
Broken = Literal["refuse", "skip"]


@dataclass(frozen=True)
class Picture:
    """A picture of a dataset, before it is read.

    Attributes:
        class_name: the name of its class.
        name: its name in the source, for messages and for the record.
        read: returns the file's bytes, or pixels (height, width, 3).
        stamp: another where the file was changed; empty where no file is its own.
    """

    class_name: str
    name: str
    read: Callable[[], bytes | Pixels]
    stamp: str = ""


@dataclass(frozen=True)
class _Job:
    """What is to be made: all that decides a store's content, and its place."""

    folder: Path
    pictures: Sequence[Picture]
    dataset: str
    split: str
    source: str
    side: int
    fit: Fit
    origin: str | None

    @property
    def partial(self) -> Path:
        """Where the work lies until it is done."""
        return partial_folder(self.folder)

    @cached_property
    def plan(self) -> str:
        """What goes in and how; an interrupted job is continued only if it is the same."""
        return plan_hash(self.pictures, self.side, self.fit)

    @cached_property
    def names(self) -> str:
        """The same by the pictures' names alone, whatever was changed in them since."""
        return plan_hash(self.pictures, self.side, self.fit, stamped=False)


def plan_hash(pictures: Sequence[Picture], side: int, fit: Fit = "crop", *, stamped: bool = True) -> str:
    """Return a hash of which pictures a store is made of, and how; if stamped, a changed picture is another."""
    stamps = [f"\t{one.stamp}" if stamped and one.stamp else "" for one in pictures]
    listing = "\n".join(f"{one.class_name}\t{one.name}{stamp}" for one, stamp in zip(pictures, stamps, strict=True))
    return hashlib.sha256(f"{VERSION} {side} {fit} {INTERPOLATION}\n{listing}".encode()).hexdigest()


def begun_plans(folder: Path) -> dict[str, str]:
    """Return the hash of the names of what each split is made of that was begun in a folder and is not finished."""
    states = {partial: _state_of(partial) for partial in sorted(folder.glob(".*.partial"))}
    return {
        partial.name.removeprefix(".").removesuffix(".partial"): str(state.get("names", state["plan"]))
        for partial, state in states.items()
        if "plan" in state
    }


def write_splits(
    folder: Path,
    splits: Mapping[str, Sequence[Picture]],
    *,
    dataset: str,
    source: str,
    side: int,
    fit: Fit = "crop",
    broken: Broken = "refuse",
    origin: str | None = None,
    progress: bool | None = None,
) -> dict[str, Store]:
    """Read, resize and pack the pictures of a dataset's splits, or go on where an earlier call was stopped.

    Until all splits are complete, what there is lies in folders of other names, and what was there before stays. A
    finished split that was made of the same pictures in the same way is left as it is; one that does not open is packed
    anew; one that is not among `splits` is an error. Two processes must not write a dataset at once; `prepare_plan`
    sees to that.

    Args:
        folder: where the splits will be.
        splits: the pictures that each is made of, in order.
        dataset: the dataset's name, for the record.
        source: which layout it was read from, for the record.
        side: the side of the square images.
        fit: how pictures are brought to it.
        broken: whether pictures that cannot be read stop everything, or are left out and listed in the manifest.
        origin: the path of the user's own folder or archive, for the record.
        progress: whether to show bars; by default on a terminal.
    """
    if broken not in ("refuse", "skip"):
        raise InputError(f"broken must be 'refuse' or 'skip', not {broken!r}.")
    jobs = [
        _Job(folder / split, splits[split], dataset, split, source, side, fit, origin)
        for split in sorted(splits, key="train".__eq__)  # in the order in which they take their places
    ]
    for job in jobs:
        if not job.pictures:
            raise InputError(f"{dataset} {job.split} has no pictures.")
    # An earlier preparation that was stopped when all was packed; if it cannot be finished, this one replaces it.
    is_left_over = not finish_placing(folder)
    _check_no_other(folder, splits, dataset)
    there = {job.split: store for job in jobs if (store := _finished(job, progress)) is not None}
    wanted = [job for job in jobs if job.split not in there]
    for job in wanted:
        try:
            _pack(job, broken, progress)
        except OSError as error:
            raise NearshotError(f"{dataset} {job.split} could not be written to {job.folder}: {error}.") from error
    if wanted or is_left_over or not are_together({split: store.manifest for split, store in there.items()}):
        for split in there:  # nothing that was begun and given up is to take the place of one that stays
            shutil.rmtree(partial_folder(folder / split), ignore_errors=True)
        place_splits(folder, {job.split: job.plan for job in jobs})
    clear_leftovers(folder)
    return {split: Store(folder / split) for split in splits}


def _check_no_other(folder: Path, splits: Collection[str], dataset: str) -> None:
    """Refuse a split of an earlier plan that may have classes which are in another split of this one."""
    for manifest in sorted(folder.glob("[!.]*/manifest.json")):
        if manifest.parent.name not in splits:
            raise InputError(
                f"{dataset!r} was prepared before with a split {manifest.parent.name!r}, which it does not have now. "
                f"Give it another name, or delete {folder}."
            )


def _finished(job: _Job, progress: bool | None) -> Store | None:
    """Return a split that is in its place, opens, and is made of the same pictures in the same way."""
    if not (job.folder / "manifest.json").is_file():
        return None
    try:
        store = Store(job.folder)
    except OtherVersionError:
        raise
    except FileFormatError:
        what = f"What was prepared of {job.dataset} {job.split} in {job.folder}"
        print_message(f"{what} does not open; it is packed anew.", show=progress)
        return None
    return store if store.manifest.get("plan") == job.plan else None


def _pack(job: _Job, broken: Broken, progress: bool | None) -> None:
    """Make a split beside its place, complete but for its name."""
    job.partial.mkdir(parents=True, exist_ok=True)
    (job.partial / "manifest.json").unlink(missing_ok=True)  # which says that it is complete
    state = _resume(job, broken)
    _read_all(job, state, broken, progress)
    _describe(job, state)


def _state_of(partial: Path) -> dict[str, Any]:
    """Return how far an interrupted job came, and of what plan it is; nothing where that is not known."""
    try:
        noted = json.loads((partial / "state.json").read_text())
    except (OSError, ValueError):
        noted = None
    return noted if isinstance(noted, dict) else {}


def _resume(job: _Job, broken: Broken) -> dict[str, Any]:
    """Return how far an interrupted job came, with its files cut back to there; or start anew."""
    state = _state_of(job.partial)
    if broken == "refuse" and state.get("broken"):
        state = {}  # it left pictures out, which now have to be mended
    sizes = {"images.u8": job.side**2 * 3, "hashes.bin": HASH_BYTES, "kept.bin": 8}
    files = {job.partial / name: size * state.get("n_kept", 0) for name, size in sizes.items()}
    if state.get("plan") != job.plan or any(not f.is_file() or f.stat().st_size < size for f, size in files.items()):
        state = {"plan": job.plan, "names": job.names, "n_read": 0, "n_kept": 0, "broken": []}
        files = dict.fromkeys(files, 0)
        _note(job, state)
    for file, size in files.items():
        file.touch()
        with file.open("r+b") as opened:
            opened.truncate(size)
    return state


def _note(job: _Job, state: dict[str, Any]) -> None:
    """Write down how far a job came."""
    with atomic_write(job.partial / "state.json") as file:
        file.write(json.dumps(state).encode())


def _read_all(job: _Job, state: dict[str, Any], broken: Broken, progress: bool | None) -> None:
    """Append picture after picture, and note how far it came after every few hundred."""
    steps = range(state["n_read"], len(job.pictures), PICTURES_PER_STEP)
    with (
        ThreadPoolExecutor() as pool,
        (job.partial / "images.u8").open("ab") as images,
        (job.partial / "hashes.bin").open("ab") as hashes,
        (job.partial / "kept.bin").open("ab") as kept,
    ):
        for start in with_progress(steps, f"{job.dataset} {job.split}", show=progress):
            stop = min(start + PICTURES_PER_STEP, len(job.pictures))
            results: Iterator[Pixels | FileFormatError] = pool.map(
                lambda picture: _read(picture, job.side, job.fit), job.pictures[start:stop]
            )
            for index, pixels in enumerate(results, start):
                if isinstance(pixels, FileFormatError):
                    if broken == "refuse":
                        raise FileFormatError(
                            f"{pixels} Mend the file, or leave such pictures out: nearshot data prepare … --broken "
                            "skip (in Python, broken='skip')."
                        )
                    state["broken"].append(str(pixels))
                    continue
                images.write(pixels.tobytes())
                hashes.write(hash_of(pixels).tobytes())
                kept.write(np.int64(index).tobytes())
                state["n_kept"] += 1
            for file in (images, hashes, kept):
                file.flush()
            state["n_read"] = stop
            _note(job, state)


def _describe(job: _Job, state: dict[str, Any]) -> None:
    """Write what describes the images, the manifest last."""
    kept = np.fromfile(job.partial / "kept.bin", np.int64)
    pictures = [job.pictures[index] for index in kept]
    if not pictures:
        n_pictures = counted(len(job.pictures), "picture")
        raise InputError(f"Of {n_pictures} of {job.dataset} {job.split}, none could be read.")
    class_names = sorted({picture.class_name for picture in pictures})
    number = {name: label for label, name in enumerate(class_names)}
    labels = np.array([number[picture.class_name] for picture in pictures], dtype=np.int64)
    names = [picture.name for picture in pictures]
    hashes = np.fromfile(job.partial / "hashes.bin", np.uint8).reshape(-1, HASH_BYTES)
    manifest: dict[str, Any] = {
        "format": FORMAT,
        "version": VERSION,
        "dataset": job.dataset,
        "split": job.split,
        "source": job.source,
        "n_images": len(pictures),
        "side": job.side,
        "fit": job.fit,
        "interpolation": INTERPOLATION,
        "class_names": class_names,
        "broken": state["broken"],
        "plan": job.plan,
        "names": job.names,
        "origin": job.origin,
    }
    manifest["fingerprint"] = fingerprint_of(manifest, hashes, labels, names)
    with atomic_write(job.partial / "labels.npy") as file:
        np.save(file, labels)
    with atomic_write(job.partial / "names.txt") as file:
        file.write("\n".join(names).encode())
    with atomic_write(job.partial / "manifest.json") as file:
        file.write(json.dumps(manifest, indent=1).encode())


def _read(picture: Picture, side: int, fit: Fit) -> Pixels | FileFormatError:
    try:
        data = picture.read()
        image = decode(data, picture.name) if isinstance(data, bytes) else Image.fromarray(data)
        return fit_to_square(image, side, fit, picture.name)
    except FileFormatError as error:
        return error
