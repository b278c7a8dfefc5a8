"""Embeddings on the disk, by the content of the picture and the network that they are of.

A folder for each network, and in it a small file for each picture. Each file takes its name when it is whole, and has
a checksum, so several processes can share the folder, and none has to be asked before it is deleted.
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

MOST_ENTRIES = 50_000  # of a network: 200 MB at 640 dimensions
CHECK_BYTES = 16
SUFFIX, PARTIAL = ".f32", ".partial"

Feature = npt.NDArray[np.float32]


class EmbeddingCache:
    """The embeddings that one network has given so far.

    Args:
        folder: where embeddings are kept, of all networks.
        key: what identifies the network and its preprocessing.
        dim: the dimension of an embedding.
        most: how many are kept; the oldest go.
    """

    def __init__(self, folder: str | Path, key: str, dim: int, *, most: int = MOST_ENTRIES) -> None:
        self.folder = Path(folder).expanduser() / key[:32]
        self.dim, self.most = dim, most

    def __len__(self) -> int:
        return len(self._entries())

    def get(self, digest: str) -> Feature | None:
        """Return a picture's embedding, if it is there and whole."""
        try:
            data = self._file(digest).read_bytes()
        except OSError:
            return None
        check, values = data[:CHECK_BYTES], data[CHECK_BYTES:]
        if len(values) != 4 * self.dim or _check(values) != check:
            return None  # of a power cut, or not ours; the next `put` replaces it
        return np.frombuffer(values, "<f4").astype(np.float32)

    def put(self, digest: str, feature: Feature) -> None:
        """Keep a picture's embedding. A folder that was deleted meanwhile is made again."""
        values = feature.astype("<f4").tobytes()
        self.folder.mkdir(parents=True, exist_ok=True)
        with atomic_write(self._file(digest), durable=False) as file:
            file.write(_check(values) + values)

    def prune(self) -> None:
        """Remove the oldest where there are too many, and what killed processes have left half-written."""
        entries = self._entries()
        if len(entries) > self.most:
            oldest = sorted(entries, key=_written)
            for entry in oldest[: len(entries) - self.most * 9 // 10]:
                Path(entry.path).unlink(missing_ok=True)
        for entry in self._entries(PARTIAL):
            if _written(entry) < time.time() - 3600:  # nobody takes an hour to write one
                Path(entry.path).unlink(missing_ok=True)

    def clear(self) -> None:
        """Remove all embeddings of this network."""
        for entry in self._entries():
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
    with contextlib.suppress(OSError):  # another process may just have removed it
        return entry.stat().st_mtime
    return 0.0


def _check(values: bytes) -> bytes:
    return hashlib.blake2b(values, digest_size=CHECK_BYTES).digest()
