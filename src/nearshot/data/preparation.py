"""Prepare a dataset: from the form that it is distributed in to one store per split, once.

The user's own images are given by the path of a folder or archive, and are prepared under its name.
One process at a time prepares a dataset; others wait for it.
"""

import logging
import os
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from shlex import quote

from nearshot.data.datasets import SOURCES, Plan, plan_folder
from nearshot.data.downloads import download
from nearshot.data.images import Fit
from nearshot.data.readers import ARCHIVE_SUFFIXES, Files, open_files
from nearshot.data.store import (
    Store,
    data_folder,
    find_splits,
    prepared_datasets,
    read_manifest,
)
from nearshot.data.writer import Broken, restore_interrupted, write_splits
from nearshot.errors import FileFormatError, InputError, NearshotError, did_you_mean, look_up
from nearshot.io import FileLock

__all__ = ["open_or_prepare", "prepare", "prepare_folder", "prepare_plan"]

LOGGER = logging.getLogger("nearshot.data")
FOLDER_SIDE = 84
LARGEST_SIDE = 4096
LOCK = ".lock"
NO_FILES = Files("nothing", {})
OTHER_FOLDERS = ("downloads", "embeddings")  # in the data folder, beside those of datasets


def prepare(
    name: str,
    paths: str | Path | Iterable[str | Path] = (),
    *,
    side: int | None = None,
    fit: Fit = "crop",
    broken: Broken = "refuse",
    data_dir: str | Path | None = None,
    progress: bool | None = None,
) -> dict[str, Store]:
    """Prepare a known dataset from its files; return the store of each split.

    An interrupted preparation is resumed.

    Args:
        name: one of `SOURCES`.
        paths: the folder or archive, or several archives that belong together. Without any,
            "glyphs" is drawn, and "cifar-fs" and "omniglot" are downloaded.
        side: the side of the square images; by default the dataset's usual one.
        fit: "crop" resizes the shorter side and crops the centre; "stretch" changes the
            proportions.
        broken: "refuse" or "skip" images that cannot be read; the manifest lists skipped ones.
        data_dir: the folder of prepared datasets; see `data_folder`.
        progress: whether to show progress bars; by default on a terminal.
    """
    source = look_up(SOURCES, name, "dataset")
    side = _checked_side(name, side)
    paths = _listed(paths)
    if not paths and source.downloads:
        folder = data_folder(data_dir) / "downloads"
        with _exclusive(folder):
            paths = [download(file, folder, progress=progress) for file in source.downloads]
    if source.needs_files and not paths:
        raise InputError(
            f"paths must name the folder or archives with the files of {name!r}: {source.where}."
        )
    if not source.needs_files and paths:
        raise InputError(f"paths must be empty for {name!r}, which is made here (got {paths}).")
    files = open_files(paths) if paths else NO_FILES
    try:
        plan = source.plan(files)
    except NearshotError:
        raise
    except (LookupError, TypeError, AttributeError, ValueError) as error:  # of a pickle
        raise FileFormatError(
            f"{files.label} does not have the content of {name!r}: {error!r}."
        ) from error
    return prepare_plan(
        name, plan, side=side, fit=fit, broken=broken, data_dir=data_dir, progress=progress
    )


def prepare_folder(
    paths: str | Path | Iterable[str | Path],
    *,
    name: str | None = None,
    table: str | None = None,
    classes: Mapping[str, Sequence[str]] | None = None,
    fractions: Mapping[str, float] | None = None,
    seed: int = 0,
    side: int | None = None,
    fit: Fit = "crop",
    broken: Broken = "refuse",
    data_dir: str | Path | None = None,
    progress: bool | None = None,
) -> dict[str, Store]:
    """Prepare the user's own images, in a folder or in archives; return the store of each split.

    Args:
        paths: the folder or archive, or several archives that belong together.
        name: the dataset's name; by default that of the folder, or of the archive without its
            suffix.
        table: the name of a CSV file among them with the columns file (or filename) and label.
        classes: the classes of each split; a class in no list is skipped.
        fractions: the fraction of the classes in each split; by default 64 %, 16 % and 20 %.
        seed: the seed of the random split.
        side: the side of the square images; by default 84.
        fit: "crop" resizes the shorter side and crops the centre; "stretch" changes the
            proportions.
        broken: "refuse" or "skip" images that cannot be read; the manifest lists skipped ones.
        data_dir: the folder of prepared datasets; see `data_folder`.
        progress: whether to show progress bars; by default on a terminal.
    """
    sources = [Path(path).expanduser() for path in _listed(paths)]
    files = open_files(sources)
    if name is None:
        name = prepared_name(sources[0], data_dir)
    side = _checked_side(name, FOLDER_SIDE if side is None else side)
    plan = plan_folder(files, table=table, classes=classes, fractions=fractions, seed=seed)
    return prepare_plan(
        name,
        plan,
        side=side,
        fit=fit,
        broken=broken,
        origin=str(sources[0].resolve()),
        data_dir=data_dir,
        progress=progress,
    )


