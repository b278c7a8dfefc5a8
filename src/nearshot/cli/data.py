"""`nearshot data`: prepare, check and look at datasets."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import tyro
from rich.console import Console

from nearshot.cli._tables import Entry, print_entries
from nearshot.data import SOURCES, Store, open_or_prepare, prepare, prepare_folder
from nearshot.data.datasets import omniglot_name
from nearshot.data.datasets.base import SPLITS
from nearshot.data.inspection import contact_sheet, repeated_pictures, shared_classes, splits_that_share
from nearshot.data.preparation import given_path, prepared_name
from nearshot.data.store import (
    check_together,
    data_folder,
    prepared_datasets,
    prepared_manifests,
    prepared_splits,
    read_manifest,
)
from nearshot.data.unpack import unpack
from nearshot.errors import FileFormatError, InputError
from nearshot.text import counted, printable

__all__ = ["Data"]

OPTIONS_OF_OWN = ("table", "fractions", "seed", "train_classes", "val_classes", "test_classes")
OPTIONS_OF_OMNIGLOT = ("omniglot_split", "rotations")
DataDir = Annotated[Path | None, tyro.conf.arg(metavar="DIR")]
Name = Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="DATASET")]
ClassList = Annotated[Path | None, tyro.conf.arg(metavar="FILE")]
Fractions = Annotated[tuple[float, float, float] | None, tyro.conf.arg(metavar="TRAIN VAL TEST")]


@dataclass(frozen=True)
class DataList:
    """List the datasets that nearshot knows, where to get them, which are prepared, and your own."""

    data_dir: DataDir = None
    """Where prepared datasets live; by default $NEARSHOT_DATA, or ~/.cache/nearshot."""

    def run(self, console: Console) -> None:
        """Print them."""
        entries = [
            Entry(name, _prepared(name, self.data_dir), f"{source.description}.\nFrom: {source.where}.")
            for name, source in SOURCES.items()
        ]
        entries += [
            Entry(printable(name), "your own, prepared", _about_own(name, self.data_dir))
            for name in prepared_datasets(self.data_dir)
            if name not in SOURCES
        ]
        own = Entry("FOLDER", "", "Your own pictures.\nFrom: a folder for each class, or a CSV of files and labels.")
        print_entries(f"Datasets; prepared ones live in {data_folder(self.data_dir)}", [*entries, own], console)


@dataclass(frozen=True)
class DataPrepare:
    """Read a dataset, check it, and pack it into one array a split. It can be stopped at any time and goes on later.

    Glyphs are made here, omniglot with --rotations is kept as omniglot-rotations, and ./my-photos, a folder
    for each class, as my-photos. For instance:

      nearshot data prepare glyphs
      nearshot data prepare cifar-fs --from cifar100.zip
      nearshot data prepare omniglot --rotations
      nearshot data prepare ./my-photos
      nearshot data prepare birds --from birds.zip --fractions 0.5 0.25 0.25
      nearshot data prepare ./birds --train-classes a.txt --test-classes b.txt
    """

    name: Name
    """A known dataset (see `nearshot data list`); or your own: the path of a folder with a folder for each class, or of
    an archive of it, which is prepared under the folder's name; or any name, with --from."""
    from_path: Annotated[
        tuple[Path, ...], tyro.conf.arg(name="from", metavar="PATH [PATH ...]", help_behavior_hint="")
    ] = ()
    """The folder or archive; several archives that belong together may be given. Without it, glyphs is
    made here, and cifar-fs and omniglot are downloaded."""
    data_dir: DataDir = None
    """Where prepared datasets live; by default $NEARSHOT_DATA, or ~/.cache/nearshot."""
    side: int | None = None
    """The side of the square images; by default the dataset's usual one, or 84."""
    fit: Literal["crop", "stretch"] = "crop"
    """Bring the shorter side to size and cut out the centre, or change the proportions."""
    broken: Literal["refuse", "skip"] = "refuse"
    """Stop at a picture that cannot be read, or leave it out and list it."""
    table: str | None = None
    """For your own pictures: a CSV file among them with the columns file and label."""
    fractions: Fractions = None
    """For your own pictures: the share of the classes of each split; by default 0.64 0.16 0.2."""
    seed: int | None = None
    """For your own pictures: another seed than 0 splits the classes differently."""
    train_classes: ClassList = None
    """For your own pictures: a text file with the classes of the training split, one a line, instead of fractions.
    Classes that no list has are left out."""
    val_classes: ClassList = None
    """The same for the validation split."""
    test_classes: ClassList = None
    """The same for the test split."""
    omniglot_split: Literal["vinyals", "background"] | None = None
    """For omniglot: Vinyals et al.'s split into three, the default; or Lake et al.'s background (train) and
    evaluation (test), prepared as omniglot-background."""
    rotations: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False
    """For omniglot: take each character turned by 90, 180 and 270 degrees as three more classes, prepared as
    omniglot-rotations or omniglot-background-rotations."""

    def run(self, console: Console) -> None:
        """Prepare all splits and say what they are."""
        self._refuse_what_does_not_apply()
        stores = self._prepare_known() if self.name in SOURCES else self._prepare_own()
        for split, store in stores.items():
            skipped = f", {len(store.manifest['broken'])} broken left out" if store.manifest["broken"] else ""
            side, size = store.images.shape[1], _size(len(store), len(store.class_names))
            console.print(
                f"{store.dataset} {split}: {size}, {side}×{side}{skipped}; fingerprint {store.fingerprint[:12]}"
            )

    def _prepare_known(self) -> dict[str, Store]:
        name = self.name
        if name == "omniglot":
            name = omniglot_name(self.omniglot_split or "vinyals", rotations=self.rotations)
        return prepare(name, self.from_path, data_dir=self.data_dir, side=self.side, fit=self.fit, broken=self.broken)

    def _prepare_own(self) -> dict[str, Store]:
        path = given_path(self.name)
        if path is not None and self.from_path:
            raise InputError(f"The pictures are given twice: as {self.name} and by --from. With --from, give a name.")
        if path is None and not self.from_path:
            here = f", or ./{self.name} for the folder here" if Path(self.name).is_dir() else ""
            raise InputError(
                f"{self.name!r} is no known dataset; for your own pictures, say where they are: --from PATH{here}."
            )
        lists = {"train": self.train_classes, "val": self.val_classes, "test": self.test_classes}
        classes = {split: _read_classes(file) for split, file in lists.items() if file is not None}
        if classes and self.seed is not None:
            raise InputError("Lists of classes leave nothing to chance; leave out --seed.")
        return prepare_folder(
            self.from_path if path is None else path,
            name=self.name if path is None else None,
            table=self.table,
            classes=classes or None,
            fractions=None if self.fractions is None else dict(zip(SPLITS, self.fractions, strict=True)),
            seed=self.seed or 0,
            data_dir=self.data_dir,
            side=self.side,
            fit=self.fit,
            broken=self.broken,
        )

    def _refuse_what_does_not_apply(self) -> None:
        if self.name in SOURCES:
            self._refuse(OPTIONS_OF_OWN, "your own pictures")
        if self.name != "omniglot":
            self._refuse(OPTIONS_OF_OMNIGLOT, "omniglot")

    def _refuse(self, options: tuple[str, ...], whose: str) -> None:
        for option in options:
            if getattr(self, option) not in (None, False):
                flag = option.replace("_", "-")
                raise InputError(f"--{flag} is for {whose}; it does not apply to {self.name!r}.")


