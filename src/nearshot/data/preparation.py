"""Prepare a dataset: from the form that it is distributed in to one store per split, once.

A dataset is given by its name. The user's own images are given by the path of a folder or archive, and are prepared
under the folder's name.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from shlex import quote
from typing import TypedDict, Unpack

from nearshot.data.datasets import SOURCES, Plan, plan_folder
from nearshot.data.downloads import download
from nearshot.data.images import Fit
from nearshot.data.readers import ARCHIVE_SUFFIXES, Files, open_files
from nearshot.data.store import Store, data_folder, prepared_datasets, prepared_manifests, read_manifest
from nearshot.data.writer import Broken, finish_interrupted, plan_hash, unfinished_names, write_splits
from nearshot.errors import FileFormatError, InputError, NearshotError, did_you_mean, look_up
from nearshot.io import FileLock
from nearshot.text import print_message

__all__ = [
    "PrepareOptions",
    "given_path",
    "open_or_prepare",
    "prepare",
    "prepare_folder",
    "prepare_plan",
    "prepared_name",
]

FOLDER_SIDE = 84
LOCK = ".lock"
# Other folders in the data folder, by name.
NOT_DATASETS = {"downloads": "the downloads", "embeddings": "the kept embeddings"}


class PrepareOptions(TypedDict, total=False):
    """How a dataset is prepared.

    Attributes:
        data_dir: the folder of prepared datasets; by default $NEARSHOT_DATA, or ~/.cache/nearshot.
        fit: "crop" or "stretch", how images are resized to a square.
        broken: "refuse" images that cannot be read, or "skip" them and list them in the manifest.
        progress: whether to show progress bars; by default on a terminal.
    """

    data_dir: str | Path | None
    fit: Fit
    broken: Broken
    progress: bool | None


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
        paths: the folder or archive, or several archives that belong together. Without any, "glyphs" is drawn, and
            "cifar-fs" and "omniglot" are downloaded.
        side: the side of the square images; by default the dataset's usual one.
        options: `data_dir`, `fit`, `broken` and `progress`; see `PrepareOptions`.
    """
    source = look_up(SOURCES, name, "dataset")
    side = source.side if side is None else side
    _check(name, side)
    paths = [paths] if isinstance(paths, str | Path) else list(paths)
    if not paths and source.downloads:
        folder, progress = data_folder(options.get("data_dir")) / "downloads", options.get("progress")
        with _exclusive(folder / LOCK, f"downloading to {folder}", show=progress):
            paths = [download(wanted, folder, progress=progress) for wanted in source.downloads]
    if source.needs_files and not paths:
        raise InputError(f"paths (--from PATH) must say where the files of {name!r} are: {source.where}.")
    if not source.needs_files and paths:
        raise InputError(f"{name!r} needs no files; it is made here.")
    plan = source.plan(open_files(paths) if source.needs_files else Files("nothing", {}))
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
    """Prepare the user's own images; return the store of each split.

    Args:
        paths: the folder or archive, or several archives that belong together.
        name: the dataset's name; by default that of the folder, or of the archive without its suffix.
        table: the name of a CSV file in it with the columns file and label.
        classes: the classes of each split.
        fractions: the fraction of the classes in each split; by default 64 %, 16 % and 20 %.
        seed: the seed of the random split of the classes.
        side: the side of the square images; by default 84.
        options: `data_dir`, `fit`, `broken` and `progress`; see `PrepareOptions`.
    """
    places = [Path(path).expanduser() for path in ([paths] if isinstance(paths, str | Path) else paths)]
    if not places:
        raise InputError("There is nothing to prepare: paths is empty.")
    name = prepared_name(places[0], options.get("data_dir")) if name is None else name
    side = FOLDER_SIDE if side is None else side
    _check(name, side)
    plan = plan_folder(open_files(places), table=table, classes=classes, fractions=fractions, seed=seed)
    return prepare_plan(name, plan, side=side, origin=str(places[0].resolve()), **options)


