"""A project: photos, classes and labels, in a folder that survives a restart.

Every action is an entry of `journal.jsonl` before it is done; see `nearshot.app.journal`.
`project.json` is a snapshot with the sequence number of its last entry. Uploaded photos are in
`photos/`, small versions in `thumbnails/`. Folders of photos are referred to, and never changed.
"""

import hashlib
import os
import re
import unicodedata
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

from nearshot.app.journal import Change, Entry, History, Journal, Kind, Step
from nearshot.app.snapshot import Snapshot, read_snapshot, write_snapshot
from nearshot.data.readers import is_image
from nearshot.errors import FileFormatError, InputError
from nearshot.estimator.copy_images import safe_name, write_new
from nearshot.estimator.find_images import find_images
from nearshot.estimator.novelty import NONE_OF_THESE
from nearshot.io import FolderLock, readable
from nearshot.text import counted

MAX_PHOTOS = 20_000
MAX_NAME_LENGTH = 80
MAX_DEPTH = 8  # of the folders of an uploaded photo
KEPT_ENTRIES = 1000  # of the journal, when it is compacted

NewValue = tuple[str, str, Any]
"""A field, a key and the value that it gets; None removes it."""


@dataclass(frozen=True)
class Photo:
    """A photo of a project.

    Attributes:
        id: identifies it in addresses.
        key: its path relative to the project; identifies it in `project.json`.
        path: its path.
        folders: the names of the folders that it is in, outermost first; none at the top.
        is_upload: whether it is in the project's own folder of photos.
    """

    id: str
    key: str
    path: Path
    folders: tuple[str, ...]
    is_upload: bool

    @property
    def name(self) -> str:
        """Its file name, as text."""
        return readable(self.path.name)

    @property
    def group(self) -> str:
        """Its folders, as text: "terns/monday"."""
        return "/".join(self.folders)


