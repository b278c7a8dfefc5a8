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
from nearshot.data.preparation import given_path, prepared_name
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
    """List the known datasets, where to get them, which are prepared, and your own."""

    data_dir: DataDir = None

    def run(self, console: Console) -> None:
        """Print the list."""
        entries = []
        for name, source in SOURCES.items():
            splits = stores.find_splits(name, self.data_dir)
            described = [f"{prepared.split} at {prepared.side}" for prepared in splits]
            state = f"prepared ({', '.join(described)})" if splits else ""
            entries.append((name, state, f"{source.description}.\nFrom: {source.where}."))
        for name in stores.prepared_datasets(self.data_dir):
            if name not in SOURCES:
                about = _about_own(name, self.data_dir)
                entries.append((printable(name), "your own, prepared", about))
        layouts = "one folder per class, or a CSV of files and labels"
        entries.append(("FOLDER", "", f"Your own images.\nFrom: {layouts}."))
        folder = stores.data_folder(self.data_dir)
        print_entries(f"Datasets; prepared ones are in {folder}", entries, console)


@dataclass(frozen=True)
class DataPrepare:
    """Read a dataset, check it, and pack each split into one array.

    If it is interrupted, run it again to resume.

    For example:
      nearshot data prepare glyphs                         # drawn here
      nearshot data prepare cifar-fs --from cifar100.zip   # or downloaded
      nearshot data prepare omniglot --rotations           # as omniglot-rotations
      nearshot data prepare ./my-photos                    # one folder per class
      nearshot data prepare birds --from birds.zip --fractions 0.5 0.25 0.25
      nearshot data prepare ./birds --train-classes a.txt --test-classes b.txt
    """

    name: Name
    """A known dataset (see `nearshot data list`).
    For your own images: the path of a folder with one folder per class, or of an archive of it.
    Or any name, with --from."""
    paths: Paths = ()
    """The folder or archive; or several archives that belong together.
    Without it, glyphs is drawn here, and cifar-fs and omniglot are downloaded."""
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
    """For your own images: a text file with the training classes, one per line.
    It replaces fractions; classes in no list are skipped."""
    val_classes: ClassList = None
    """The same for the validation split."""
    test_classes: ClassList = None
    """The same for the test split."""
    omniglot_split: Literal["vinyals", "background"] | None = None
    """For omniglot: Vinyals et al.'s three splits, the default.
    Or Lake et al.'s background (train) and evaluation (test), prepared as omniglot-background."""
    rotations: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False
    """For omniglot: add each character rotated by 90, 180 and 270 degrees as three more classes."""

    def run(self, console: Console) -> None:
        """Prepare all splits and print their sizes."""
        if self.name in SOURCES:
            for option in OPTIONS_OF_OWN:
                self._refuse(option, "your own images")
        if self.name != "omniglot":
            for option in OPTIONS_OF_OMNIGLOT:
                self._refuse(option, "omniglot")
        for split, store in self._prepare().items():
            side = store.images.shape[1]
            size = _size(len(store), len(store.class_names))
            n_skipped = len(store.manifest["broken"])
            skipped = f", {n_skipped} broken skipped" if n_skipped else ""
            console.print(
                f"{store.dataset} {split}: {size}, {side}×{side}{skipped}; "
                f"fingerprint {store.fingerprint[:12]}"
            )

    def _refuse(self, option: str, purpose: str) -> None:
        """Raise an error if an option is given that does not apply to the dataset."""
        if getattr(self, option) not in (None, False):
            raise InputError(f"{option} is for {purpose}; it does not apply to {self.name!r}.")

    def _prepare(self) -> dict[str, Store]:
        if self.name not in SOURCES:
            return self._prepare_own()
        name = self.name
        if name == "omniglot":
            name = omniglot_name(self.omniglot_split or "vinyals", rotations=self.rotations)
        return prepare(
            name,
            self.paths,
            side=self.side,
            fit=self.fit,
            broken=self.broken,
            data_dir=self.data_dir,
        )

    def _prepare_own(self) -> dict[str, Store]:
        path = given_path(self.name)
        if path is not None and self.paths:
            raise InputError(
                f"The images are given twice: as {self.name} and as paths. With paths, give a name."
            )
        if path is None and not self.paths:
            hint = f", or ./{self.name} for the folder here" if Path(self.name).is_dir() else ""
            raise InputError(
                f"{self.name!r} is no known dataset; for your own images, give --from PATH{hint}."
            )
        fractions = None
        if self.fractions is not None:
            fractions = dict(zip(SPLITS, self.fractions, strict=True))
        return prepare_folder(
            self.paths if path is None else path,
            name=self.name if path is None else None,
            table=self.table,
            classes=self._classes(),
            fractions=fractions,
            seed=self.seed or 0,
            side=self.side,
            fit=self.fit,
            broken=self.broken,
            data_dir=self.data_dir,
        )

    def _classes(self) -> dict[str, list[str]] | None:
        """Return the classes of each split, where files list them."""
        files = {"train": self.train_classes, "val": self.val_classes, "test": self.test_classes}
        classes = {}
        for split, file in files.items():
            if file is None:
                continue
            lines = [line.strip() for line in file.read_text(encoding="utf-8").splitlines()]
            classes[split] = [line for line in lines if line]
            if not classes[split]:
                raise InputError(f"{split}_classes must list at least one class; {file} is empty.")
        return classes or None


