"""Cache embeddings on disk, by the content of the image and the network.

There is one folder per network, and one small file per image. Files are written atomically and have a checksum, so
several processes can share a folder, and it can be deleted at any time.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import time
from pathlib import Path

import numpy as np
import numpy.typing as npt

from nearshot.io import atomic_write

__all__ = ["EmbeddingCache"]

MAX_ENTRIES = 50_000  # per network: 200 MB at 640 dimensions
CHECK_BYTES = 16
SUFFIX, PARTIAL = ".f32", ".partial"

Feature = npt.NDArray[np.float32]


class EmbeddingCache:
    """The cached embeddings, of dimension `dim`, of the network with some `key`."""

    def __init__(self, folder: str | Path, key: str, dim: int, *, max_entries: int = MAX_ENTRIES) -> None:
        self.folder = Path(folder).expanduser() / key[:32]
        self.dim, self.max_entries = dim, max_entries

    def __len__(self) -> int:
        return len(self._entries())

    def get(self, digest: str) -> Feature | None:
        """Return the embedding of an image; None if it is missing or damaged."""
        try:
            data = self._file(digest).read_bytes()
        except OSError:
            return None
        check, values = data[:CHECK_BYTES], data[CHECK_BYTES:]
        if len(values) != 4 * self.dim or _check(values) != check:
            return None  # the next `put` replaces it
        return np.frombuffer(values, "<f4").astype(np.float32)

    def put(self, digest: str, feature: Feature) -> None:
        """Store the embedding of an image."""
        values = feature.astype("<f4").tobytes()
        self.folder.mkdir(parents=True, exist_ok=True)
        with atomic_write(self._file(digest), durable=False) as file:
            file.write(_check(values) + values)

    def prune(self) -> None:
        """Remove the oldest entries above the limit, and the partial files of killed processes."""
        entries = self._entries()
        if len(entries) > self.max_entries:
            oldest = sorted(entries, key=_written)
            for entry in oldest[: len(entries) - self.max_entries * 9 // 10]:
                Path(entry.path).unlink(missing_ok=True)
        for entry in self._entries(PARTIAL):
            if _written(entry) < time.time() - 3600:  # no process takes an hour to write one
                Path(entry.path).unlink(missing_ok=True)

    def _file(self, digest: str) -> Path:
        return self.folder / f"{digest}{SUFFIX}"

    def _entries(self, suffix: str = SUFFIX) -> list[os.DirEntry[str]]:
        try:
            with os.scandir(self.folder) as entries:
                return [entry for entry in entries if entry.name.endswith(suffix)]
        except FileNotFoundError:
            return []


def _written(entry: os.DirEntry[str]) -> float:
    with contextlib.suppress(OSError):  # another process may have removed it
        return entry.stat().st_mtime
    return 0.0


def _check(values: bytes) -> bytes:
    return hashlib.blake2b(values, digest_size=CHECK_BYTES).digest()
