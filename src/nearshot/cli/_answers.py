"""Write the answers of a classifier as a table, CSV, JSON or JSON lines, image by image."""

from __future__ import annotations

import csv
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Literal, Protocol

from rich.cells import cell_len

from nearshot.cli._tables import padded
from nearshot.errors import NearshotError
from nearshot.text import printable

if TYPE_CHECKING:
    from nearshot.estimator import Explanation

    Answer = Explanation | NearshotError
    """The answer for an image, or the reason why it cannot be read."""

Format = Literal["table", "csv", "json", "jsonl"]

MAX_NAME_WIDTH = 60  # of the column of names; longer names shift their line
COLUMNS = (
    "image",
    "label",
    "most_probable",
    "probability",
    "novelty",
    "nearest",
    "nearest_label",
    "distance",
    "error",
)


class AnswerWriter(Protocol):
    """Writes answers to a file in one format."""

    def write(self, path: Path, answer: Answer) -> None:
        """Write the answer for an image."""

    def close(self, score: Mapping[str, Any] | None = None) -> None:
        """Write what comes after the last answer; formats for programs write the score."""


def answer_writer(
    form: Format, file: IO[str], paths: Sequence[Path], labels: Sequence[str]
) -> AnswerWriter:
    """Return a writer for images at `paths` whose answers are among `labels`."""
    if form == "csv":
        return CsvWriter(file)
    if form == "json":
        return JsonWriter(file)
    if form == "jsonl":
        return JsonLinesWriter(file)
    return TableWriter(file, paths, labels)


class TableWriter:
    """Writes aligned lines for people."""

    def __init__(self, file: IO[str], paths: Sequence[Path], labels: Sequence[str]) -> None:
        self.file = file
        self.name_width = min(MAX_NAME_WIDTH, _widest(["image", *paths]))
        self.label_width = _widest(["label", *labels])
        self._write_line("image", "label", "probability   nearest labelled image")

    def write(self, path: Path, answer: Answer) -> None:
        """Write the label, how sure it is, and the nearest labelled image."""
        if isinstance(answer, NearshotError):
            self._write_line(path, "–", f"cannot be read: {printable(answer)}")
            return
        if answer.is_rejected:
            confidence = f"novelty {answer.novelty:.2g}"
        else:
            confidence = f"{100 * answer.probability:.1f} %"
        nearest = answer.neighbours[0]
        about_nearest = f"{printable(nearest.name)} (distance {nearest.distance:.2f})"
        self._write_line(path, answer.label, f"{confidence:12}  {about_nearest}")

    def close(self, score: Mapping[str, Any] | None = None) -> None:
        """Nothing comes after the last line."""

    def _write_line(self, name: object, label: object, rest: str) -> None:
        name_cell = padded(name, self.name_width)
        label_cell = padded(label, self.label_width)
        self.file.write(f"{name_cell}  {label_cell}  {rest}\n")


class CsvWriter:
    """Writes comma-separated values."""

    def __init__(self, file: IO[str]) -> None:
        self.table = csv.writer(file, lineterminator="\n")
        self.table.writerow(COLUMNS)

    def write(self, path: Path, answer: Answer) -> None:
        """Write a row of `COLUMNS`."""
        if isinstance(answer, NearshotError):
            cells = [path, *[""] * 7, answer]
        else:
            nearest = answer.neighbours[0]
            cells = [
                path,
                answer.label,
                answer.nearest,
                f"{answer.probability:.6f}",
                f"{answer.novelty:.4f}",
                nearest.name,
                nearest.label,
                f"{nearest.distance:.4f}",
                "",
            ]
        self.table.writerow([printable(cell) for cell in cells])

    def close(self, score: Mapping[str, Any] | None = None) -> None:
        """Nothing comes after the last row."""


class JsonWriter:
    """Writes a list of objects; with a score, an object of both."""

    def __init__(self, file: IO[str]) -> None:
        self.file = file
        self.entries: list[str] = []

    def write(self, path: Path, answer: Answer) -> None:
        """Keep the entry of an image."""
        self.entries.append(_json_entry(path, answer))

    def close(self, score: Mapping[str, Any] | None = None) -> None:
        """Write everything."""
        entries = ",\n".join(self.entries)
        if score is None:
            self.file.write(f"[\n{entries}\n]\n")
        else:
            self.file.write(f'{{"images": [\n{entries}\n],\n"score": {json.dumps(score)}}}\n')


class JsonLinesWriter:
    """Writes an object a line as soon as its image is classified; then the score, if any."""

    def __init__(self, file: IO[str]) -> None:
        self.file = file

    def write(self, path: Path, answer: Answer) -> None:
        """Write the line of an image."""
        self.file.write(f"{_json_entry(path, answer)}\n")
        self.file.flush()

    def close(self, score: Mapping[str, Any] | None = None) -> None:
        """Write the score as the last line."""
        if score is not None:
            self.file.write(f"{json.dumps({'score': score})}\n")


def _json_entry(path: Path, answer: Answer) -> str:
    """Return the object of an image, in ASCII, since file names may not be valid Unicode."""
    entry: dict[str, Any] = {"image": str(path)}
    if isinstance(answer, NearshotError):
        entry["error"] = str(answer)
    else:
        entry["label"] = answer.label
        entry["rejected"] = answer.is_rejected
        entry["probabilities"] = {
            str(label): round(share, 6) for label, share in answer.probabilities.items()
        }
        entry["novelty"] = answer.novelty
        entry["nearest"] = [asdict(neighbour) for neighbour in answer.neighbours]
    return json.dumps(entry)


def _widest(texts: Sequence[object]) -> int:
    return max(cell_len(printable(text)) for text in texts)
