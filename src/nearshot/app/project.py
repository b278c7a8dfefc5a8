"""A project: photos, classes and labels, in a folder that survives a restart.

`project.json` has the folders of photos, the classes and the label of each photo. Uploaded photos
are in `photos/`, small versions in `thumbnails/`. Folders of photos are referred to, and never
changed.
"""

import hashlib
import os
import unicodedata
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nearshot.data.readers import is_image
from nearshot.errors import FileFormatError, InputError
from nearshot.estimator.copy_images import safe_name, write_new
from nearshot.estimator.find_images import find_images
from nearshot.estimator.novelty import NONE_OF_THESE
from nearshot.io import FileLock, read_json, readable, write_json

FORMAT = "nearshot-project"
VERSION = 1
MAX_PHOTOS = 20_000
MAX_NAME_LENGTH = 80


@dataclass(frozen=True)
class Photo:
    """A photo of a project.

    Attributes:
        id: identifies it in addresses.
        key: its path relative to the project; identifies it in `project.json`.
        path: its path.
        group: the name of the folder that it is in, or "" at the top.
    """

    id: str
    key: str
    path: Path
    group: str

    @property
    def name(self) -> str:
        """Its file name, as text."""
        return readable(self.path.name)


class Project:
    """The photos, classes and labels of a folder. Every change is saved at once.

    Attributes:
        folder: the folder of the project.
        folders: the folders of photos, relative to it.
        photos: all photos by their identifiers, in the order of their paths.
        classes: the names of the classes, in the order of the user.
        labels: the class of each labelled photo, by its key.
        confirmed: the keys of photos whose labels are right although they look wrong.
        removed: the keys of photos that the user has taken out.
    """

    def __init__(self, folder: Path, photo_folders: Iterable[Path] = ()) -> None:
        photo_folders = list(photo_folders)
        for photo_folder in photo_folders:  # before anything is written
            if not photo_folder.is_dir():
                raise InputError(f"{photo_folder} is not a folder of photos.")
            find_images([photo_folder])  # a folder without photos is an error
        self.folder = folder.absolute()
        self.folder.mkdir(parents=True, exist_ok=True)
        self._lock = FileLock(self.folder / ".lock")
        if not self._lock.acquire():
            raise InputError(
                f"The project {folder} is open in another nearshot app. Close it, or use that one."
            )
        saved = _read_project(self.folder / "project.json")
        self.classes: list[str] = saved["classes"]
        self.labels: dict[str, str] = saved["labels"]
        self.confirmed: set[str] = set(saved["confirmed"])
        self.removed: set[str] = set(saved["removed"])
        new_folders = [_relative(photo_folder, self.folder) for photo_folder in photo_folders]
        self.folders: list[str] = list(dict.fromkeys([*saved["folders"], *new_folders]))
        self.photos: dict[str, Photo] = {}
        for name in [*self.folders, "photos"]:
            self._add_folder(self.folder / name)
        if len(self.photos) > MAX_PHOTOS:
            raise InputError(
                f"A project has at most {MAX_PHOTOS:,} photos (got {len(self.photos):,}). "
                "Split them."
            )
        self.save()

    def close(self) -> None:
        """Let other processes open the project."""
        self._lock.release(remove=True)

    @property
    def present(self) -> list[Photo]:
        """The photos that are not removed."""
        return [photo for photo in self.photos.values() if photo.key not in self.removed]

    def label_of(self, photo: Photo) -> str | None:
        """Return the label of a photo, or None."""
        return self.labels.get(photo.key)

    def add_class(self, name: str) -> str:
        """Add a class, and return its name without spaces around it."""
        name = _tidy(name)
        if not name.isprintable():
            raise InputError(
                f"The name of a class contains a character that cannot be shown (got {name!r})."
            )
        if not 1 <= len(name) <= MAX_NAME_LENGTH:
            raise InputError(
                f"The name of a class must be 1 to {MAX_NAME_LENGTH} letters (got {len(name)})."
            )
        if name == NONE_OF_THESE:
            raise InputError(
                f"Choose another name than {NONE_OF_THESE!r}: it is that of photos that are like "
                "no class."
            )
        if name in self.classes:
            raise InputError(f"There is a class {name!r} already.")
        self.classes.append(name)
        self.save()
        return name

    def rename_class(self, old: str, new: str) -> str:
        """Rename a class, and return its name; with the name of another class, join the two."""
        position = self._class_index(old)
        if new not in self.classes:
            self.add_class(new)
            new = self.classes.pop()  # as it was tidied
            self.classes[position] = new
        elif new != old:
            del self.classes[position]
        self.labels = {key: new if label == old else label for key, label in self.labels.items()}
        self.save()
        return new

    def remove_class(self, name: str) -> None:
        """Remove a class and the labels of its photos."""
        del self.classes[self._class_index(name)]
        self.labels = {key: label for key, label in self.labels.items() if label != name}
        self.save()

    def set_label(self, ids: Iterable[str], label: str | None) -> None:
        """Label photos; None removes their labels."""
        photos = self.find(ids)
        if label is not None:
            self._class_index(label)  # another name is an error
        for photo in photos:
            self.confirmed.discard(photo.key)
            self.removed.discard(photo.key)
            if label is None:
                self.labels.pop(photo.key, None)
            else:
                self.labels[photo.key] = label
        self.save()

    def set_removed(self, ids: Iterable[str], *, removed: bool) -> None:
        """Take photos out of the project, or put them back. Files are never deleted."""
        keys = {photo.key for photo in self.find(ids)}
        if removed:
            self.removed |= keys
        else:
            self.removed -= keys
        self.save()

    def confirm(self, ids: Iterable[str]) -> None:
        """Record that labels are right although they look wrong."""
        self.confirmed |= {photo.key for photo in self.find(ids)}
        self.save()

    def label_by_folders(self) -> None:
        """Label every unlabelled photo that lies in a folder with the folder's name.

        A long name is shortened.
        """
        for photo in self.present:
            printable = "".join(filter(str.isprintable, _tidy(photo.group)))
            name = printable[:MAX_NAME_LENGTH].strip()
            if photo.key in self.labels or name in ("", NONE_OF_THESE):
                continue
            if name not in self.classes:
                self.add_class(name)
            self.labels[photo.key] = name
        self.save()

    def add_photo(self, data: bytes, name: str, group: str = "") -> Photo:
        """Keep an uploaded photo; of two with the same name and content, one."""
        name = safe_name(name)
        if not is_image(name):
            raise InputError(f"{name} is not a photo by its name.")
        if len(self.photos) >= MAX_PHOTOS:
            raise InputError(f"A project has at most {MAX_PHOTOS:,} photos.")
        folder = self.folder / "photos"
        if group:
            folder /= safe_name(group)
        folder.mkdir(parents=True, exist_ok=True)
        _, path = write_new(data, folder, name)
        photo = self._add(path, folder.name if group else "")
        if photo.key in self.removed:
            self.set_removed([photo.id], removed=False)
        return photo

    def find(self, ids: Iterable[str]) -> list[Photo]:
        """Return photos by their identifiers."""
        try:
            return [self.photos[photo_id] for photo_id in ids]
        except KeyError as error:
            raise InputError(f"There is no photo {error}.") from None

    def save(self) -> None:
        """Write `project.json`, atomically."""
        content = {
            "format": FORMAT,
            "version": VERSION,
            "folders": self.folders,
            "classes": self.classes,
            "labels": dict(sorted(self.labels.items())),
            "confirmed": sorted(self.confirmed),
            "removed": sorted(self.removed),
        }
        write_json(self.folder / "project.json", content, durable=False)

    def _add_folder(self, folder: Path) -> None:
        """Add the photos of a folder, if it has any. It may be missing, as on another disk."""
        folder = Path(os.path.normpath(folder))
        paths: list[Path] = []
        if folder.is_dir():
            with suppress(InputError):  # it has no photos
                paths = find_images([folder]).paths
        uploads = self.folder / "photos"
        for path in paths:
            if path.is_relative_to(self.folder) and not path.is_relative_to(uploads):
                continue  # a copy or thumbnail of the project's own
            parts = path.relative_to(folder).parts
            self._add(path, parts[0] if len(parts) > 1 else "")

    def _add(self, path: Path, group: str) -> Photo:
        key = _relative(path, self.folder)
        photo_id = hashlib.sha256(os.fsencode(key)).hexdigest()[:16]
        return self.photos.setdefault(photo_id, Photo(photo_id, key, path, readable(group)))

    def _class_index(self, name: str) -> int:
        if name not in self.classes:
            raise InputError(f"There is no class {name!r}.")
        return self.classes.index(name)


def _read_project(path: Path) -> dict[str, Any]:
    """Return the content of `project.json`; that of an empty project if there is no file."""
    empty: dict[str, Any] = {
        "folders": [],
        "classes": [],
        "labels": {},
        "confirmed": [],
        "removed": [],
    }
    if not path.exists():
        return empty
    saved = read_json(path)
    if (saved.get("format"), saved.get("version")) != (FORMAT, VERSION):
        raise FileFormatError(
            f"{path} is not a project, or of another version of nearshot. Start a new project."
        )
    return empty | saved


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
