"""Walk folders, with a record of what was skipped.

Links to folders are not followed, since they can form a cycle, unless the link is the given path itself. Hidden files
and folders are skipped.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from nearshot.errors import InputError


class Skipped:
    """What a walk skipped."""

    def __init__(self) -> None:
        self.locked: dict[Path, str] = {}  # folders that could not be read, each with the reason
        self.linked: list[Path] = []  # links to folders that were not followed

    def note(self, folder: str | Path, error: OSError) -> None:
        """Record a folder that could not be read; a path that is no folder, or a broken link, is ignored."""
        if not isinstance(error, FileNotFoundError | NotADirectoryError) and error.errno != errno.ELOOP:
            self.locked.setdefault(Path(folder), error.strerror or type(error).__name__)

    def refuse_locked(self) -> None:
        """Raise an error if a folder could not be read."""
        for folder, reason in self.locked.items():
            raise locked_error(folder, reason)

    def sentences(self) -> list[str]:
        """Return one sentence for each kind of skipped folder: how many, an example, and why."""
        said = [about_linked(self.linked)] if self.linked else []
        if self.locked:
            said.insert(0, f"{_skipped(list(self.locked), 'folder')}: {next(iter(self.locked.values()))}.")
        return said


def about_linked(links: Sequence[Path]) -> str:
    """Return the sentence about links to folders that were not followed."""
    return f"{_skipped(links, 'linked folder')}: a link is followed only where it is given itself."


def locked_error(place: str | Path, reason: str | None) -> InputError:
    """Return the error for a path that cannot be read."""
    return InputError(f"{place} cannot be read: {reason}. Allow reading it, or remove it from what you give.")


def files_under(folder: Path, skipped: Skipped) -> list[Path]:
    """Return the files in a folder, at any depth, sorted."""
    found = [above / name for above, names in walk(folder, skipped) for name in names]
    return sorted(path for path in found if _is_file(path, skipped))


def walk(folder: Path, skipped: Skipped) -> Iterator[tuple[Path, list[str]]]:
    """Yield a folder and every folder below it, each with the names of its files; hidden ones are skipped."""
    for above, folders, names in os.walk(folder, onerror=lambda error: skipped.note(error.filename, error)):
        seen = sorted(name for name in folders if not name.startswith("."))
        links = [name for name in seen if os.path.islink(Path(above, name))]  # noqa: PTH114 (Path's own raises)
        skipped.linked += [Path(above, name) for name in links]
        folders[:] = [name for name in seen if name not in links]
        yield Path(above), [name for name in names if not name.startswith(".") and name != "Thumbs.db"]


def _is_file(path: Path, skipped: Skipped) -> bool:
    """Return whether a path is a file. A broken link counts, so that reading it gives the error."""
    try:
        path.lstat()
    except OSError as error:
        skipped.note(path.parent, error)
        return False
    return os.path.isfile(path) or not os.path.exists(path)  # noqa: PTH110, PTH113 (Path's own raise)


def _skipped(folders: Sequence[Path], what: str) -> str:
    if len(folders) == 1:
        return f"The {what} {folders[0]} is skipped"
    return f"{len(folders):,} {what}s are skipped, such as {folders[0]}"