def prepare_plan(
    name: str, plan: Plan, *, side: int, origin: str | None = None, **options: Unpack[PrepareOptions]
) -> dict[str, Store]:
    """Prepare the images of a plan, such as that of `plan_folder` or `plan_omniglot` with options.

    Args:
        name: the dataset's name.
        plan: the images of each split.
        side: the side of the square images.
        origin: the path that the images come from, recorded in the manifest.
        options: `data_dir`, `fit`, `broken` and `progress`; see `PrepareOptions`.
    """
    _check(name, side)
    data_dir, progress = options.pop("data_dir", None), options.get("progress")
    for remark in plan.remarks:
        print_message(remark, show=progress)
    folder = data_folder(data_dir) / name
    with _exclusive(folder / LOCK, f"preparing {name!r} in {folder.parent}", show=progress):
        return write_splits(
            folder / str(side),
            plan,
            dataset=name,
            side=side,
            fit=options.get("fit", "crop"),
            broken=options.get("broken", "refuse"),
            origin=origin,
            progress=progress,
        )


def open_or_prepare(
    dataset: str | Path, split: str, data_dir: str | Path | None = None, *, side: int | None = None
) -> Store:
    """Open a split. Prepare it first if that needs no options: for a path, or for a dataset that is made here.

    A prepared dataset is opened unchanged, with the options that it was prepared with. Images that were added to the
    folder or replaced since are not noticed; prepare it again.

    Args:
        dataset: a name, or the path of the user's own folder or archive; a string with a slash is a path.
        split: "train", "val" or "test".
        data_dir: the folder of prepared datasets; by default $NEARSHOT_DATA, or ~/.cache/nearshot.
        side: the images' side; by default the one that it is prepared with, or its usual one.
    """
    path, name = given_path(dataset), prepared_name(dataset, data_dir)
    folder = data_folder(data_dir) / name
    can_be_made = path is not None or (name in SOURCES and not SOURCES[name].needs_files)
    if not prepared_manifests(name, data_dir, side=side):
        if path is not None and not folder.is_dir():
            open_files(path)  # gives the error if there are no files
        if not can_be_made and not folder.is_dir():
            raise _not_prepared(name, data_dir, side)
        with _exclusive(folder / LOCK, f"preparing {name!r} in {folder.parent}"):
            finish_interrupted(folder)
            if not prepared_manifests(name, data_dir, side=side):  # the process that had the lock may have made it
                if not can_be_made:
                    raise _not_prepared(name, data_dir, side)
                _prepare_by_default(name, path, data_dir, side)
    try:
        return Store.open(name, split, data_dir, side=side)
    except FileFormatError as error:
        raise FileFormatError(f"{error} Run: {_command(name, data_dir, side, path)}") from error


def _prepare_by_default(name: str, path: Path | None, data_dir: str | Path | None, side: int | None) -> None:
    """Prepare a folder, or a dataset that is made here, without options; the caller holds the lock."""
    if side is None:
        side = FOLDER_SIDE if path is not None else SOURCES[name].side
    _check(name, side)
    plan = SOURCES[name].plan(Files("nothing", {})) if path is None else plan_folder(open_files(path))
    folder = data_folder(data_dir) / name / str(side)
    names = {split: plan_hash(images, side, stamped=False) for split, images in plan.splits.items()}
    if any(begun != names.get(split) for split, begun in unfinished_names(folder).items()):
        raise InputError(
            f"Preparing {name!r} with other options, or of other images, was begun and not finished. Run the same "
            f"command again to resume it; or, without options: {_command(name, data_dir, side, path)}"
        )
    for remark in plan.remarks:
        print_message(remark)
    write_splits(folder, plan, dataset=name, side=side, origin=None if path is None else str(path.resolve()))


