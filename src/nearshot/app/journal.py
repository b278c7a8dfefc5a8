"""The journal of a project: what people did, in order, one line an action.

An entry holds differences (field, key, value before, value after), not commands: the folders of
photos and the answers of the classifier change, so that a command repeated later could do something
else. A line is written and flushed before the project changes. After the process is killed, the
journal has every action that was acknowledged. The last lines may be torn; they are ignored.

Undo and redo are entries too. What can be undone is read from the entries, so it survives a
restart.
"""

import json
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Self

from nearshot.errors import FileFormatError
from nearshot.io import CHECKSUM, atomic_write, json_checksum, naming_a_full_disk

Kind = Literal["do", "undo", "redo", "open"]
KINDS = ("do", "undo", "redo", "open")


@dataclass(frozen=True)
class Change:
    """A difference of a project.

    Attributes:
        field: what changes, such as "labels".
        key: of which photo, or which setting.
        before: the value before; None if there was none.
        after: the value after; None if there is none.
    """

    field: str
    key: str
    before: Any
    after: Any

    @property
    def inverse(self) -> "Change":
        """The change that takes this one back."""
        return Change(self.field, self.key, self.after, self.before)


@dataclass(frozen=True)
class Entry:
    """One action of a person.

    Attributes:
        sequence: its number; each entry has the next one.
        kind: whether it did, undid or redid something. "open" cannot be undone.
        title: what was done, for people: "label 3 photos".
        changes: the differences that it made.
        batch: entries in a row with the same batch are undone together; "" is none.
    """

    sequence: int
    kind: Kind
    title: str
    changes: tuple[Change, ...]
    batch: str = ""

    def line(self) -> str:
        """Return the line of the journal, with a checksum."""
        content = {
            "sequence": self.sequence,
            "kind": self.kind,
            "title": self.title,
            "batch": self.batch,
            "changes": [
                [change.field, change.key, change.before, change.after] for change in self.changes
            ],
        }
        content[CHECKSUM] = json_checksum(content)
        return json.dumps(content, separators=(",", ":")) + "\n"

    @classmethod
    def from_line(cls, line: bytes) -> Self | None:
        """Return the entry of a line; None if the line is torn or damaged."""
        try:
            content = json.loads(line)
            checksum = content.pop(CHECKSUM)
            if not line.endswith(b"\n") or checksum != json_checksum(content):
                return None
            entry = cls(
                sequence=content["sequence"],
                kind=content["kind"],
                title=content["title"],
                changes=tuple(Change(*change) for change in content["changes"]),
                batch=content["batch"],
            )
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            return None
        is_valid = type(entry.sequence) is int and entry.kind in KINDS
        return entry if is_valid else None


class Journal:
    """The file of a journal, open to append to it. Lines that were torn at its end are cut off.

    Attributes:
        path: the file.
        entries: all entries in it.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.entries, self._n_bytes = _read_entries(path)
        self._file = path.open("ab", buffering=0)  # written when `append` returns
        self._file.truncate(self._n_bytes)
        self._is_synced = True

    def append(self, entry: Entry) -> None:
        """Write an entry and flush it. If that fails, the journal is as before."""
        line = entry.line().encode()
        try:
            with naming_a_full_disk(self.path):
                rest = memoryview(line)
                while rest:
                    rest = rest[self._file.write(rest) :]
        except BaseException:
            self._file.truncate(self._n_bytes)
            raise
        self._n_bytes += len(line)
        self._is_synced = False
        self.entries.append(entry)

    def sync(self) -> None:
        """Make everything written survive a power cut."""
        if not self._is_synced:
            os.fsync(self._file.fileno())
            self._is_synced = True

    def keep_last(self, n_entries: int) -> None:
        """Forget all but the last entries."""
        kept = self.entries[len(self.entries) - min(n_entries, len(self.entries)) :]
        content = b"".join(entry.line().encode() for entry in kept)
        self._file.close()  # Windows replaces no open file
        try:
            with atomic_write(self.path) as file:
                file.write(content)
            self.entries = kept
            self._n_bytes = len(content)
        finally:
            self._file = self.path.open("ab", buffering=0)

    def close(self) -> None:
        """Close the file."""
        self.sync()
        self._file.close()


def _read_entries(path: Path) -> tuple[list[Entry], int]:
    """Return the entries of a file, and how many bytes they take.

    Damaged lines at the end are torn; those with good ones after them are an error.
    """
    if not path.exists():
        return [], 0
    entries: list[Entry] = []
    n_bytes = 0
    n_damaged = 0
    with path.open("rb") as file:
        for line in file:
            entry = Entry.from_line(line)
            if entry is None:
                n_damaged += 1
                continue
            is_next = not entries or entry.sequence == entries[-1].sequence + 1
            if n_damaged > 0 or not is_next:
                raise FileFormatError(
                    f"{path} is damaged after line {len(entries):,}: the next entries are missing. "
                    "Restore it from a copy, or delete the lines after that one."
                )
            entries.append(entry)
            n_bytes += len(line)
    return entries, n_bytes


@dataclass(frozen=True)
class Step:
    """What one undo or redo does.

    Attributes:
        title: what was done, for people.
        changes: the differences to make.
        batch: that of its entries.
    """

    title: str
    changes: tuple[Change, ...]
    batch: str = ""


class History:
    """What can be undone and redone.

    Attributes:
        undo: steps that take back what was done, the last of them first to be taken.
        redo: steps that do again what was undone.
    """

    def __init__(self, entries: Iterable[Entry] = ()) -> None:
        self.undo: list[Step] = []
        self.redo: list[Step] = []
        for entry in entries:
            self.add(entry)

    def add(self, entry: Entry) -> None:
        """Take note of an entry."""
        back = Step(entry.title, inverse_of(entry.changes), entry.batch)
        if entry.kind == "do":
            self.redo.clear()
            if entry.batch and self.undo and self.undo[-1].batch == entry.batch:
                earlier = self.undo.pop()
                back = Step(entry.title, back.changes + earlier.changes, entry.batch)
            self.undo.append(back)
        elif entry.kind == "undo":
            # The entry that it undoes may be forgotten.
            if self.undo:
                self.undo.pop()
            self.redo.append(back)
        elif entry.kind == "redo":
            if self.redo:
                self.redo.pop()
            self.undo.append(back)


def inverse_of(changes: Sequence[Change]) -> tuple[Change, ...]:
    """Return the changes that take others back, the last one first."""
    return tuple(change.inverse for change in reversed(changes))
