"""Files that are there whole or not at all."""

from __future__ import annotations

import errno
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from nearshot.errors import NearshotError

__all__ = ["write_whole"]


@contextmanager
def write_whole(path: str | Path) -> Iterator[IO[bytes]]:
    """Open a file for writing that takes its place under `path` only when all of it is on the disk.

    Until then, and if anything goes wrong, what was at `path` before is still there and nothing else is.

    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / "greeting.txt"
    >>> with write_whole(path) as file:
    ...     _ = file.write(b"hello")
    >>> path.read_bytes()
    b'hello'
    """
    path = Path(path)
    if not path.parent.is_dir():
        raise NearshotError(f"Cannot write {path}: the folder {path.parent} does not exist.")
    descriptor, temporary = tempfile.mkstemp(prefix=f".{path.name}.", suffix=".partial", dir=path.parent)
    try:
        with os.fdopen(descriptor, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        Path(temporary).chmod(0o666 & ~_umask())
        Path(temporary).replace(path)
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise NearshotError(f"The disk is full: {path} was not written.") from error
        raise
    finally:
        Path(temporary).unlink(missing_ok=True)


def _umask() -> int:
    """Return the process's mask; temporary files are made readable for their owner alone, whatever it says."""
    mask = os.umask(0)
    os.umask(mask)
    return mask
