"""Prepare a dataset: from the form that it is distributed in to one store per split, once.

A dataset is given by its name. The user's own images are given by the path of a folder or archive, and are prepared
under the folder's name.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
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

__all__ = ["PrepareOptions", "open_or_prepare", "prepare", "prepare_folder", "prepare_plan"]

FOLDER_SIDE = 84
LOCK = ".lock"
# Other folders in the data folder, by name.
NOT_DATASETS = {"downloads": "the downloads in the data folder", "embeddings": "the kept embeddings in the data folder"}


class PrepareOptions(TypedDict, total=False):
    """How a dataset is prepared.

    `data_dir` is the folder of prepared datasets; see `data_folder`. `fit` says how images are resized to a square.
    Images that cannot be read are `broken`: refused, or skipped and listed in the manifest. Progress bars are shown on
    a terminal, unless `progress` says otherwise.
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
        with _exclusive(folder, f"downloading to {folder}", show=progress):
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
    """Prepare the user's own images, in a folder or in archives; return the store of each split.

    `table`, `classes`, `fractions` and `seed` are those of `plan_folder`. By default the dataset has the name of the
    folder, or of the archive without its suffix, and images of side 84. For the other options see `PrepareOptions`.
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

    `side` is that of the square images, and `origin` the path that they come from, recorded in the manifest.
    """
    _check(name, side)
    folder = data_folder(options.get("data_dir")) / name
    with _exclusive(folder, f"preparing {name!r} in {folder.parent}", show=options.get("progress")):
        return _write(name, plan, side, origin, options)


def _write(name: str, plan: Plan, side: int, origin: str | None, options: PrepareOptions) -> dict[str, Store]:
    """Write the splits of a plan; the caller holds the lock."""
    progress = options.get("progress")
    for remark in plan.remarks:
        print_message(remark, show=progress)
    folder = data_folder(options.get("data_dir")) / name / str(side)
    about = {"dataset": name, "side": side, "fit": options.get("fit", "crop"), "origin": origin}
    return write_splits(folder, plan, about, broken=options.get("broken", "refuse"), progress=progress)


def open_or_prepare(
    dataset: str | Path, split: str, data_dir: str | Path | None = None, *, side: int | None = None
) -> Store:
    """Open a split. Prepare it first if that needs no options: for a path, or for a dataset that is made here.

    A prepared dataset is opened unchanged, with the options that it was prepared with. Images that were added to the
    folder or replaced since are not noticed; prepare it again.

    Args:
        dataset: a name, or the path of the user's own folder or archive; a string with a slash is a path.
        split: "train", "val" or "test".
        data_dir: the folder of prepared datasets; see `data_folder`.
        side: the images' side; by default the one that it is prepared with, or its usual one.
    """
    path, name = given_path(dataset), prepared_name(dataset, data_dir)
    folder = data_folder(data_dir) / name
    if not prepared_manifests(name, data_dir, side=side):
        if path is not None and not folder.is_dir():
            open_files(path)  # gives the error if there are no files
        can_be_made = path is not None or (name in SOURCES and not SOURCES[name].needs_files)
        if can_be_made or folder.is_dir():
            with _exclusive(folder, f"preparing {name!r} in {folder.parent}"):
                finish_interrupted(folder)
                if can_be_made and not prepared_manifests(name, data_dir, side=side):  # nor by whoever had the lock
                    _prepare_by_default(name, path, data_dir, side)
        if not prepared_manifests(name, data_dir, side=side):
            here = f" Do you mean the folder ./{name}?" if Path(name).is_dir() else ""
            hint = here or did_you_mean(name, {*SOURCES, *prepared_datasets(data_dir)})
            command = _command(name, data_dir, side)
            raise InputError(f"Dataset {name!r} is not prepared in {folder.parent}.{hint} Run: {command}")
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
    names = {split: plan_hash(images, side, stamped=False) for split, images in plan.splits.items()}
    begun = unfinished_names(data_folder(data_dir) / name / str(side))
    if not begun.items() <= names.items():
        raise InputError(
            f"Preparing {name!r} with other options, or of other images, was begun and not finished. Run the same "
            f"command again to resume it; or, without options: {_command(name, data_dir, side, path)}"
        )
    _write(name, plan, side, None if path is None else str(path.resolve()), {"data_dir": data_dir})


def given_path(dataset: str | Path) -> Path | None:
    """Return the path that a dataset is given by, or None if it is given by name.

    A string is a path if it has a slash, or is "." or "..", or begins with "~".
    """
    if isinstance(dataset, Path) or dataset in (".", "..") or dataset[:1] == "~" or set(dataset) & set("/\\"):
        return Path(dataset).expanduser()
    return None


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
    other = "a known dataset" if name in SOURCES else NOT_DATASETS.get(name.casefold())
    if other is not None:
        raise InputError(f"{path} has the name of {other}. {advice}")
    for origin in _origins(name, data_dir):
        if origin != str(path):
            raise InputError(f"The dataset {name!r} in {data_folder(data_dir)} is of {origin}, not of {path}. {advice}")
    return name


@contextmanager
def _exclusive(folder: Path, doing: str, *, show: bool | None = None) -> Iterator[None]:
    """Hold a folder's lock; if another process holds it, say so and wait. `doing` says what that process does."""
    lock = FileLock(folder / LOCK)
    try:
        folder.mkdir(parents=True, exist_ok=True)
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
        raise InputError(f"A dataset cannot have the name {name!r}, which is that of {NOT_DATASETS[name.casefold()]}.")


def _origins(name: str, data_dir: str | Path | None) -> list[str]:
    """Return the paths that a dataset's splits were prepared from, where they are known."""
    origins = []
    for manifest in prepared_manifests(name, data_dir):
        with suppress(FileFormatError):
            origins.append(read_manifest(manifest.parent).get("origin"))
    return [origin for origin in origins if isinstance(origin, str)]


def _command(name: str, data_dir: str | Path | None, side: int | None, path: Path | None = None) -> str:
    """Return the command that prepares a dataset, with the side that it has if that is not the usual one."""
    source = SOURCES.get(name)
    sides = {int(manifest.parent.parent.name) for manifest in prepared_manifests(name, data_dir)}
    if side is None and len(sides) == 1:
        side = next(iter(sides - {FOLDER_SIDE if source is None else source.side}), None)
    parts = ["nearshot data prepare", quote(str(path or name))]
    if path is None and (source is None or (source.needs_files and not source.downloads)):
        parts += ["--from", *map(quote, _origins(name, data_dir)[:1] or ["PATH"])]
    parts += [] if data_dir is None else ["--data-dir", quote(str(data_dir))]
    parts += [] if side is None else ["--side", str(side)]
    return " ".join(parts)
