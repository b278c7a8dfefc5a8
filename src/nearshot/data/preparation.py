"""Prepare a dataset: from the form that it is distributed in to one store per split, once.

The user's own images are given by the path of a folder or archive, and are prepared under its name.
One process at a time prepares a dataset; others wait for it.
"""

import os
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from shlex import quote
from typing import TypedDict, Unpack

from nearshot.data.datasets import SOURCES, Plan, plan_folder
from nearshot.data.downloads import download
from nearshot.data.images import Fit
from nearshot.data.readers import ARCHIVE_SUFFIXES, Files, open_files
from nearshot.data.store import (
    Store,
    data_folder,
    prepared_datasets,
    prepared_manifests,
    read_manifest,
)
from nearshot.data.writer import Broken, restore_interrupted, write_splits
from nearshot.errors import FileFormatError, InputError, NearshotError, did_you_mean, look_up
from nearshot.io import FileLock
from nearshot.text import print_message

__all__ = ["PrepareOptions", "open_or_prepare", "prepare", "prepare_folder", "prepare_plan"]

FOLDER_SIDE = 84
LOCK = ".lock"
NO_FILES = Files("nothing", {})
OTHER_FOLDERS = ("downloads", "embeddings")  # in the data folder, beside those of datasets


class PrepareOptions(TypedDict, total=False):
    """How a dataset is prepared."""

    data_dir: str | Path | None
    """The folder of prepared datasets; see `data_folder`."""
    fit: Fit
    """How images are resized to a square."""
    broken: Broken
    """Whether images that cannot be read are refused, or skipped and listed in the manifest."""
    progress: bool | None
    """Whether to show progress bars; by default on a terminal."""


def prepare(
    name: str,
    paths: str | Path | Iterable[str | Path] = (),
    *,
    side: int | None = None,
    **options: Unpack[PrepareOptions],
) -> dict[str, Store]:
    """Prepare a known dataset from its files, or resume an interrupted preparation; return the store of each split.

    Args:
        name: one of `SOURCES`.
        paths: the folder or archive, or several archives that belong together. Without any,
            "glyphs" is drawn, and "cifar-fs" and "omniglot" are downloaded.
        side: the side of the square images; by default the dataset's usual one.
        options: `data_dir`, `fit`, `broken` and `progress`; see `PrepareOptions`.
    """
    source, side = look_up(SOURCES, name, "dataset"), _checked_side(name, side)
    paths = [paths] if isinstance(paths, str | Path) else list(paths)
    if not paths and source.downloads:
        folder, progress = (
            data_folder(options.get("data_dir")) / "downloads",
            options.get("progress"),
        )
        with _exclusive(folder, show=progress):
            paths = [download(wanted, folder, progress=progress) for wanted in source.downloads]
    if source.needs_files and not paths:
        raise InputError(
            f"paths (--from PATH) must say where the files of {name!r} are: {source.where}."
        )
    if not source.needs_files and paths:
        raise InputError(f"{name!r} needs no files; it is made here.")
    files = open_files(paths) if paths else NO_FILES
    try:
        plan = source.plan(files)
    except NearshotError:
        raise
    except (LookupError, TypeError, AttributeError, ValueError) as error:  # of a pickle
        raise FileFormatError(
            f"{files.label} does not have the content of {name!r}: {error!r}."
        ) from error
    return prepare_plan(name, plan, side=side, **options)


def prepare_folder(
    paths: str | Path | Iterable[str | Path],
    *,
    name: str | None = None,
    table: str | None = None,
    classes: Mapping[str, Sequence[str]] | None = None,
    fractions: Mapping[str, float] | None = None,
    seed: int = 0,
    side: int | None = None,
    **options: Unpack[PrepareOptions],
) -> dict[str, Store]:
    """Prepare the user's own images, in a folder or in archives; return the store of each split.

    `table`, `classes`, `fractions` and `seed` are those of `plan_folder`. By default the dataset
    has the name of the folder, or of the archive without its suffix, and images of side 84. For the
    other options see `PrepareOptions`.
    """
    places = [
        Path(path).expanduser() for path in ([paths] if isinstance(paths, str | Path) else paths)
    ]
    files = open_files(places)
    name = prepared_name(places[0], options.get("data_dir")) if name is None else name
    side = _checked_side(name, FOLDER_SIDE if side is None else side)
    plan = plan_folder(files, table=table, classes=classes, fractions=fractions, seed=seed)
    return prepare_plan(name, plan, side=side, origin=str(places[0].resolve()), **options)


