"""Packing pictures into a store: read, resized and written once, in a way that survives being killed."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np
from PIL import Image

from nearshot.data.pictures import Fit, Pixels, decode, fit_to_square
from nearshot.data.store import FORMAT, HASH_BYTES, VERSION, OtherVersionError, Store, fingerprint_of, hash_of
from nearshot.errors import FileFormatError, InputError, NearshotError
from nearshot.files import write_whole
from nearshot.progress import with_progress
from nearshot.telling import counted, say

__all__ = ["Broken", "Picture", "plan_hash", "write_split"]

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
    """

    class_name: str
    name: str
    read: Callable[[], bytes | Pixels]


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
        return self.folder.with_name(f".{self.folder.name}.partial")

    @cached_property
    def plan(self) -> str:
        """What goes in and how; an interrupted job is continued only if it is the same."""
        return plan_hash(self.pictures, self.side, self.fit)


def plan_hash(pictures: Sequence[Picture], side: int, fit: Fit = "crop") -> str:
    """Return a hash of which pictures a store is made of, and how."""
    listing = "\n".join(f"{picture.class_name}\t{picture.name}" for picture in pictures)
    return hashlib.sha256(f"{VERSION} {side} {fit} {INTERPOLATION}\n{listing}".encode()).hexdigest()


def write_split(
    folder: Path,
    pictures: Sequence[Picture],
    *,
    dataset: str,
    split: str,
    source: str,
    side: int,
    fit: Fit = "crop",
    broken: Broken = "refuse",
    origin: str | None = None,
    progress: bool | None = None,
) -> Store:
    """Read, resize and pack the pictures of a split, or go on where an earlier call was stopped.

    Until all is done, what there is lies in a folder of another name. A finished split that was made of the same
    pictures in the same way is left as it is; one that does not open is packed anew. Two processes must not write a
    split at once; `prepare_plan` sees to that.

    Args:
        folder: where the split will be.
        pictures: what it is made of, in order.
        dataset: the dataset's name, for the record.
        split: the split's name, for the record.
        source: which layout it was read from, for the record.
        side: the side of the square images.
        fit: how pictures are brought to it.
        broken: whether pictures that cannot be read stop everything, or are left out and listed in the manifest.
        origin: the path of the user's own folder or archive, for the record.
        progress: whether to show a bar; by default on a terminal.
    """
    if not pictures:
        raise InputError(f"{dataset} {split} has no pictures.")
    if broken not in ("refuse", "skip"):
        raise InputError(f"broken must be 'refuse' or 'skip', not {broken!r}.")
    job = _Job(folder, pictures, dataset, split, source, side, fit, origin)
    if (folder / "manifest.json").is_file():
        try:
            store = Store(folder)
        except OtherVersionError:
            raise
        except FileFormatError:
            say(f"What was prepared of {dataset} {split} in {folder} does not open; it is packed anew.", show=progress)
        else:
            if store.manifest.get("plan") == job.plan:
                return store
    try:
        job.partial.mkdir(parents=True, exist_ok=True)
        state = _resume(job)
        _pack(job, state, broken, progress)
        _finish(job, state)
    except OSError as error:
        raise NearshotError(f"{dataset} {split} could not be written to {folder}: {error}.") from error
    return Store(folder)


def _resume(job: _Job) -> dict[str, Any]:
    """Return how far an interrupted job came, with its files cut back to there; or start anew."""
    try:
        noted = json.loads((job.partial / "state.json").read_text())
    except (OSError, ValueError):
        noted = None
    state: dict[str, Any] = noted if isinstance(noted, dict) else {}
    sizes = {"images.u8": job.side**2 * 3, "hashes.bin": HASH_BYTES, "kept.bin": 8}
    files = {job.partial / name: size * state.get("n_kept", 0) for name, size in sizes.items()}
    if state.get("plan") != job.plan or any(not f.is_file() or f.stat().st_size < size for f, size in files.items()):
        state = {"plan": job.plan, "n_read": 0, "n_kept": 0, "broken": []}
        files = dict.fromkeys(files, 0)
    for file, size in files.items():
        file.touch()
        with file.open("r+b") as opened:
            opened.truncate(size)
    return state


def _pack(job: _Job, state: dict[str, Any], broken: Broken, progress: bool | None) -> None:
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
            with write_whole(job.partial / "state.json") as note:
                note.write(json.dumps(state).encode())


def _finish(job: _Job, state: dict[str, Any]) -> None:
    """Write what describes the images, the manifest last, and give the folder its name."""
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
        "origin": job.origin,
    }
    manifest["fingerprint"] = fingerprint_of(manifest, hashes, labels, names)
    with write_whole(job.partial / "labels.npy") as file:
        np.save(file, labels)
    with write_whole(job.partial / "names.txt") as file:
        file.write("\n".join(names).encode())
    with write_whole(job.partial / "manifest.json") as file:
        file.write(json.dumps(manifest, indent=1).encode())
    old = job.folder.with_name(f".{job.folder.name}.old")
    shutil.rmtree(old, ignore_errors=True)
    if job.folder.exists():  # deleting takes longer than two new names, and somebody may want to open it
        job.folder.rename(old)
    job.partial.rename(job.folder)
    shutil.rmtree(old, ignore_errors=True)
    for leftover in ("state.json", "kept.bin"):
        (job.folder / leftover).unlink()


def _read(picture: Picture, side: int, fit: Fit) -> Pixels | FileFormatError:
    try:
        data = picture.read()
        image = decode(data, picture.name) if isinstance(data, bytes) else Image.fromarray(data)
        return fit_to_square(image, side, fit, picture.name)
    except FileFormatError as error:
        return error
