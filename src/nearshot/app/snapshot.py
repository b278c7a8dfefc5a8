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
        try:
            fields = _fields_of_version_1(content, folder)
        except (AttributeError, TypeError, ValueError) as error:
            raise _damaged(path, "it has values of a wrong type") from error
        _check_fields(fields, path)
        return Snapshot(0, fields, is_current=False)
    if (content.get("format"), content.get("version")) != (FORMAT, VERSION):
        raise FileFormatError(
            f"{path} is not a project, or of another version of nearshot. Start a new project."
        )
    sequence = content.get("sequence")
    are_there = all(isinstance(content.get(field), dict) for field in FIELDS)
    if type(sequence) is not int or not are_there:
        raise _damaged(path, "it lacks values")
    checked = {field: dict(content[field]) for field in FIELDS}
    _check_fields(checked, path)
    return Snapshot(sequence, checked)


def _check_fields(fields: Fields, path: Path) -> None:
    """Raise an error if people, or another program, have written what no project has."""
    folders = fields["settings"].get("folders", [])
    classes = fields["settings"].get("classes", [])
    if type(folders) is not list or not all(type(folder) is str for folder in folders):
        raise _damaged(path, "its folders are no list of texts")
    if type(classes) is not list or not all(map(_is_class, classes)):
        raise _damaged(path, f"its classes need names, other than {NONE_OF_THESE!r}, and numbers")
    names = {name for name, _ in classes} | {NONE_OF_THESE}
    labels = fields["labels"].values()
    if not all(type(label) is str and label in names for label in labels):
        raise _damaged(path, "it has labels that are no classes")
    if not all(type(thing) is str for thing in fields["things"].values()):
        raise _damaged(path, "its things are no texts")


def _is_class(value: object) -> bool:
    if type(value) is not list or len(value) != 2:
        return False
    name, slot = value
    is_name = type(name) is str and name.isprintable() and name.casefold() != NONE_OF_THESE
    return is_name and name != "" and type(slot) is int


def _damaged(path: Path, how: str) -> FileFormatError:
    return FileFormatError(f"{path} is damaged: {how}. Restore it from a copy.")


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