def prepare_plan(
    name: str,
    plan: Plan,
    *,
    side: int,
    origin: str | None = None,
    **options: Unpack[PrepareOptions],
) -> dict[str, Store]:
    """Prepare the images of a plan, such as that of `plan_folder` or `plan_omniglot` with options.

    `side` is that of the square images, and `origin` the path that they come from, recorded in the
    manifest.
    """
    _checked_side(name, side)
    folder = data_folder(options.get("data_dir")) / name
    with _exclusive(folder, show=options.get("progress")):
        return _write(folder, plan, side, origin, options)


def _write(
    folder: Path, plan: Plan, side: int, origin: str | None, options: PrepareOptions
) -> dict[str, Store]:
    """Write the splits of a plan to a dataset's folder; the caller holds the lock."""
    progress, broken = options.get("progress"), options.get("broken", "refuse")
    for remark in plan.remarks:
        print_message(remark, show=progress)
    about = {
        "dataset": folder.name,
        "side": side,
        "fit": options.get("fit", "crop"),
        "origin": origin,
    }
    return write_splits(folder / str(side), plan, about, broken=broken, progress=progress)


def open_or_prepare(
    dataset: str | Path, split: str, data_dir: str | Path | None = None, *, side: int | None = None
) -> Store:
    """Open a split. Prepare it first if that needs no options: for a path, or for a dataset that is made here.

    A prepared dataset is opened unchanged, with the options that it was prepared with. If images
    were added to its folder or removed since, a warning says how to prepare it again.

    Args:
        dataset: a name, or the path of the user's own folder or archive; a string with a slash is a
            path.
        split: "train", "val" or "test".
        data_dir: the folder of prepared datasets; see `data_folder`.
        side: the images' side; by default the one that it is prepared with, or its usual one.
    """
    path, name = given_path(dataset), prepared_name(dataset, data_dir)
    manifests = prepared_manifests(name, data_dir, side=side)
    if not manifests:
        _prepare_by_default(name, path, data_dir, side)
    elif path is not None and path.is_dir():
        changed = max(Path(folder).stat().st_mtime for folder, _, _ in os.walk(path))
        if changed > max(manifest.stat().st_mtime for manifest in manifests):
            command = _command(name, data_dir, side, path)
            warnings.warn(
                f"{path} has changed since it was prepared. To use its present images: {command}",
                stacklevel=2,
            )
    try:
        return Store.open(name, split, data_dir, side=side)
    except FileFormatError as error:
        raise FileFormatError(f"{error} Run: {_command(name, data_dir, side, path)}") from error


def _prepare_by_default(
    name: str, path: Path | None, data_dir: str | Path | None, side: int | None
) -> None:
    """Prepare a folder, or a dataset that is made here, without options; raise an error for any other."""
    folder, plan = data_folder(data_dir) / name, None
    if path is not None:
        plan = plan_folder(open_files(path))
    elif name in SOURCES and not SOURCES[name].needs_files:
        plan = SOURCES[name].plan(NO_FILES)
    if plan is not None or folder.is_dir():
        usual_side = _checked_side(name, side)
        with _exclusive(folder):
            restore_interrupted(folder)
            if plan is not None and not prepared_manifests(
                name, data_dir, side=side
            ):  # nor by whoever had the lock
                _write(folder, plan, usual_side, None if path is None else str(path.resolve()), {})
    if not prepared_manifests(name, data_dir, side=side):
        here = f" Do you mean the folder ./{name}?" if Path(name).is_dir() else ""
        hint = here or did_you_mean(name, {*SOURCES, *prepared_datasets(data_dir)})
        command = _command(name, data_dir, side)
        raise InputError(
            f"Dataset {name!r} is not prepared in {folder.parent}.{hint} Run: {command}"
        )


