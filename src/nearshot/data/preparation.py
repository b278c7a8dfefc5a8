"""Preparing a dataset: from whatever it is distributed in to one store a split, once."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from nearshot.data.archives import NoFiles, open_files
from nearshot.data.downloads import download
from nearshot.data.packing import Broken, write_split
from nearshot.data.pictures import Fit
from nearshot.data.sources import SOURCES, Plan
from nearshot.data.store import Store, data_folder
from nearshot.errors import InputError, look_up

__all__ = ["prepare", "prepare_plan"]


def prepare(
    name: str,
    paths: str | Path | Iterable[str | Path] = (),
    *,
    data_dir: str | Path | None = None,
    side: int | None = None,
    fit: Fit = "crop",
    broken: Broken = "refuse",
    progress: bool | None = None,
) -> dict[str, Store]:
    """Prepare a known dataset from its files, or go on where that was interrupted; return the store of each split.

    Args:
        name: one of `SOURCES`.
        paths: the folder or archive, or several archives that belong together. Without any, "glyphs" is made, and
            "cifar-fs" and "omniglot" are downloaded.
        data_dir: where prepared datasets live; by default $NEARSHOT_DATA, or ~/.cache/nearshot.
        side: the side of the square images; by default the dataset's usual one.
        fit: how pictures of another shape are brought to it.
        broken: whether pictures that cannot be read stop everything, or are left out and listed in the manifest.
        progress: whether to show bars; by default on a terminal.
    """
    source = look_up(SOURCES, name, "dataset")
    paths = [paths] if isinstance(paths, str | Path) else list(paths)
    if not paths and source.downloads:
        folder = data_folder(data_dir) / "downloads"
        paths = [download(wanted, folder, progress=progress) for wanted in source.downloads]
    if source.needs_files and not paths:
        raise InputError(f"Say where the files of {name!r} are: {source.where}.")
    if not source.needs_files and paths:
        raise InputError(f"{name!r} needs no files; it is made here.")
    plan = source.plan(open_files(paths) if source.needs_files else NoFiles())
    return prepare_plan(
        name, plan, data_dir=data_dir, side=side or source.side, fit=fit, broken=broken, progress=progress
    )


def prepare_plan(
    name: str,
    plan: Plan,
    *,
    side: int,
    data_dir: str | Path | None = None,
    fit: Fit = "crop",
    broken: Broken = "refuse",
    progress: bool | None = None,
) -> dict[str, Store]:
    """Prepare what a source found, such as `plan_folder` or `plan_omniglot` with options of its own."""
    if not 1 <= side <= 4096:
        raise InputError(f"The images' side must be from 1 to 4096, not {side}.")
    if not name or name.startswith(".") or set(name) & set("/\\"):
        raise InputError(f"A dataset's name must be that of a folder, not {name!r}.")
    folder = data_folder(data_dir) / name / str(side)
    return {
        split: write_split(
            folder / split,
            pictures,
            dataset=name,
            split=split,
            source=plan.layout,
            side=side,
            fit=fit,
            broken=broken,
            progress=progress,
        )
        for split, pictures in plan.splits.items()
    }