class Project:
    """The photos, classes and labels of a folder. Every change is saved before it is made.

    Attributes:
        folder: the folder of the project.
        photos: all photos by their identifiers, in the order of their paths.
        history: what can be undone and redone.
    """

    def __init__(self, folder: Path, photo_folders: Iterable[Path] = ()) -> None:
        photo_folders = list(photo_folders)
        for photo_folder in photo_folders:  # before anything is written
            if not photo_folder.is_dir():
                raise InputError(f"{photo_folder} is not a folder of photos.")
            find_images([photo_folder])  # a folder without photos is an error
        self.folder = folder.absolute()
        self.folder.mkdir(parents=True, exist_ok=True)
        self._lock = FolderLock(self.folder)
        if not self._lock.acquire():
            raise InputError(
                f"The project {folder} is open in another nearshot app. Close it, or use that one."
            )
        try:
            snapshot = read_snapshot(self.folder)
            self._journal = Journal(self.folder / "journal.jsonl")
        except BaseException:
            self._lock.release()
            raise
        try:
            self._open(snapshot, photo_folders)
        except BaseException:
            self._journal.close()
            self._lock.release()
            raise

    def _open(self, snapshot: Snapshot, photo_folders: Iterable[Path]) -> None:
        self._sequence = snapshot.sequence
        self._fields = snapshot.fields
        self._catch_up()
        self.history = History(self._journal.entries)
        new_folders = [_relative(photo_folder, self.folder) for photo_folder in photo_folders]
        folders = list(dict.fromkeys([*self.folders, *new_folders]))
        self.photos: dict[str, Photo] = {}
        for name in [*folders, "photos"]:
            self._add_folder(self.folder / name)
        if len(self.photos) > MAX_PHOTOS:
            raise InputError(
                f"A project has at most {MAX_PHOTOS:,} photos (got {len(self.photos):,}). "
                "Split them."
            )
        if not snapshot.is_current:
            self._write_snapshot()
        if folders != self.folders:
            self._record("open a folder", [("settings", "folders", folders)], kind="open")

    def _catch_up(self) -> None:
        """Apply the entries of the journal that the snapshot does not have."""
        entries = self._journal.entries
        if entries and entries[-1].sequence < self._sequence:
            self._journal.keep_last(0)  # of a time before the snapshot: a power cut lost the others
        if entries and entries[0].sequence > self._sequence + 1:
            raise FileFormatError(
                f"{self.folder / 'project.json'} is older than {self._journal.path}: entries "
                "between them are missing. Restore both from the same copy."
            )
        for entry in self._journal.entries:
            if entry.sequence > self._sequence:
                self._apply(entry)

    def close(self) -> None:
        """Write a snapshot, and let other processes open the project."""
        try:
            self._write_snapshot()
            self._journal.close()
        finally:
            self._lock.release()

    def sync(self) -> None:
        """Make everything that was done survive a power cut."""
        self._journal.sync()

    @property
    def labels(self) -> Mapping[str, str]:
        """The label of each labelled photo, by its key: a class, or `NONE_OF_THESE`."""
        return self._fields["labels"]

    @property
    def confirmed(self) -> Mapping[str, bool]:
        """The photos whose labels are right although they look wrong, by key."""
        return self._fields["confirmed"]

    @property
    def accepted(self) -> Mapping[str, bool]:
        """The photos whose labels were accepted in bulk, by key."""
        return self._fields["accepted"]

    @property
    def things(self) -> Mapping[str, str]:
        """What photos show, by key: those of equal names show the same thing."""
        return self._fields["things"]

    @property
    def removed(self) -> Mapping[str, bool]:
        """The photos that the user has taken out, by key."""
        return self._fields["removed"]

    @property
    def uploads(self) -> Mapping[str, bool]:
        """The photos that were added on the page, by key."""
        return self._fields["uploads"]

    @property
    def folders(self) -> list[str]:
        """The folders of photos, relative to that of the project."""
        return list(self._fields["settings"].get("folders", []))

    @property
    def slots(self) -> dict[str, int]:
        """The slot of each class, in the order of the user: its key and colour on the page."""
        return dict(self._fields["settings"].get("classes", []))

    @property
    def classes(self) -> list[str]:
        """The names of the classes, in the order of the user."""
        return list(self.slots)

    @property
    def present(self) -> list[Photo]:
        """The photos that are not removed."""
        return [photo for photo in self._added_photos() if photo.key not in self.removed]

    @property
    def removed_photos(self) -> list[Photo]:
        """The photos that the user has taken out."""
        return [photo for photo in self._added_photos() if photo.key in self.removed]

    def _added_photos(self) -> Iterator[Photo]:
        """Yield all photos but uploads that were undone, or cut short."""
        for photo in self.photos.values():
            if not photo.is_upload or photo.key in self.uploads:
                yield photo

    def label_of(self, photo: Photo) -> str | None:
        """Return the label of a photo, or None."""
        return self.labels.get(photo.key)

    def add_class(self, name: str, ids: Iterable[str] = ()) -> str:
        """Add a class, label photos with it, and return its name without spaces around it."""
        name = check_class_name(name)
        if name in self.slots:
            raise InputError(f"There is a class {name!r} already.")
        photos = self.find(ids)
        labelled = f" and label {counted(len(photos), 'photo')}" if photos else ""
        values = [self._with_classes([name])]
        values += _label_values((photo.key, name) for photo in photos)
        self._record(f"add the class {name}{labelled}", values)
        return name

    def rename_class(self, old: str, new: str, *, merge: bool = False) -> str:
        """Rename a class, and return its name.

        The name of another class is an error, unless the two are to be merged.
        """
        self._check_class(old)
        new = check_class_name(new)
        if new == old:
            return new
        slots = self.slots
        title = f"rename the class {old} to {new}"
        if new in slots:
            if not merge:
                raise InputError(f"There is a class {new!r} already. Merge the two?")
            title = f"merge the class {old} into {new}"
            del slots[old]
        else:
            slots = {new if name == old else name: slot for name, slot in slots.items()}
        relabelled = [("labels", key, new) for key in self._keys_of(old)]
        self._record(title, [_classes_value(slots), *relabelled])
        return new

    def remove_class(self, name: str) -> None:
        """Remove a class and the labels of its photos."""
        self._check_class(name)
        slots = self.slots
        del slots[name]
        unlabelled = _label_values((key, None) for key in self._keys_of(name))
        self._record(f"remove the class {name}", [_classes_value(slots), *unlabelled])

    def set_label(self, ids: Iterable[str], label: str | None) -> None:
        """Give photos one label; None removes their labels."""
        self.set_labels(dict.fromkeys(ids, label))

    def set_labels(self, labels: Mapping[str, str | None]) -> None:
        """Give photos labels, by their identifiers; None removes a label."""
        photos = self.find(labels)
        for label in set(labels.values()):
            if label not in (None, NONE_OF_THESE):
                self._check_class(label)
        pairs = [(photo.key, labels[photo.id]) for photo in photos]
        values = [*_label_values(pairs), *(("removed", key, None) for key, _ in pairs)]
        verb = "remove the label of" if set(labels.values()) == {None} else "label"
        self._record(f"{verb} {counted(len(pairs), 'photo')}", values)

    def accept(self, labels: Mapping[str, str], *, is_seen: bool = False) -> None:
        """Take answers as labels of photos that have none; others keep theirs.

        Unless the user looked at each (`is_seen`), their origin is kept in `accepted`.
        """
        photos = [photo for photo in self.find(labels) if photo.key not in self.labels]
        for label in {labels[photo.id] for photo in photos}:
            if label != NONE_OF_THESE:
                self._check_class(label)
        values = _label_values(
            ((photo.key, labels[photo.id]) for photo in photos), is_accepted=not is_seen
        )
        self._record(f"accept the answers for {counted(len(photos), 'photo')}", values)

    def import_labels(self, labels: Mapping[str, str]) -> int:
        """Label photos that have none, by their identifiers; return how many. Classes are added."""
        pairs = []
        names = []
        for photo in self.find(labels):
            name = _tidy(labels[photo.id])
            if name.casefold() == NONE_OF_THESE:
                name = NONE_OF_THESE
            elif name not in self.slots:
                names.append(check_class_name(name))
            if photo.key not in self.labels:
                pairs.append((photo.key, name))
        values = [self._with_classes(names), *_label_values(pairs)]
        self._record(f"label {counted(len(pairs), 'photo')} from a table", values)
        return len(pairs)

    def confirm(self, ids: Iterable[str]) -> None:
        """Record that labels are right: the user has looked at each."""
        photos = [photo for photo in self.find(ids) if photo.key in self.labels]
        values: list[NewValue] = [("confirmed", photo.key, True) for photo in photos]
        values += [("accepted", photo.key, None) for photo in photos]
        verb = "keep the label of" if len(photos) == 1 else "keep the labels of"
        self._record(f"{verb} {counted(len(photos), 'photo')}", values)

    def set_removed(self, ids: Iterable[str], *, removed: bool) -> None:
        """Take photos out of the project, or put them back. Files are never deleted."""
        photos = self.find(ids)
        value = True if removed else None
        verb = "take out" if removed else "put back"
        self._record(
            f"{verb} {counted(len(photos), 'photo')}",
            [("removed", photo.key, value) for photo in photos],
        )

    def set_same_thing(self, ids: Iterable[str], *, same: bool) -> None:
        """Record that photos show the same thing, with those that show it already; or undo that."""
        photos = self.find(ids)
        keys = dict.fromkeys(photo.key for photo in photos)
        if not same:
            self._record(
                f"tell {counted(len(keys), 'photo')} apart", [("things", key, None) for key in keys]
            )
            return
        names = dict.fromkeys(self.things[key] for key in keys if key in self.things)
        for key, name in self.things.items():
            if name in names:
                keys[key] = None
        taken = set(self.things.values())
        free = (f"thing {number}" for number in count(1))
        name = next(iter(names), None) or next(name for name in free if name not in taken)
        self._record(
            f"record that {counted(len(keys), 'photo')} show the same thing",
            [("things", key, name) for key in keys],
        )

    def label_by_folders(self, level: int = 0) -> None:
        """Label every unlabelled photo with the name of its folder.

        `level` counts the folders that it lies in from the outermost, 0. A long name is shortened.
        New classes are in the order of their names, with numbers as numbers.
        """
        labels = {}
        for photo in self.present:
            if photo.key in self.labels or not level < len(photo.folders):
                continue
            printable = "".join(filter(str.isprintable, _tidy(photo.folders[level])))
            name = printable[:MAX_NAME_LENGTH].strip()
            if name == "" or name.casefold() == NONE_OF_THESE:
                continue
            labels[photo.key] = name
        names = sorted(set(labels.values()), key=natural_order)
        values = [self._with_classes(names), *_label_values(labels.items())]
        self._record(f"label {counted(len(labels), 'photo')} by their folders", values)

    def add_photo(self, data: bytes, name: str, group: str = "", batch: str = "") -> Photo:
        """Keep an uploaded photo; of two with the same name and content, one.

        `group` are the folders that it was in, separated by slashes. Photos with the same `batch`
        are undone together.
        """
        name = safe_name(name)
        if not is_image(name):
            raise InputError(f"{name} is not a photo by its name.")
        if len(self.photos) >= MAX_PHOTOS:
            raise InputError(f"A project has at most {MAX_PHOTOS:,} photos.")
        folders = [safe_name(part) for part in group.split("/") if part][:MAX_DEPTH]
        folder = (self.folder / "photos").joinpath(*folders)
        folder.mkdir(parents=True, exist_ok=True)
        _, path = write_new(data, folder, name)
        photo = self._add(path, tuple(folders), is_upload=True)
        values: list[NewValue] = [("uploads", photo.key, True), ("removed", photo.key, None)]
        self._record("add photos", values, batch=batch)
        return photo

    def find(self, ids: Iterable[str]) -> list[Photo]:
        """Return photos by their identifiers."""
        try:
            return [self.photos[photo_id] for photo_id in ids]
        except KeyError as error:
            raise InputError(f"There is no photo {error}.") from None

    def undo(self) -> tuple[Step, list[Photo]]:
        """Take back the last action. Return the step that does, and its photos."""
        if not self.history.undo:
            raise InputError("There is nothing to undo.")
        return self._take(self.history.undo[-1], "undo")

    def redo(self) -> tuple[Step, list[Photo]]:
        """Do the last action that was taken back again. Return the step, and its photos."""
        if not self.history.redo:
            raise InputError("There is nothing to redo.")
        return self._take(self.history.redo[-1], "redo")

    def _take(self, step: Step, kind: Kind) -> tuple[Step, list[Photo]]:
        self._write(step.title, step.changes, kind=kind, batch="")
        keys = {change.key for change in step.changes if change.field != "settings"}
        return step, [photo for photo in self.present if photo.key in keys]

    def _record(
        self, title: str, values: Iterable[NewValue], *, kind: Kind = "do", batch: str = ""
    ) -> None:
        """Set values, as one entry. Nothing is written if they are set already."""
        changes = []
        for field, key, value in values:
            before = self._fields[field].get(key)
            if value != before:
                changes.append(Change(field, key, before, value))
        if changes:
            self._write(title, tuple(changes), kind=kind, batch=batch)

    def _write(self, title: str, changes: tuple[Change, ...], *, kind: Kind, batch: str) -> None:
        """Append an entry to the journal, and apply it."""
        entry = Entry(self._sequence + 1, kind, readable(title), changes, batch)
        self._journal.append(entry)
        self._apply(entry)
        self.history.add(entry)
        if len(self._journal.entries) >= 2 * KEPT_ENTRIES:
            self._write_snapshot()
            self._journal.keep_last(KEPT_ENTRIES)

    def _apply(self, entry: Entry) -> None:
        for change in entry.changes:
            values = self._fields[change.field]
            if change.after is None:
                values.pop(change.key, None)
            else:
                values[change.key] = change.after
        self._sequence = entry.sequence

    def _write_snapshot(self) -> None:
        write_snapshot(self.folder, Snapshot(self._sequence, self._fields))

    def _with_classes(self, names: Iterable[str]) -> NewValue:
        """Return the classes with new ones; each gets the lowest slot that is free."""
        slots = self.slots
        for name in names:
            if name not in slots:
                taken = set(slots.values())
                slots[name] = next(slot for slot in count() if slot not in taken)
        return _classes_value(slots)

    def _keys_of(self, label: str) -> list[str]:
        return [key for key, name in self.labels.items() if name == label]

    def _add_folder(self, folder: Path) -> None:
        """Add the photos of a folder, if it has any. It may be missing, as on another disk."""
        folder = Path(os.path.normpath(folder))
        paths: list[Path] = []
        if folder.is_dir():
            with suppress(InputError):  # it has no photos
                paths = find_images([folder]).paths
        uploads = self.folder / "photos"
        for path in paths:
            is_upload = path.is_relative_to(uploads)
            if path.is_relative_to(self.folder) and not is_upload:
                continue  # a copy or thumbnail of the project's own
            self._add(path, path.relative_to(folder).parts[:-1], is_upload=is_upload)

    def _add(self, path: Path, folders: tuple[str, ...], *, is_upload: bool) -> Photo:
        key = _relative(path, self.folder)
        photo_id = hashlib.sha256(os.fsencode(key)).hexdigest()[:16]
        names = tuple(readable(name) for name in folders)
        return self.photos.setdefault(photo_id, Photo(photo_id, key, path, names, is_upload))

    def _check_class(self, name: str | None) -> None:
        if name not in self.slots:
            raise InputError(f"There is no class {name!r}.")