def prepare_plan(
    name: str,
    plan: Plan,
    *,
    side: int,
    fit: Fit = "crop",
    broken: Broken = "refuse",
    origin: str | None = None,
    data_dir: str | Path | None = None,
    progress: bool | None = None,
) -> dict[str, Store]:
    """Prepare the images of a plan, such as that of `plan_folder`; return the store of each split.

    Args:
        name: the dataset's name.
        plan: the images of each split.
        side: the side of the square images.
        fit: "crop" resizes the shorter side and crops the centre; "stretch" changes the
            proportions.
        broken: "refuse" or "skip" images that cannot be read; the manifest lists skipped ones.
        origin: the path that the images come from, recorded in the manifest.
        data_dir: the folder of prepared datasets; see `data_folder`.
        progress: whether to show progress bars; by default on a terminal.
    """
    _checked_side(name, side)
    folder = data_folder(data_dir) / name
    with _exclusive(folder):
        _log_remarks(plan)
        return write_splits(
            folder / str(side),
            plan,
            dataset=name,
            side=side,
            fit=fit,
            origin=origin,
            broken=broken,
            progress=progress,
        )


def open_or_prepare(
    dataset: str | Path, split: str, data_dir: str | Path | None = None, *, side: int | None = None
) -> Store:
    """Open a split; prepare it first if that needs no options.

    It needs none for a path, and for a dataset that is made here. A prepared dataset is opened
    unchanged, with the options that it was prepared with. If images were added to its folder or
    removed since, a warning says how to prepare it again.

    Args:
        dataset: a name, or the path of the user's own folder or archive; a string with a slash is a
            path.
        split: "train", "val" or "test".
        data_dir: the folder of prepared datasets; see `data_folder`.
        side: the images' side; by default the one that it is prepared with, or its usual one.
    """
    path = given_path(dataset)
    name = prepared_name(dataset, data_dir)
    splits = find_splits(name, data_dir, side=side)
    if not splits:
        _prepare_by_default(name, path, data_dir, side)
    elif path is not None and path.is_dir():
        changed_at = max(Path(folder).stat().st_mtime for folder, _, _ in os.walk(path))
        manifests = [prepared.folder / "manifest.json" for prepared in splits]
        if changed_at > max(manifest.stat().st_mtime for manifest in manifests):
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
    """Prepare a folder, or a dataset that is made here, without options; refuse any other."""
    folder = data_folder(data_dir) / name
    plan = None
    if path is not None:
        plan = plan_folder(open_files(path))
    elif name in SOURCES and not SOURCES[name].needs_files:
        plan = SOURCES[name].plan(NO_FILES)
    if plan is not None or folder.is_dir():
        usual_side = _checked_side(name, side)
        with _exclusive(folder):
            restore_interrupted(folder)
            # Another process may have prepared it while this one waited for the lock.
            if plan is not None and not find_splits(name, data_dir, side=side):
                origin = None if path is None else str(path.resolve())
                _log_remarks(plan)
                write_splits(
                    folder / str(usual_side), plan, dataset=name, side=usual_side, origin=origin
                )
    if not find_splits(name, data_dir, side=side):
        hint = did_you_mean(name, {*SOURCES, *prepared_datasets(data_dir)})
        if Path(name).is_dir():
            hint = f" Do you mean the folder ./{name}?"
        command = _command(name, data_dir, side)
        raise InputError(
            f"Dataset {name!r} is not prepared in {folder.parent}.{hint} Run: {command}"
        )


