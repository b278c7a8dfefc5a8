"""`project.json`: the values of a project after one of its journal's entries."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nearshot.data.readers import is_image
from nearshot.errors import FileFormatError
from nearshot.estimator.novelty import NONE_OF_THESE
from nearshot.io import read_json, write_json

FORMAT = "nearshot-project"
VERSION = 2
FIELDS = ("settings", "labels", "confirmed", "accepted", "things", "removed", "uploads")

Fields = dict[str, dict[str, Any]]


@dataclass(frozen=True)
class Snapshot:
    """The values of a project.

    Attributes:
        sequence: the number of the last entry in them; 0 if there is none.
        fields: the values by field and key. "settings" are the folders and classes; the keys of
            the others are those of photos.
        is_current: whether the file holds them in this form.
    """

    sequence: int
    fields: Fields
    is_current: bool = True


def read_snapshot(folder: Path) -> Snapshot:
    """Return the values of a project; those of an empty one if there is no file."""
    path = folder / "project.json"
    if not path.exists():
        return Snapshot(0, {field: {} for field in FIELDS}, is_current=False)
    content = read_json(path)
    if content.get("format") == FORMAT and content.get("version") == 1:
        return Snapshot(0, _fields_of_version_1(content, folder), is_current=False)
    if (content.get("format"), content.get("version")) != (FORMAT, VERSION):
        raise FileFormatError(
            f"{path} is not a project, or of another version of nearshot. Start a new project."
        )
    fields = {field: content.get(field) for field in FIELDS}
    sequence = content.get("sequence")
    are_valid = all(isinstance(values, dict) for values in fields.values())
    if type(sequence) is not int or not are_valid:
        raise FileFormatError(f"{path} is damaged: it lacks values. Restore it from a copy.")
    return Snapshot(sequence, {field: dict(values or {}) for field, values in fields.items()})


def write_snapshot(folder: Path, snapshot: Snapshot) -> None:
    """Write `project.json`, atomically."""
    content: dict[str, Any] = {
        "format": FORMAT,
        "version": VERSION,
        "sequence": snapshot.sequence,
    }
    for field in FIELDS:
        content[field] = dict(sorted(snapshot.fields[field].items()))
    write_json(folder / "project.json", content)


def _fields_of_version_1(content: dict[str, Any], folder: Path) -> Fields:
    """Return the values of a project of version 1, which had no journal.

    It took every photo in `photos/` for an upload, and nothing of the name "none of these".
    """
    uploads = [path for path in (folder / "photos").rglob("*") if is_image(path.name)]
    names = [name for name in content.get("classes", []) if name.casefold() != NONE_OF_THESE]
    labels = {}
    for key, label in content.get("labels", {}).items():
        labels[key] = NONE_OF_THESE if label.casefold() == NONE_OF_THESE else label
    return {
        "settings": {
            "folders": content.get("folders", []),
            "classes": [[name, slot] for slot, name in enumerate(names)],
        },
        "labels": labels,
        "confirmed": dict.fromkeys(content.get("confirmed", []), True),
        "accepted": {},
        "things": {},
        "removed": dict.fromkeys(content.get("removed", []), True),
        "uploads": {str(path.relative_to(folder)): True for path in uploads},
    }