def given_path(dataset: str | Path) -> Path | None:
    """Return the path that a dataset is given by, or None if it is given by name.

    A string is a path if it has a slash, or is "." or "..", or begins with "~".

    >>> given_path("cifar-fs"), given_path("./birds").name
    (None, 'birds')
    """
    is_path = (
        isinstance(dataset, Path) or dataset in (".", "..") or dataset[:1] == "~" or bool(set(dataset) & set("/\\"))
    )
    return Path(dataset).expanduser() if is_path else None


def prepared_name(dataset: str | Path, data_dir: str | Path | None = None) -> str:
    """Return the name under which a dataset is prepared: its own, or that of the folder or archive at a path.

    A name that belongs to another folder's images is an error.
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
    if name.casefold() in NOT_DATASETS:
        raise InputError(f"{path} has the name of {NOT_DATASETS[name.casefold()]} in the data folder. {advice}")
    for manifest in prepared_manifests(name, data_dir):
        origin = _origin(manifest)
        if origin not in (None, str(path)):
            raise InputError(f"The dataset {name!r} in {data_folder(data_dir)} is of {origin}, not of {path}. {advice}")
    return name


@contextmanager
def _exclusive(lock_file: Path, doing: str, *, show: bool | None = None) -> Iterator[None]:
    """Hold a lock; if another process holds it, say so and wait. `doing` says what that process does."""
    lock = FileLock(lock_file)
    try:
        lock_file.parent.mkdir(parents=True, exist_ok=True)
        if not lock.acquire():
            print_message(f"Another process is {doing}; waiting for it.", show=show)
            lock.acquire(wait=True)
    except (OSError, NearshotError):
        pass  # a read-only folder needs no lock; if it has to be written, writing gives the error
    try:
        yield
    finally:
        lock.release(remove=True)


def _check(name: str, side: int) -> None:
    """Refuse an impossible name or side before anything is downloaded or read."""
    if not 1 <= side <= 4096:
        raise InputError(f"side must be from 1 to 4096, not {side}.")
    if not name or name.startswith(".") or set(name) & set("/\\"):
        raise InputError(f"The name of a dataset must be that of a folder, not {name!r}.")
    if name.casefold() in NOT_DATASETS:
        other = NOT_DATASETS[name.casefold()]
        raise InputError(f"A dataset cannot have the name {name!r}, which is that of {other} in the data folder.")


def _origin(manifest: Path) -> str | None:
    """Return the path that a split was prepared from, if it is known."""
    try:
        origin = read_manifest(manifest.parent).get("origin")
    except FileFormatError:
        return None
    return origin if isinstance(origin, str) else None


def _not_prepared(name: str, data_dir: str | Path | None, side: int | None) -> InputError:
    here = f" Do you mean the folder ./{name}?" if Path(name).is_dir() else ""
    nearly = did_you_mean(name, {*SOURCES, *prepared_datasets(data_dir)})
    command = _command(name, data_dir, side)
    return InputError(f"Dataset {name!r} is not prepared in {data_folder(data_dir)}.{here or nearly} Run: {command}")


def _command(name: str, data_dir: str | Path | None, side: int | None, path: Path | None = None) -> str:
    """Return the command that prepares a dataset, with the side that it has if that is not the usual one."""
    source = SOURCES.get(name)
    needs_no_path = path is not None or (source is not None and (bool(source.downloads) or not source.needs_files))
    manifests = prepared_manifests(name, data_dir)
    sides = {int(manifest.parent.parent.name) for manifest in manifests}
    if side is None and len(sides) == 1:
        side = next(iter(sides - {FOLDER_SIDE if source is None else source.side}), None)
    parts = ["nearshot data prepare", quote(str(path or name))]
    if not needs_no_path:
        origin = next((origin for manifest in manifests if (origin := _origin(manifest))), None)
        parts += ["--from", "PATH" if origin is None else quote(origin)]
    parts += [] if data_dir is None else ["--data-dir", quote(str(data_dir))]
    parts += [] if side is None else ["--side", str(side)]
    return " ".join(parts)