def given_path(dataset: str | Path) -> Path | None:
    """Return the path that a dataset is given by, or None if it is given by name.

    A string is a path if it has a slash, or is "." or "..", or begins with "~".
    """
    if isinstance(dataset, str):
        has_slash = "/" in dataset or "\\" in dataset
        if not has_slash and dataset not in (".", "..") and not dataset.startswith("~"):
            return None
    return Path(dataset).expanduser()


def prepared_name(dataset: str | Path, data_dir: str | Path | None = None) -> str:
    """Return the name under which a dataset is prepared.

    It is its own, or that of the folder or archive at a path. A name that belongs to a known
    dataset, or to another folder's images, is an error.
    """
    path = given_path(dataset)
    if path is None:
        return str(dataset)
    path = path.resolve()
    name = path.name
    for suffix in ARCHIVE_SUFFIXES:
        if name.endswith(suffix):
            name = name.removesuffix(suffix)
            break
    advice = f"Give it another name: nearshot data prepare NAME --from {quote(str(path))}"
    if name in SOURCES:
        raise InputError(f"{path} has the name of a known dataset. {advice}")
    for origin in _origins(name, data_dir):
        if origin != str(path):
            raise InputError(
                f"The dataset {name!r} in {data_folder(data_dir)} is of {origin}, not of {path}. "
                f"{advice}"
            )
    return name


def _listed(paths: str | Path | Iterable[str | Path]) -> list[str | Path]:
    return [paths] if isinstance(paths, str | Path) else list(paths)


def _log_remarks(plan: Plan) -> None:
    for remark in plan.remarks:
        LOGGER.warning(remark)


def _origins(name: str, data_dir: str | Path | None) -> list[str]:
    """Return the paths that a dataset was prepared from, at any side, where they are known."""
    origins = []
    for prepared in find_splits(name, data_dir):
        with suppress(FileFormatError):
            origin = read_manifest(prepared.folder)["origin"]
            if origin is not None and origin not in origins:
                origins.append(origin)
    return origins


@contextmanager
def _exclusive(folder: Path) -> Iterator[None]:
    """Hold a folder's lock; if another process holds it, say so and wait."""
    lock = FileLock(folder / LOCK)
    # A read-only folder has no lock; if it has to be written, that is the error.
    with suppress(OSError, NearshotError):
        folder.mkdir(parents=True, exist_ok=True)
        if not lock.acquire():
            LOGGER.warning("Another process is writing to %s; waiting for it.", folder)
            lock.acquire(wait=True)
    try:
        yield
    finally:
        lock.release(remove=True)


def _checked_side(name: str, side: int | None) -> int:
    """Return the images' side, by default the usual one; refuse an impossible name or side."""
    if side is None:
        side = SOURCES[name].side if name in SOURCES else FOLDER_SIDE
    if not 1 <= side <= LARGEST_SIDE:
        raise InputError(f"side must be from 1 to {LARGEST_SIDE}, not {side}.")
    if not name or name.startswith(".") or "/" in name or "\\" in name:
        raise InputError(f"name must be that of a folder, without a path, not {name!r}.")
    if name.casefold() in OTHER_FOLDERS:
        raise InputError(
            f"name must not be {name!r}: another folder in the data folder has this name."
        )
    return side


def _command(
    name: str, data_dir: str | Path | None, side: int | None, path: Path | None = None
) -> str:
    """Return the command that prepares a dataset, with the side that it has."""
    sides = {prepared.side for prepared in find_splits(name, data_dir)}
    if side is None and len(sides) == 1:
        side = sides.pop()
    command = f"nearshot data prepare {quote(str(path or name))}"
    source = SOURCES.get(name)
    needs_paths = source is None or (source.needs_files and not source.downloads)
    if path is None and needs_paths:
        origins = _origins(name, data_dir)
        command += f" --from {quote(origins[0] if origins else 'PATH')}"
    if data_dir is not None:
        command += f" --data-dir {quote(str(data_dir))}"
    if side is not None:
        command += f" --side {side}"
    return command
