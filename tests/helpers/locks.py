"""Folders that this process may not read for a while."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def locked(*folders: Path, rights: int = 0) -> Iterator[None]:
    """Take the right to read folders from this process; root becomes another user meanwhile."""
    root = os.geteuid() == 0
    for folder in folders:
        folder.chmod(rights)
    try:
        if root:
            os.seteuid(65534)
        yield
    finally:
        if root:
            os.seteuid(0)
        for folder in folders:
            folder.chmod(0o755)
