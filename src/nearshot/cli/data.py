"""`nearshot data`: prepare, check and look at datasets."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import tyro
from rich.console import Console
from rich.table import Table

from nearshot.data import SOURCES, Store, open_files, plan_folder, prepare, prepare_plan
from nearshot.data.inspection import contact_sheet, repeated_pictures, shared_classes
from nearshot.data.store import data_folder, prepared_splits
from nearshot.errors import InputError

__all__ = ["Data"]

DEFAULT_FOLDER_SIDE = 84
DataDir = Annotated[Path | None, tyro.conf.arg(metavar="DIR")]
Name = Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="NAME")]


@dataclass(frozen=True)
class DataList:
    """List the datasets that nearshot knows, where to get them, and which are prepared."""

    data_dir: DataDir = None
    """Where prepared datasets live; by default $NEARSHOT_DATA, or ~/.cache/nearshot."""

    def run(self, console: Console) -> None:
        """Print a table."""
        table = Table(title=f"Datasets; prepared ones live in {data_folder(self.data_dir)}")
        for heading in ("name", "what", "from", "prepared"):
            table.add_column(heading)
        for name, source in SOURCES.items():
            table.add_row(name, source.description, source.where, _prepared(name, self.data_dir))
        table.add_row("FOLDER", "your own pictures", "a folder for each class, or a CSV of files and labels", "")
        console.print(table)


@dataclass(frozen=True)
class DataPrepare:
    """Read a dataset, check it, and pack it into one array a split. It can be stopped at any time and goes on later.

    Examples: nearshot data prepare glyphs; nearshot data prepare cifar-fs --from cifar100.zip
    """

    name: Name
    """A known dataset (see `nearshot data list`), or a name for your own folder of pictures."""
    from_path: Annotated[tuple[Path, ...], tyro.conf.arg(name="from", metavar="PATH [PATH ...]")] = ()
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
    seed: int = 0
    """For your own pictures: another seed splits the classes differently."""

    def run(self, console: Console) -> None:
        """Prepare all splits and say what they are."""
        if self.name in SOURCES:
            stores = prepare(
                self.name,
                self.from_path,
                data_dir=self.data_dir,
                side=self.side,
                fit=self.fit,
                broken=self.broken,
            )
        elif not self.from_path:
            raise InputError(
                f"{self.name!r} is no known dataset; for your own pictures, say where they are: --from PATH."
            )
        else:
            plan = plan_folder(open_files(self.from_path), table=self.table, seed=self.seed)
            stores = prepare_plan(
                self.name,
                plan,
                data_dir=self.data_dir,
                side=self.side or DEFAULT_FOLDER_SIDE,
                fit=self.fit,
                broken=self.broken,
            )
        for split, store in stores.items():
            skipped = f", {len(store.manifest['broken'])} broken left out" if store.manifest["broken"] else ""
            side = store.images.shape[1]
            console.print(
                f"{self.name} {split}: {len(store):,} images of {len(store.class_names):,} classes, {side}×{side}"
                f"{skipped}; fingerprint {store.fingerprint[:12]}"
            )


@dataclass(frozen=True)
class DataVerify:
    """Read a prepared dataset again, and report what has changed, classes in two splits, and repeated pictures."""

    name: Name
    """The dataset."""
    data_dir: DataDir = None
    """Where prepared datasets live; by default $NEARSHOT_DATA, or ~/.cache/nearshot."""
    side: int | None = None
    """The images' side, where the dataset was prepared in several."""

    def run(self, console: Console) -> None:
        """Verify all splits; what has changed is an error, repetitions are only reported."""
        splits = prepared_splits(self.name, self.data_dir, side=self.side)
        stores = {split: Store(folder) for split, folder in splits.items()}
        for store in stores.values():
            store.verify()
        console.print(f"{self.name}: {sum(map(len, stores.values())):,} images are as they were written.")
        for name in shared_classes(stores):
            console.print(f"Class {name!r} is in more than one split.")
        groups = repeated_pictures(stores)
        across = [group for group in groups if len({occurrence.split for occurrence in group}) > 1]
        console.print(f"{len(groups)} pictures occur more than once, {len(across)} of them in more than one split.")
        for group in across:
            console.print("  " + " = ".join(f"{o.split}: {o.image_name} ({o.class_name})" for o in group))


@dataclass(frozen=True)
class DataShow:
    """Draw a contact sheet: some images of some classes, as a PNG."""

    name: Name
    """The dataset."""
    split: str = "train"
    """Which split."""
    output: Path | None = None
    """The file; by default NAME-SPLIT.png here."""
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
        store = Store.open(self.name, self.split, self.data_dir, side=self.side)
        output = self.output or Path(f"{self.name}-{self.split}.png")
        contact_sheet(store, n_classes=self.classes, n_images=self.images).save(output)
        console.print(f"Written to {output}.")


Command = (
    Annotated[DataList, tyro.conf.subcommand("list")]
    | Annotated[DataPrepare, tyro.conf.subcommand("prepare")]
    | Annotated[DataVerify, tyro.conf.subcommand("verify")]
    | Annotated[DataShow, tyro.conf.subcommand("show")]
)


@dataclass(frozen=True)
class Data:
    """Prepare, check and look at datasets."""

    command: tyro.conf.OmitSubcommandPrefixes[Command]

    def run(self, console: Console) -> None:
        """Run the chosen one."""
        self.command.run(console)


def _prepared(name: str, data_dir: Path | None) -> str:
    folders = sorted((data_folder(data_dir) / name).glob("*/[!.]*/manifest.json"))
    return ", ".join(f"{path.parent.name} at {path.parent.parent.name}" for path in folders)