def check_class_name(name: str) -> str:
    """Return the name of a class without spaces around it; one that is not allowed is an error."""
    name = _tidy(name)
    if not name.isprintable():
        raise InputError(
            f"The name of a class contains a character that cannot be shown (got {name!r})."
        )
    if not 1 <= len(name) <= MAX_NAME_LENGTH:
        raise InputError(
            f"The name of a class must be 1 to {MAX_NAME_LENGTH} letters (got {len(name)})."
        )
    if name.casefold() == NONE_OF_THESE:
        raise InputError(
            f"Choose another name than {NONE_OF_THESE!r}: it is that of photos that are like no "
            "class."
        )
    return name


def natural_order(text: str) -> list[tuple[int, int, str]]:
    """Return a key that sorts names by people's order, with numbers as numbers.

    >>> sorted(["10 rose", "9 lily", "Iris"], key=natural_order)
    ['9 lily', '10 rose', 'Iris']
    """
    parts = re.findall(r"[0-9]+|[^0-9]+", text.casefold())
    return [(0, int(part), "") if part[0].isdecimal() else (1, 0, part) for part in parts]


def _label_values(
    labels: Iterable[tuple[str, str | None]], *, is_accepted: bool = False
) -> Iterator[NewValue]:
    """Yield the values of labels, by the keys of photos. A label is new, so nobody confirmed it."""
    for key, label in labels:
        yield "labels", key, label
        yield "confirmed", key, None
        yield "accepted", key, True if is_accepted else None


def _classes_value(slots: Mapping[str, int]) -> NewValue:
    return "settings", "classes", [[name, slot] for name, slot in slots.items()]


def _tidy(name: str) -> str:
    """Return a name with composed letters and single spaces."""
    return " ".join(unicodedata.normalize("NFC", name).split())


def _relative(path: Path, folder: Path) -> str:
    """Return a path relative to a folder, so that both can be moved together.

    On another drive it is absolute.
    """
    try:
        return os.path.relpath(path.absolute(), folder)
    except ValueError:
        return str(path.absolute())