@dataclass(frozen=True)
class DataVerify:
    """Read a prepared dataset again, and report what has changed, classes in two splits, and repeated pictures."""

    name: Name
    """The dataset, or the path that it was prepared from."""
    data_dir: DataDir = None
    """Where prepared datasets live; by default $NEARSHOT_DATA, or ~/.cache/nearshot."""
    side: int | None = None
    """The images' side, where the dataset was prepared in several."""

    def run(self, console: Console) -> None:
        """Verify all splits; what has changed is an error, repetitions are only reported."""
        name = prepared_name(self.name, self.data_dir)
        splits = prepared_splits(name, self.data_dir, side=self.side)
        check_together(next(iter(splits.values())).parent)
        stores = {split: Store(folder) for split, folder in splits.items()}
        for store in stores.values():
            store.verify()
        n_images = sum(map(len, stores.values()))
        console.print(f"{name}: {counted(n_images, 'image is as it was', 'images are as they were')} written.")
        for class_name in shared_classes(stores):
            console.print(f"Class {class_name!r} is in more than one split.")
        groups = repeated_pictures(stores)
        across = [group for group in groups if len({occurrence.split for occurrence in group}) > 1]
        n_groups = counted(len(groups), "picture occurs", "pictures occur")
        shared = ", ".join(f"{n:,} in {one} and {other}" for (one, other), n in splits_that_share(groups).items())
        where = f": {shared}" if shared else ""
        console.print(f"{n_groups} more than once, {len(across):,} of them in more than one split{where}.")
        for group in across:
            console.print("  " + " = ".join(f"{o.split}: {o.image_name} ({o.class_name})" for o in group))


