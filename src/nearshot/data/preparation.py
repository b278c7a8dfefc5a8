"""Preparing a dataset: from whatever it is distributed in to one store a split, once.

A dataset is given by its name, or, if it is the user's own, by the path of a folder or archive, which is then prepared
under the folder's name.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from shlex import quote

from nearshot.data.commit import finish_placing
from nearshot.data.datasets import SOURCES, Plan, plan_folder
from nearshot.data.downloads import download
from nearshot.data.images import Fit
from nearshot.data.locks import own
from nearshot.data.readers import TAR_SUFFIXES, NoFiles, open_files
from nearshot.data.store import (
    PLACING,
    OtherVersionError,
    Store,
    data_folder,
    prepared_datasets,
    prepared_manifests,
    read_manifest,
    side_folders,
)
from nearshot.data.writer import Broken, begun_plans, plan_hash, write_splits
from nearshot.errors import FileFormatError, InputError, did_you_mean, look_up
from nearshot.text import print_message

__all__ = ["given_path", "open_or_prepare", "prepare", "prepare_folder", "prepare_plan", "prepared_name"]

FOLDER_SIDE = 84
LOCK = ".lock"
# What else is in the data folder, by name.
NOT_DATASETS = {"downloads": "the downloads", "embeddings": "the kept embeddings"}


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
    side = source.side if side is None else side
    _check(name, side)
    paths = [paths] if isinstance(paths, str | Path) else list(paths)
    if not paths and source.downloads:
        folder = data_folder(data_dir) / "downloads"
        paths = [download(wanted, folder, progress=progress) for wanted in source.downloads]
    if source.needs_files and not paths:
        raise InputError(f"Say where the files of {name!r} are, --from PATH (in Python, paths=PATH): {source.where}.")
    if not source.needs_files and paths:
        raise InputError(f"{name!r} needs no files; it is made here.")
    plan = source.plan(open_files(paths) if source.needs_files else NoFiles())
    return prepare_plan(name, plan, data_dir=data_dir, side=side, fit=fit, broken=broken, progress=progress)


def prepare_folder(
    paths: str | Path | Iterable[str | Path],
    *,
    name: str | None = None,
    table: str | None = None,
    classes: Mapping[str, Sequence[str]] | None = None,
    fractions: Mapping[str, float] | None = None,
    seed: int = 0,
    data_dir: str | Path | None = None,
    side: int | None = None,
    fit: Fit = "crop",
    broken: Broken = "refuse",
    progress: bool | None = None,
) -> dict[str, Store]:
    """Prepare the user's own pictures; return the store of each split.

    Args:
        paths: the folder or archive, or several archives that belong together.
        name: the dataset's name; by default that of the folder, or of the archive without its suffix.
        table: the name of a CSV file in it with the columns file and label.
        classes: the classes of each split.
        fractions: the share of the classes of each split; by default 64 %, 16 % and 20 %.
        seed: another seed splits the classes differently.
        data_dir: where prepared datasets live; by default $NEARSHOT_DATA, or ~/.cache/nearshot.
        side: the side of the square images; by default 84.
        fit: how pictures of another shape are brought to it.
        broken: whether pictures that cannot be read stop everything, or are left out and listed in the manifest.
        progress: whether to show bars; by default on a terminal.
    """
    places = [Path(path).expanduser() for path in ([paths] if isinstance(paths, str | Path) else paths)]
    if not places:
        raise InputError("There is nothing to prepare: no folder or archive is given.")
    name = prepared_name(places[0], data_dir) if name is None else name
    side = FOLDER_SIDE if side is None else side
    _check(name, side)
    plan = plan_folder(open_files(places), table=table, classes=classes, fractions=fractions, seed=seed)
    return prepare_plan(
        name,
        plan,
        data_dir=data_dir,
        side=side,
        fit=fit,
        broken=broken,
        origin=str(places[0].resolve()),
        progress=progress,
    )


def open_or_prepare(
    dataset: str | Path, split: str, data_dir: str | Path | None = None, *, side: int | None = None
) -> Store:
    """Open a split; prepare it first where that takes no more than is known: a path, or a dataset that is made here.

    What is prepared already is opened as it is, with the options it was prepared with. Pictures that have come to a
    folder since, or were replaced, are not noticed; prepare it again.

    Args:
        dataset: a name, or the path of the user's own folder or archive; a string is a path if it has a slash in it.
        split: "train", "val" or "test".
        data_dir: where prepared datasets live; by default $NEARSHOT_DATA, or ~/.cache/nearshot.
        side: the images' side; by default the one it is prepared with, or its usual one.
    """
    path, name = given_path(dataset), prepared_name(dataset, data_dir)
    is_made_here = name in SOURCES and not SOURCES[name].needs_files
    folder = data_folder(data_dir) / name
    store = _whole_store(name, split, data_dir, side)
    if store is not None:
        return store
    if not folder.is_dir() and not is_made_here:
        if path is None:
            raise _not_prepared(name, data_dir, side)
        open_files(path)  # which says if there is nothing
    with own(folder / LOCK, _doing(name, data_dir)):
        for place in side_folders(name, data_dir, side=side):
            if any(place.glob(PLACING)):
                finish_placing(place)
        store = _whole_store(name, split, data_dir, side)  # whoever had it may have made it
        if store is not None:
            return store
        if (path is not None and path.exists()) or is_made_here:
            _make_as_usual(name, path, data_dir, side)
        if not prepared_manifests(name, data_dir, side=side):
            raise _not_prepared(name, data_dir, side)
        try:
            return Store.open(name, split, data_dir, side=side)
        except FileFormatError as error:
            raise FileFormatError(f"{error} Run: {_command(name, data_dir, side, path)}") from error


def given_path(dataset: str | Path) -> Path | None:
    """Return the path that a dataset is given by, or None where it is given by name.

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

    Two folders of one name would be one dataset, so a name that is taken is refused.
    """
    path = given_path(dataset)
    if path is None:
        return str(dataset)
    path = path.resolve()
    suffix = next((suffix for suffix in (".zip", *TAR_SUFFIXES) if path.name.endswith(suffix)), "")
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


def prepare_plan(
    name: str,
    plan: Plan,
    *,
    side: int,
    data_dir: str | Path | None = None,
    fit: Fit = "crop",
    broken: Broken = "refuse",
    origin: str | None = None,
    progress: bool | None = None,
) -> dict[str, Store]:
    """Prepare what a source found, such as `plan_folder` or `plan_omniglot` with options of its own.

    `origin`: where it was found, for the record; the others are those of `prepare`.
    """
    _check(name, side)
    for remark in plan.remarks:
        print_message(remark, show=progress)
    with own(data_folder(data_dir) / name / LOCK, _doing(name, data_dir), show=progress):
        return _write(name, plan, side, data_dir, fit=fit, broken=broken, origin=origin, progress=progress)


def _write(
    name: str,
    plan: Plan,
    side: int,
    data_dir: str | Path | None,
    *,
    fit: Fit = "crop",
    broken: Broken = "refuse",
    origin: str | None = None,
    progress: bool | None = None,
) -> dict[str, Store]:
    """Write all splits of a dataset that this process owns."""
    return write_splits(
        data_folder(data_dir) / name / str(side),
        plan.splits,
        dataset=name,
        source=plan.layout,
        side=side,
        fit=fit,
        broken=broken,
        origin=origin,
        progress=progress,
    )


def _make_as_usual(name: str, path: Path | None, data_dir: str | Path | None, side: int | None) -> None:
    """Prepare a folder, or a dataset that is made here, without any options; or what is missing or damaged of it.

    What was prepared with other options, or of other pictures, is left as it is, also if it was only begun; and so is
    what cannot be read, unless a split beside it tells that it was prepared so.
    """
    manifests = prepared_manifests(name, data_dir, side=side)
    sides = {int(manifest.parent.parent.name) for manifest in manifests}
    if len(sides) > 1:
        return
    usual = FOLDER_SIDE if path is not None else SOURCES[name].side
    side = next(iter(sides)) if sides else usual if side is None else side
    _check(name, side)
    plan = SOURCES[name].plan(NoFiles()) if path is None else plan_folder(open_files(path))
    expected = {split: plan_hash(pictures, side, stamped=False) for split, pictures in plan.splits.items()}
    made_of = {manifest.parent.name: _names_of(manifest.parent) for manifest in manifests}
    known = {split: plan for split, plan in made_of.items() if plan is not None}
    is_usual = all(plan == expected.get(split) for split, plan in known.items())
    if not is_usual or (path is not None and manifests and not known):
        return
    begun = begun_plans(data_folder(data_dir) / name / str(side))
    if any(plan != expected.get(split) for split, plan in begun.items()):
        raise InputError(
            f"Preparing {name!r} with other options, or of other pictures, was begun and not finished. Go on with the "
            f"same command; or without options: {_command(name, data_dir, side, path)}"
        )
    for remark in plan.remarks:
        print_message(remark)
    _write(name, plan, side, data_dir, origin=None if path is None else str(path.resolve()))


def _names_of(folder: Path) -> str | None:
    """Return the mark of the names of what a split was made of, None where its manifest is damaged."""
    try:
        manifest = read_manifest(folder)
    except OtherVersionError:
        raise
    except FileFormatError:
        return None
    return manifest.get("names", manifest.get("plan"))  # the same where pictures have no stamps


def _check(name: str, side: int) -> None:
    """Refuse names and sizes that a dataset cannot have, before anything is fetched or read."""
    if not 1 <= side <= 4096:
        raise InputError(f"The images' side must be from 1 to 4096, not {side}.")
    if not name or name.startswith(".") or set(name) & set("/\\"):
        raise InputError(f"A dataset's name must be that of a folder, not {name!r}.")
    other = NOT_DATASETS.get(name.casefold())
    if other is not None:
        raise InputError(f"A dataset cannot have the name {name!r}, which is that of {other} in the data folder.")


def _whole_store(name: str, split: str, data_dir: str | Path | None, side: int | None) -> Store | None:
    """Open a split; return None where it is not there, or damaged."""
    if split not in {manifest.parent.name for manifest in prepared_manifests(name, data_dir, side=side)}:
        return None
    try:
        return Store.open(name, split, data_dir, side=side)
    except FileFormatError:
        return None


def _origin(manifest: Path) -> str | None:
    """Return the path that a split was prepared from, where that is known."""
    try:
        origin = read_manifest(manifest.parent).get("origin")
    except FileFormatError:
        return None
    return origin if isinstance(origin, str) else None


def _doing(name: str, data_dir: str | Path | None) -> str:
    return f"preparing {name!r} in {data_folder(data_dir)}"


def _not_prepared(name: str, data_dir: str | Path | None, side: int | None) -> InputError:
    here = f" Do you mean the folder ./{name}?" if Path(name).is_dir() else ""
    nearly = did_you_mean(name, {*SOURCES, *prepared_datasets(data_dir)})
    command = _command(name, data_dir, side)
    return InputError(f"Dataset {name!r} is not prepared in {data_folder(data_dir)}.{here or nearly} Run: {command}")


def _command(name: str, data_dir: str | Path | None, side: int | None, path: Path | None = None) -> str:
    """Return the command that prepares a dataset, at the side that it has if that is not the usual one."""
    source = SOURCES.get(name)
    needs_nothing = path is not None or (source is not None and (bool(source.downloads) or not source.needs_files))
    manifests = prepared_manifests(name, data_dir)
    known = next((origin for manifest in manifests if (origin := _origin(manifest))), "PATH")
    sides = {int(manifest.parent.parent.name) for manifest in manifests}
    if side is None and len(sides) == 1:
        side = next(iter(sides - {FOLDER_SIDE if source is None else source.side}), None)
    known = known if known == "PATH" else quote(known)
    parts = [f"nearshot data prepare {quote(str(path or name))}", "" if needs_nothing else f"--from {known}"]
    parts += [
        "" if data_dir is None else f"--data-dir {quote(str(data_dir))}",
        "" if side is None else f"--side {side}",
    ]
    return " ".join(part for part in parts if part)
