"""Embeddings of images, cached on disk by the content of the image."""

import contextlib
import hashlib
import logging
from pathlib import Path

import numpy as np
import numpy.typing as npt

from nearshot.data.store import data_folder
from nearshot.io import atomic_write

MAX_CACHED = 50_000  # per network: 130 MB at 640 dimensions, 600 MB with all feature sets
CHECKSUM_BYTES = 16

logger = logging.getLogger(__name__)

Features = npt.NDArray[np.float32]


def default_cache_folder() -> Path:
    """Return the folder of cached embeddings: embeddings in $NEARSHOT_DATA or ~/.cache/nearshot.

    Where it does not exist yet, the log says where it will be.
    """
    folder = data_folder() / "embeddings"
    if not folder.exists():
        logger.info(
            "Embeddings are cached in %s: at most %s per network. It can be deleted at any time.",
            folder,
            f"{MAX_CACHED:,}",
        )
    return folder


class EmbeddingCache:
    """The cached embeddings, of dimension `dim`, of the network that `key` identifies.

    They are stored in float32, or in float16 if `is_half`. There is one folder per network, and one
    small file per image. Files are written atomically and have a checksum, so several processes can
    share a folder, and it can be deleted at any time.
    """

    def __init__(self, folder: str | Path, key: str, dim: int, *, is_half: bool = False) -> None:
        self.folder = Path(folder).expanduser() / key[:32]
        self.dim = dim
        self.dtype = np.dtype("<f2" if is_half else "<f4")
        self.suffix = ".f16" if is_half else ".f32"

    def get(self, digest: str) -> Features | None:
        """Return the embedding of an image; None if it is missing or damaged."""
        try:
            data = self._file(digest).read_bytes()
        except OSError:
            return None
        checksum = data[:CHECKSUM_BYTES]
        values = data[CHECKSUM_BYTES:]
        if len(values) != self.dtype.itemsize * self.dim or _checksum(values) != checksum:
            return None  # the next `put` replaces it
        return np.frombuffer(values, self.dtype).astype(np.float32)

    def put(self, digest: str, feature: Features) -> None:
        """Store the embedding of an image."""
        values = feature.astype(self.dtype).tobytes()
        self.folder.mkdir(parents=True, exist_ok=True)
        with atomic_write(self._file(digest), durable=False) as file:
            file.write(_checksum(values) + values)

    def prune(self) -> None:
        """Remove the oldest entries if there are more than the limit."""
        entries = list(self.folder.glob(f"*{self.suffix}"))
        if len(entries) <= MAX_CACHED:
            return
        with contextlib.suppress(FileNotFoundError):  # another process removes them as well
            entries.sort(key=lambda path: path.stat().st_mtime)
            for path in entries[: len(entries) - MAX_CACHED * 9 // 10]:
                path.unlink()

    def _file(self, digest: str) -> Path:
        return self.folder / f"{digest}{self.suffix}"


def _checksum(values: bytes) -> bytes:
    return hashlib.blake2b(values, digest_size=CHECKSUM_BYTES).digest()