@dataclass(frozen=True)
class DataShow:
    """Draw a contact sheet: some images of some classes, as a PNG."""

    name: Name
    """The dataset, or the path that it was prepared from."""
    split: str = "train"
    """Which split."""
    output: Path | None = None
    """The file; by default DATASET-SPLIT.png here."""
    classes: int = 10
    """How many classes, a row each."""
    images: int = 8
    """How many images of each."""
    data_dir: DataDir = None
    """Where prepared datasets live; by default $NEARSHOT_DATA, or ~/.cache/nearshot."""
    side: int | None = None
    """The images' side, where the dataset was prepared in several."""

    def run(self, console: Console) -> None:
        """Write the sheet and say where it is."""
        name = prepared_name(self.name, self.data_dir)
        store = Store.open(name, self.split, self.data_dir, side=self.side)
        output = self.output or Path(f"{name}-{self.split}.png")
        contact_sheet(store, n_classes=self.classes, n_images=self.images).save(output)
        console.print(f"Written to {output}.")


@dataclass(frozen=True)
class DataUnpack:
    """Write a prepared dataset's images as PNG files, a folder for each class: to look at, or for another program.

    For instance: nearshot data unpack glyphs --classes 5 --images 5 --output letters
    """

    name: Name
    """The dataset, or the path of a folder; it is prepared on the way if nothing has to be asked, as for glyphs."""
    split: str = "train"
    """Which split."""
    output: Annotated[Path | None, tyro.conf.arg(metavar="DIR")] = None
    """Where to; by default DATASET-SPLIT here."""
    classes: int | None = None
    """How many classes, evenly chosen; by default all."""
    images: int | None = None
    """How many images of each; by default all."""
    skip: int = 0
    """Leave out so many first images of each class."""
    data_dir: DataDir = None
    """Where prepared datasets live; by default $NEARSHOT_DATA, or ~/.cache/nearshot."""
    side: int | None = None
    """The images' side, where the dataset was prepared in several."""

    def run(self, console: Console) -> None:
        """Write the files and say where they are."""
        store = open_or_prepare(self.name, self.split, self.data_dir, side=self.side)
        output = self.output or Path(f"{store.dataset}-{self.split}")
        n_images = unpack(store, output, n_classes=self.classes, n_images=self.images, skip=self.skip)
        n_classes = self.classes or len(store.class_names)
        console.print(f"{_size(n_images, n_classes)} {'is' if n_images == 1 else 'are'} in {output}.")


Data = (
    Annotated[DataList, tyro.conf.subcommand("list")]
    | Annotated[DataPrepare, tyro.conf.subcommand("prepare")]
    | Annotated[DataVerify, tyro.conf.subcommand("verify")]
    | Annotated[DataShow, tyro.conf.subcommand("show")]
    | Annotated[DataUnpack, tyro.conf.subcommand("unpack")]
)


def _read_classes(file: Path) -> list[str]:
    """Return the lines of a file that are not empty."""
    try:
        names = [line.strip() for line in file.expanduser().read_text(encoding="utf-8").splitlines()]
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"The list of classes {file} cannot be read: {error}.") from error
    if not any(names):
        raise InputError(f"The list of classes {file} is empty.")
    return [name for name in names if name]


def _size(n_images: int, n_classes: int) -> str:
    return f"{counted(n_images, 'image')} of {counted(n_classes, 'class', 'classes')}"


def _about_own(name: str, data_dir: Path | None) -> str:
    """Return what a dataset of the user's own is: its splits, and where its pictures came from."""
    sides: dict[int, dict[str, str]] = {}
    origins: dict[str | None, str | None] = {}
    for file in prepared_manifests(name, data_dir):
        about = sides.setdefault(int(file.parent.parent.name), {})
        try:
            manifest = read_manifest(file.parent)
        except FileFormatError:
            about[file.parent.name] = "damaged, prepare it again"
            continue
        about[file.parent.name] = _size(manifest["n_images"], len(manifest["class_names"]))
        origins[manifest.get("origin")] = manifest.get("source")
    lines = []
    for side, splits in sorted(sides.items()):
        in_order = sorted(splits, key=lambda split: SPLITS.index(split) if split in SPLITS else len(SPLITS))
        lines.append(f"{side}×{side}: {'; '.join(f'{split}, {splits[split]}' for split in in_order)}.")
    lines += [f"From: {printable(origin or 'not noted')} ({printable(layout)})." for origin, layout in origins.items()]
    return "\n".join(lines)


def _prepared(name: str, data_dir: Path | None) -> str:
    manifests = prepared_manifests(name, data_dir)
    splits = ", ".join(f"{path.parent.name} at {path.parent.parent.name}" for path in manifests)
    return f"prepared ({splits})" if splits else ""
