"""`nearshot data`: prepare, verify and view datasets."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import tyro
from rich.console import Console

from nearshot.cli._tables import print_entries
from nearshot.data import SOURCES, Store, inspection, open_or_prepare, prepare, prepare_folder
from nearshot.data import store as stores
from nearshot.data.datasets import omniglot_name
from nearshot.data.datasets.source import SPLITS
from nearshot.data.preparation import PrepareOptions, given_path, prepared_name
from nearshot.errors import FileFormatError, InputError
from nearshot.text import counted, printable

OPTIONS_OF_OWN = ("table", "fractions", "seed", "train_classes", "val_classes", "test_classes")
OPTIONS_OF_OMNIGLOT = ("omniglot_split", "rotations")
Name = Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="DATASET")]
PREPARED_HELP = "The dataset, or the path that it was prepared from."
Prepared = Annotated[
    tyro.conf.Positional[str], tyro.conf.arg(metavar="DATASET", help=PREPARED_HELP)
]
Paths = Annotated[
    tuple[Path, ...],
    tyro.conf.arg(aliases=["--from"], metavar="PATH [PATH ...]", help_behavior_hint=""),
]
ClassList = Annotated[Path | None, tyro.conf.arg(metavar="FILE")]
Fractions = Annotated[tuple[float, float, float] | None, tyro.conf.arg(metavar="TRAIN VAL TEST")]
DATA_DIR_HELP = "The folder of prepared datasets; by default $NEARSHOT_DATA, or ~/.cache/nearshot."
DataDir = Annotated[Path | None, tyro.conf.arg(metavar="DIR", help=DATA_DIR_HELP)]
Side = Annotated[
    int | None, tyro.conf.arg(help="The images' side, if the dataset was prepared with several.")
]


@dataclass(frozen=True)
class DataList:
    """List the datasets that nearshot knows, where to get them, which are prepared, and your own."""

    data_dir: DataDir = None

    def run(self, console: Console) -> None:
        """Print the list."""
        entries = []
        for name, source in SOURCES.items():
            manifests = stores.prepared_manifests(name, self.data_dir)
            splits = ", ".join(
                f"{path.parent.name} at {path.parent.parent.name}" for path in manifests
            )
            state = f"prepared ({splits})" if splits else ""
            entries.append((name, state, f"{source.description}.\nFrom: {source.where}."))
        own = [name for name in stores.prepared_datasets(self.data_dir) if name not in SOURCES]
        entries += [
            (printable(name), "your own, prepared", _about_own(name, self.data_dir)) for name in own
        ]
        layouts = "one folder per class, or a CSV of files and labels"
        entries.append(("FOLDER", "", f"Your own images.\nFrom: {layouts}."))
        print_entries(
            f"Datasets; prepared ones are in {stores.data_folder(self.data_dir)}", entries, console
        )


@dataclass(frozen=True)
class DataPrepare:
    """Read a dataset, check it, and pack each split into one array. If it is interrupted, run it again to resume.

    For example:
      nearshot data prepare glyphs                         # drawn here
      nearshot data prepare cifar-fs --from cifar100.zip   # or downloaded
      nearshot data prepare omniglot --rotations           # as omniglot-rotations
      nearshot data prepare ./my-photos                    # one folder per class
      nearshot data prepare birds --from birds.zip --fractions 0.5 0.25 0.25
      nearshot data prepare ./birds --train-classes a.txt --test-classes b.txt
    """

    name: Name
    """A known dataset (see `nearshot data list`). For your own images: the path of a folder with
    one folder per class, or of an archive of it; or any name, with --from."""
    paths: Paths = ()
    """The folder or archive; or several archives that belong together. Without it, glyphs is drawn
    here, and cifar-fs and omniglot are downloaded."""
    data_dir: DataDir = None
    side: int | None = None
    """The side of the square images; by default the dataset's usual one, or 84."""
    fit: Literal["crop", "stretch"] = "crop"
    """Resize the shorter side and crop the centre, or change the proportions."""
    broken: Literal["refuse", "skip"] = "refuse"
    """Stop at an image that cannot be read, or skip it and list it."""
    table: str | None = None
    """For your own images: a CSV file among them with the columns file and label."""
    fractions: Fractions = None
    """For your own images: the fraction of the classes in each split; by default 0.64 0.16 0.2."""
    seed: int | None = None
    """For your own images: the seed of the random split of the classes; by default 0."""
    train_classes: ClassList = None
    """For your own images: a text file with the classes of the training split, one per line,
    instead of fractions. Classes in no list are skipped."""
    val_classes: ClassList = None
    """The same for the validation split."""
    test_classes: ClassList = None
    """The same for the test split."""
    omniglot_split: Literal["vinyals", "background"] | None = None
    """For omniglot: Vinyals et al.'s three splits, the default; or Lake et al.'s background (train)
    and evaluation (test), prepared as omniglot-background."""
    rotations: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False
    """For omniglot: add each character rotated by 90, 180 and 270 degrees as three more classes."""

    def run(self, console: Console) -> None:
        """Prepare all splits and print their sizes."""
        refused = [(option, "your own images") for option in OPTIONS_OF_OWN if self.name in SOURCES]
        refused += [
            (option, "omniglot") for option in OPTIONS_OF_OMNIGLOT if self.name != "omniglot"
        ]
        for option, whose in refused:
            if getattr(self, option) not in (None, False):
                flag = "--" + option.replace("_", "-")
                raise InputError(f"{flag} is for {whose}; it does not apply to {self.name!r}.")
        options: PrepareOptions = {
            "data_dir": self.data_dir,
            "fit": self.fit,
            "broken": self.broken,
        }
        if self.name in SOURCES:
            name = self.name
            if name == "omniglot":
                name = omniglot_name(self.omniglot_split or "vinyals", rotations=self.rotations)
            made = prepare(name, self.paths, side=self.side, **options)
        else:
            made = self._prepare_own(options)
        for split, store in made.items():
            skipped = (
                f", {len(store.manifest['broken'])} broken skipped"
                if store.manifest["broken"]
                else ""
            )
            side, size = store.images.shape[1], _size(len(store), len(store.class_names))
            fingerprint = store.fingerprint[:12]
            console.print(
                f"{store.dataset} {split}: {size}, {side}×{side}{skipped}; fingerprint {fingerprint}"
            )

    def _prepare_own(self, options: PrepareOptions) -> dict[str, Store]:
        path = given_path(self.name)
        if path is not None and self.paths:
            raise InputError(
                f"The images are given twice: as {self.name} and by --from. With --from, give a name."
            )
        if path is None and not self.paths:
            here = f", or ./{self.name} for the folder here" if Path(self.name).is_dir() else ""
            raise InputError(
                f"{self.name!r} is no known dataset; for your own images, give --from PATH{here}."
            )
        lists = {"train": self.train_classes, "val": self.val_classes, "test": self.test_classes}
        texts = {
            split: file.read_text(encoding="utf-8")
            for split, file in lists.items()
            if file is not None
        }
        classes = {
            split: [line.strip() for line in text.splitlines() if line.strip()]
            for split, text in texts.items()
        }
        for split, names in classes.items():
            if not names:
                raise InputError(f"The list of classes {lists[split]} is empty.")
        return prepare_folder(
            self.paths if path is None else path,
            name=self.name if path is None else None,
            table=self.table,
            classes=classes or None,
            fractions=None
            if self.fractions is None
            else dict(zip(SPLITS, self.fractions, strict=True)),
            seed=self.seed or 0,
            side=self.side,
            **options,
        )