@dataclass(frozen=True)
class DataVerify:
    """Read a prepared dataset again; report changes, classes in two splits, and repeated images."""

    name: Prepared
    data_dir: DataDir = None
    side: Side = None

    def run(self, console: Console) -> None:
        """Verify all splits; a changed file is an error, repeated images are only reported."""
        name = prepared_name(self.name, self.data_dir)
        folders = stores.prepared_splits(name, self.data_dir, side=self.side)
        stores_by_split = {split: Store(folder) for split, folder in folders.items()}
        n_images = 0
        for store in stores_by_split.values():
            store.verify()
            n_images += len(store)
        console.print(f"{name}: {counted(n_images, 'image is', 'images are')} unchanged.")
        for class_name in inspection.shared_classes(stores_by_split):
            console.print(f"Class {class_name!r} is in more than one split.")
        groups = inspection.repeated_images(stores_by_split)
        across = [group for group in groups if len({image.split for image in group}) > 1]
        shared = []
        for (first, second), n_shared in inspection.splits_that_share(groups).items():
            shared.append(f"{n_shared:,} in {first} and {second}")
        where = f": {', '.join(shared)}" if shared else ""
        n_groups = counted(len(groups), "image occurs", "images occur")
        console.print(
            f"{n_groups} more than once, {len(across):,} of them in more than one split{where}."
        )
        for group in across:
            console.print(f"  {' = '.join(map(_described, group))}")


@dataclass(frozen=True)
class DataShow:
    """Draw a contact sheet: some images of some classes, as a PNG."""

    name: Prepared
    split: str = "train"
    """The split to show."""
    output: Path | None = None
    """The file to write; by default DATASET-SPLIT.png here."""
    n_classes: int = 10
    """How many classes, one row each."""
    n_images: int = 8
    """How many images of each."""
    data_dir: DataDir = None
    side: Side = None

    def run(self, console: Console) -> None:
        """Write the sheet and print its path."""
        name = prepared_name(self.name, self.data_dir)
        store = Store.open(name, self.split, self.data_dir, side=self.side)
        output = self.output or Path(f"{name}-{self.split}.png")
        sheet = inspection.contact_sheet(store, n_classes=self.n_classes, n_images=self.n_images)
        sheet.save(output)
        console.print(f"Written to {output}.")


@dataclass(frozen=True)
class DataUnpack:
    """Write a prepared dataset's images as PNG files, one folder per class.

    For example:
      nearshot data unpack glyphs --n-classes 5 --n-images 5 --output letters
    """

    name: Name
    """The dataset, or the path of a folder; a folder and glyphs are prepared first if necessary."""
    split: str = "train"
    """The split to unpack."""
    output: Annotated[Path | None, tyro.conf.arg(metavar="DIR")] = None
    """The folder to write; by default DATASET-SPLIT here."""
    n_classes: int | None = None
    """How many classes, evenly chosen; by default all."""
    n_images: int | None = None
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
        verb = "is" if n_images == 1 else "are"
        console.print(f"{_size(n_images, n_classes)} {verb} in {output}.")


Data = (
    Annotated[DataList, tyro.conf.subcommand("list")]
    | Annotated[DataPrepare, tyro.conf.subcommand("prepare")]
    | Annotated[DataVerify, tyro.conf.subcommand("verify")]
    | Annotated[DataShow, tyro.conf.subcommand("show")]
    | Annotated[DataUnpack, tyro.conf.subcommand("unpack")]
)


def _size(n_images: int, n_classes: int) -> str:
    return f"{counted(n_images, 'image')} of {counted(n_classes, 'class', 'classes')}"


def _described(occurrence: inspection.Occurrence) -> str:
    return f"{occurrence.split}: {occurrence.image_name} ({occurrence.class_name})"


def _about_own(name: str, data_dir: Path | None) -> str:
    """Describe a dataset of the user's own: its splits, and where its images came from."""
    lines = []
    origins = []
    for folder, side, split in stores.find_splits(name, data_dir):
        try:
            manifest = stores.read_manifest(folder)
        except FileFormatError:
            lines.append(f"{split}, damaged, prepare it again, {side}×{side}.")
            continue
        size = _size(manifest["n_images"], len(manifest["class_names"]))
        lines.append(f"{split}, {size}, {side}×{side}.")
        origin = printable(manifest["origin"] or "unknown")
        origins.append(f"From: {origin} ({printable(manifest['source'])}).")
    return "\n".join([*lines, *dict.fromkeys(origins)])
