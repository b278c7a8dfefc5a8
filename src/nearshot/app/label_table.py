"""Labels from a table (CSV): one row a photo, with its name or path and its label."""

import csv
import io
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath

from nearshot.app.project import Photo, Project
from nearshot.errors import InputError

PHOTO_COLUMNS = ("photo", "file", "filename", "file_name", "path", "image", "name")
LABEL_COLUMNS = ("label", "class", "class_name", "category", "species")
DELIMITERS = ",;\t"
FORMULA_STARTS = ("=", "+", "-", "@", "\t", "\r")  # a spreadsheet would compute these cells


@dataclass(frozen=True)
class ImportResult:
    """What a table of labels did.

    Attributes:
        labelled: how many photos got a label.
        kept: how many photos kept another label.
        missing: the photos of rows that name no photo, or several.
    """

    labelled: int
    kept: int
    missing: Sequence[str]


def import_labels(project: Project, data: bytes) -> ImportResult:
    """Label the photos of a table that have no label, as one action."""
    rows = read_table(data)
    photos = defaultdict(list)
    for present in project.present:
        photos[present.name].append(present)
    labels: dict[str, str] = {}
    missing = []
    n_kept = 0
    for name, label in rows:
        photo = _photo_of(name, photos)
        if photo is None:
            missing.append(name)
        elif project.label_of(photo) is None:
            labels[photo.id] = label
        elif project.label_of(photo) != label:
            n_kept += 1
    n_labelled = project.import_labels(labels)
    return ImportResult(n_labelled, n_kept, tuple(missing))


def read_table(data: bytes) -> list[tuple[str, str]]:
    """Return the photo and the label of each row that has both."""
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InputError("The table must be text in UTF-8. Save it as CSV (UTF-8).") from error
    first_line = text.partition("\n")[0]
    delimiter = max(DELIMITERS, key=first_line.count)
    try:
        rows = list(csv.reader(io.StringIO(text, newline=""), delimiter=delimiter))
    except csv.Error as error:
        raise InputError(f"The table cannot be read: {error}.") from error
    header = [cell.strip().lower() for cell in rows[0]] if rows else []
    photo_column = _column(header, PHOTO_COLUMNS, "photo")
    label_column = _column(header, LABEL_COLUMNS, "label")
    pairs = []
    for row in rows[1:]:
        if len(row) > max(photo_column, label_column):
            name = plain_text(row[photo_column]).strip()
            label = plain_text(row[label_column]).strip()
            if name and label:
                pairs.append((name, label))
    return pairs


def plain_cell(text: str) -> str:
    """Return text that no spreadsheet takes for a formula."""
    text = text.encode(errors="backslashreplace").decode()
    return f"'{text}" if text.startswith(FORMULA_STARTS) else text


def plain_text(cell: str) -> str:
    """Inverse of `plain_cell`."""
    is_marked = cell.startswith("'") and cell[1:].startswith(FORMULA_STARTS)
    return cell[1:] if is_marked else cell


def _column(header: Sequence[str], names: Sequence[str], what: str) -> int:
    for name in names:
        if name in header:
            return header.index(name)
    raise InputError(
        f"The first row of the table must name the columns photo and label; that of the {what} is "
        f"missing (got {', '.join(header) or 'nothing'})."
    )


def _photo_of(name: str, photos: dict[str, list[Photo]]) -> Photo | None:
    """Return the photo whose path ends with the given name; None if there is none, or several."""
    parts = PurePosixPath(name.replace("\\", "/")).parts
    wanted = tuple(part for part in parts if part not in ("..", ".", "/"))
    if not wanted:
        return None
    matches = [
        photo for photo in photos.get(wanted[-1], []) if photo.path.parts[-len(wanted) :] == wanted
    ]
    return matches[0] if len(matches) == 1 else None