@dataclass(frozen=True)
class DataVerify:
    """Read a prepared dataset again; report changed files, classes in two splits, and repeated images."""

    name: Prepared
    data_dir: DataDir = None
    side: Side = None

    def run(self, console: Console) -> None:
        """Verify all splits; a changed file is an error, repeated images are only reported."""
        name = prepared_name(self.name, self.data_dir)
        folders = stores.prepared_splits(name, self.data_dir, side=self.side)
        opened = {split: Store(folder) for split, folder in folders.items()}
        for store in opened.values():
            store.verify()
        n_images = counted(sum(map(len, opened.values())), "image is", "images are")
        console.print(f"{name}: {n_images} unchanged.")
        for class_name in inspection.shared_classes(opened):
            console.print(f"Class {class_name!r} is in more than one split.")
        groups = inspection.repeated_images(opened)
        across = [group for group in groups if len({occurrence.split for occurrence in group}) > 1]
        n_groups = counted(len(groups), "image occurs", "images occur")
        pairs = inspection.splits_that_share(groups).items()
        shared = ", ".join(f"{n:,} in {one} and {other}" for (one, other), n in pairs)
        where = f": {shared}" if shared else ""
        console.print(
            f"{n_groups} more than once, {len(across):,} of them in more than one split{where}."
        )
        for group in across:
            console.print(
                "  " + " = ".join(f"{o.split}: {o.image_name} ({o.class_name})" for o in group)
            )


