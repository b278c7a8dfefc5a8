"""Putting a dataset's splits in their places: all of them or none, whenever that is stopped.

Splits are packed beside their places. When all are complete, a note of which they are is written, and from then on the
new ones count: they take their places one after the other, the training split last, and the note is removed. Whoever
finds a note finishes what it says. In each manifest stands of what all splits of its preparation are made.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from nearshot.data.store import PLACING, read_manifest
from nearshot.errors import FileFormatError, InputError, NearshotError
from nearshot.io import atomic_write

__all__ = ["clear_leftovers", "finish_placing", "partial_folder", "place_splits"]


def partial_folder(folder: Path) -> Path:
    """Return where a split lies until it takes its place."""
    return folder.with_name(f".{folder.name}.partial")


def place_splits(folder: Path, preparation: Mapping[str, str]) -> None:
    """Put the splits of a preparation in their places, all or none.

    Args:
        folder: where they will be.
        preparation: the hash of each split's plan; each lies complete beside its place, or is in it already.
    """
    try:
        with atomic_write(folder / PLACING) as file:
            file.write(json.dumps(preparation).encode())
    except OSError as error:
        raise _could_not(folder, error) from error
    if not finish_placing(folder):  # pragma: no cover (they were there a moment ago)
        raise FileFormatError(f"Splits that were packed in {folder} are gone. Prepare the dataset again.")


def finish_placing(folder: Path) -> bool:
    """Put splits in their places where that was begun; return False if some of them are neither there nor beside it."""
    try:
        content = (folder / PLACING).read_bytes()
    except FileNotFoundError:
        return True
    except OSError as error:
        raise _could_not(folder, error) from error
    try:
        preparation: dict[str, str] = dict(json.loads(content))
    except (ValueError, TypeError):
        return False
    splits = {}
    for split, plan in preparation.items():
        places = (partial_folder(folder / split), folder / split)
        found = next((place for place in places if _plan_of(place) == plan), None)
        if found is None:
            return False
        splits[split] = found
    try:
        for split in sorted(splits, key="train".__eq__):
            _describe(splits[split], preparation)
            if splits[split] != folder / split:
                _put(splits[split], folder / split)
        (folder / PLACING).unlink()
    except OSError as error:
        raise _could_not(folder, error) from error
    clear_leftovers(folder)
    return True


def clear_leftovers(folder: Path) -> None:
    """Remove what lies beside finished splits: those that they replaced, and those that were begun and given up."""
    for path in [*folder.glob(".*.old"), *folder.glob(".*.partial")]:
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        else:
            with suppress(OSError):
                path.unlink()


def _describe(split: Path, preparation: Mapping[str, str]) -> None:
    """Note in a complete split of which preparation it is, and leave only what belongs to it."""
    manifest = read_manifest(split)
    if manifest.get("preparation") != preparation:
        with atomic_write(split / "manifest.json") as file:
            file.write(json.dumps(manifest | {"preparation": preparation}, indent=1).encode())
    for leftover in [split / "state.json", split / "kept.bin", *split.glob(".*.partial")]:
        leftover.unlink(missing_ok=True)


def _put(split: Path, place: Path) -> None:
    """Give a complete split its name."""
    old = place.with_name(f".{place.name}.old")
    shutil.rmtree(old, ignore_errors=True)
    if place.exists():  # deleting takes longer than two new names, and somebody may want to open it
        place.rename(old)
    split.rename(place)


def _plan_of(split: Path) -> str | None:
    """Return the hash of what a complete split is made of; None where there is none."""
    try:
        plan: str | None = read_manifest(split).get("plan")
    except (InputError, FileFormatError):
        return None
    return plan


def _could_not(folder: Path, error: OSError) -> NearshotError:
    return NearshotError(f"The splits in {folder} could not be put in their places: {error}.")