def given_path(dataset: str | Path) -> Path | None:
    """Return the path that a dataset is given by, or None if it is given by name.

    A string is a path if it has a slash, or is "." or "..", or begins with "~".
    """
    is_path = (
        isinstance(dataset, Path)
        or dataset in (".", "..")
        or dataset[:1] == "~"
        or set(dataset) & set("/\\")
    )
    return Path(dataset).expanduser() if is_path else None


def prepared_name(dataset: str | Path, data_dir: str | Path | None = None) -> str:
    """Return the name under which a dataset is prepared: its own, or that of the folder or archive at a path.

    A name that belongs to a known dataset, or to another folder's images, is an error.
    """
    path = given_path(dataset)
    if path is None:
        return str(dataset)
    path = path.resolve()
    suffix = next((suffix for suffix in ARCHIVE_SUFFIXES if path.name.endswith(suffix)), "")
    name = path.name.removesuffix(suffix)
    advice = f"Give it another name: nearshot data prepare NAME --from {quote(str(path))}"
    if name in SOURCES:
        raise InputError(f"{path} has the name of a known dataset. {advice}")
    for origin in _origins(name, data_dir) - {str(path)}:
        raise InputError(
            f"The dataset {name!r} in {data_folder(data_dir)} is of {origin}, not of {path}. {advice}"
        )
    return name


def _origins(name: str, data_dir: str | Path | None) -> set[str]:
    """Return the paths that a dataset was prepared from, at any side, where they are known."""
    origins = set()
    for manifest in prepared_manifests(name, data_dir):
        with suppress(FileFormatError):
            origins.add(read_manifest(manifest.parent).get("origin"))
    return {origin for origin in origins if origin is not None}


@contextmanager
def _exclusive(folder: Path, *, show: bool | None = None) -> Iterator[None]:
    """Hold a folder's lock; if another process holds it, say so and wait."""
    lock = FileLock(folder / LOCK)
    with suppress(
        OSError, NearshotError
    ):  # a read-only folder has none; if it has to be written, that is the error
        folder.mkdir(parents=True, exist_ok=True)
        if not lock.acquire():
            print_message(f"Another process is writing to {folder}; waiting for it.", show=show)
            lock.acquire(wait=True)
    try:
        yield
    finally:
        lock.release(remove=True)


def _checked_side(name: str, side: int | None) -> int:
    """Return the images' side, by default the usual one; refuse an impossible name or side before anything is read."""
    if side is None:
        side = SOURCES[name].side if name in SOURCES else FOLDER_SIDE
    if not 1 <= side <= 4096:
        raise InputError(f"side must be from 1 to 4096, not {side}.")
    if not name or name.startswith(".") or set(name) & set("/\\"):
        raise InputError(f"The name of a dataset must be that of a folder, not {name!r}.")
    if name.casefold() in OTHER_FOLDERS:
        raise InputError(
            f"A dataset cannot have the name {name!r}, which another folder in the data folder has."
        )
    return side


def _command(
    name: str, data_dir: str | Path | None, side: int | None, path: Path | None = None
) -> str:
    """Return the command that prepares a dataset, with the side that it has."""
    source = SOURCES.get(name)
    sides = {int(manifest.parent.parent.name) for manifest in prepared_manifests(name, data_dir)}
    if side is None and len(sides) == 1:
        side = sides.pop()
    command = f"nearshot data prepare {quote(str(path or name))}"
    if path is None and (source is None or (source.needs_files and not source.downloads)):
        command += f" --from {quote(next(iter(_origins(name, data_dir)), 'PATH'))}"
    command += "" if data_dir is None else f" --data-dir {quote(str(data_dir))}"
    return command + ("" if side is None else f" --side {side}")