@dataclass(frozen=True)
class DataShow:
    """Draw a contact sheet: some images of some classes, as a PNG."""

    name: Prepared
    split: str = "train"
    """The split to show."""
    output: Path | None = None
    """The file to write; by default DATASET-SPLIT.png here."""
    n_classes: Annotated[int, tyro.conf.arg(aliases=["--classes"])] = 10
    """How many classes, one row each."""
    n_images: Annotated[int, tyro.conf.arg(aliases=["--images"])] = 8
    """How many images of each."""
    data_dir: DataDir = None
    side: Side = None

    def run(self, console: Console) -> None:
        """Write the sheet and print its path."""
        name = prepared_name(self.name, self.data_dir)
        store = Store.open(name, self.split, self.data_dir, side=self.side)
        output = self.output or Path(f"{name}-{self.split}.png")
        inspection.contact_sheet(store, n_classes=self.n_classes, n_images=self.n_images).save(
            output
        )
        console.print(f"Written to {output}.")


@dataclass(frozen=True)
class DataUnpack:
    """Write a prepared dataset's images as PNG files, one folder per class: to look at, or for another program.

    For example: nearshot data unpack glyphs --n-classes 5 --n-images 5 --output letters
    """

    name: Name
    """The dataset, or the path of a folder; a folder and glyphs are prepared first if necessary."""
    split: str = "train"
    """The split to unpack."""
    output: Annotated[Path | None, tyro.conf.arg(metavar="DIR")] = None
    """The folder to write; by default DATASET-SPLIT here."""
    n_classes: Annotated[int | None, tyro.conf.arg(aliases=["--classes"])] = None
    """How many classes, evenly chosen; by default all."""
    n_images: Annotated[int | None, tyro.conf.arg(aliases=["--images"])] = None
    """How many images of each; by default all."""
    skip: int = 0
    """Skip so many first images of each class."""
    data_dir: DataDir = None
    side: Side = None

    def run(self, console: Console) -> None:
        """Write the files and print their folder."""
        store = open_or_prepare(self.name, self.split, self.data_dir, side=self.side)
        output = self.output or Path(f"{store.dataset}-{self.split}")
        n_images = inspection.unpack(
            store, output, n_classes=self.n_classes, n_images=self.n_images, skip=self.skip
        )
        n_classes = self.n_classes or len(store.class_names)
        console.print(
            f"{_size(n_images, n_classes)} {'is' if n_images == 1 else 'are'} in {output}."
        )


Data = (
    Annotated[DataList, tyro.conf.subcommand("list")]
    | Annotated[DataPrepare, tyro.conf.subcommand("prepare")]
    | Annotated[DataVerify, tyro.conf.subcommand("verify")]
    | Annotated[DataShow, tyro.conf.subcommand("show")]
    | Annotated[DataUnpack, tyro.conf.subcommand("unpack")]
)


def _size(n_images: int, n_classes: int) -> str:
    return f"{counted(n_images, 'image')} of {counted(n_classes, 'class', 'classes')}"


def _about_own(name: str, data_dir: Path | None) -> str:
    """Describe a dataset of the user's own: its splits, and where its images came from."""
    lines, origins = [], []
    for file in stores.prepared_manifests(name, data_dir):
        side = file.parent.parent.name
        try:
            manifest = stores.read_manifest(file.parent)
            about = _size(manifest["n_images"], len(manifest["class_names"]))
            origin, layout = manifest.get("origin") or "unknown", manifest.get("source")
            origins.append(f"From: {printable(origin)} ({printable(layout)}).")
        except FileFormatError:
            about = "damaged, prepare it again"
        lines.append(f"{file.parent.name}, {about}, {side}×{side}.")
    return "\n".join([*lines, *dict.fromkeys(origins)])
