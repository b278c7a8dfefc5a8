"""Load batches of a store's images onto a device.

The images of a small store are kept on the device. Those of a larger one are kept in host memory,
or stay on disk; then a thread gathers the next batches while the device works. The batches are the
same wherever the images are.
"""

import os
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import Literal

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from nearshot.data.images import Pixels
from nearshot.errors import FileFormatError, InputError

__all__ = ["ImageFeed", "Residence", "available_memory", "choose_residence"]

Residence = Literal["device", "memory", "disk"]
"""Where images are kept."""
Rows = npt.NDArray[np.int64]

# The share of the free device memory that images may take; the network needs the rest.
SHARE_OF_DEVICE = 1 / 3
# The share of the available host memory that images may take.
SHARE_OF_MEMORY = 1 / 2
# What is assumed if the system does not report its memory.
UNKNOWN_MEMORY = 8 << 30
# The rows that are loaded at a time, when all images are.
ROWS_TO_LOAD = 512
# The batches that are gathered ahead.
PREFETCH = 2


def choose_residence(n_bytes: int, device: torch.device, *, n_processes: int = 1) -> Residence:
    """Return where to keep images: on the device or in host memory if they fit, else on disk.

    They fit if they take less than the share that is meant for images.

    Args:
        n_bytes: the size of the images.
        device: the device that needs them.
        n_processes: how many processes of this machine keep them, each with a device of its own.

    >>> device = torch.device("cpu")
    >>> choose_residence(1 << 20, device), choose_residence(1 << 60, device)
    ('memory', 'disk')
    """
    if device.type == "cuda":
        n_free, _ = torch.cuda.mem_get_info(device)
        if n_bytes < SHARE_OF_DEVICE * n_free:
            return "device"
    if n_bytes * n_processes < SHARE_OF_MEMORY * available_memory():
        return "memory"
    return "disk"


def available_memory() -> float:
    """Return the bytes that this process can allocate without swapping, also in a container."""
    available = UNKNOWN_MEMORY
    with suppress(OSError):  # not Linux
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                available = int(line.split()[1]) * 1024
    container = Path("/sys/fs/cgroup")
    with suppress(OSError, ValueError):  # no container, or one without a limit
        used = int((container / "memory.current").read_text())
        limit = int((container / "memory.max").read_text())
        for line in (container / "memory.stat").read_text().splitlines():
            if line.startswith("inactive_file "):
                cached = int(line.split()[1])  # counts as free
                available = min(available, limit - used + cached)
    return max(0, available)


class ImageFeed:
    """Batches of a store's images on a device, by index.

    Args:
        images: (image, height, width, 3) uint8. `Store.images`, the map of a file, are loaded once,
            or streamed from disk; any other array is used without a copy, unless it goes to the
            device.
        device: the device of the batches.
        residence: where the images are kept; by default `choose_residence` decides.
        n_processes: how many processes of this machine have a feed of the same images.

    >>> images = np.arange(2 * 4 * 4 * 3, dtype=np.uint8).reshape(2, 4, 4, 3)
    >>> feed = ImageFeed(images, "cpu")
    >>> [tuple(batch.shape) for batch in feed.batches(torch.tensor([1, 0, 1]), batch_size=2)]
    [(2, 4, 4, 3), (1, 4, 4, 3)]
    """

    def __init__(
        self,
        images: Pixels,
        device: torch.device | str,
        *,
        residence: Residence | None = None,
        n_processes: int = 1,
    ) -> None:
        if images.ndim != 4 or images.shape[3] != 3 or images.dtype != np.uint8 or not len(images):
            raise InputError(
                f"images must be uint8 (image, height, width, 3), "
                f"not {images.dtype} {images.shape}."
            )
        self.device = torch.device(device)
        if residence is None:
            residence = choose_residence(images.nbytes, self.device, n_processes=n_processes)
        self.residence: Residence = residence
        self._images = images
        self._file = _file_behind(images)
        if self._file is not None and residence == "memory":
            self._images = np.fromfile(self._file, np.uint8).reshape(images.shape)
            self._file = None
        self._on_device: Tensor | None = None
        if residence == "device":
            # Some at a time, so that the host never holds all of them.
            self._on_device = torch.empty(images.shape, dtype=torch.uint8, device=self.device)
            batches = self._stream(np.arange(len(self)), ROWS_TO_LOAD)
            for part, batch in zip(self._on_device.split(ROWS_TO_LOAD), batches, strict=True):
                part.copy_(batch)

    def __len__(self) -> int:
        return len(self._images)

    def batches(self, indices: Tensor, batch_size: int) -> Iterator[Tensor]:
        """Return an iterator over the images of `indices`, in their order.

        Each batch is (image, height, width, 3) uint8 on the device. Leaving the loop early ends the
        thread that gathers; an error in it is raised here. On CUDA nothing here waits for the
        device: copies are queued.

        Args:
            indices: (image,) int64, on the host or the device, such as those of an epoch.
            batch_size: the images of a batch; the last may be smaller.
        """
        if self._on_device is None:
            indices = indices.cpu()
        # On a device, checking would make the host wait.
        if len(indices) and indices.device.type == "cpu":
            lowest = int(indices.min())
            highest = int(indices.max())
            if lowest < 0 or highest >= len(self):
                raise InputError(
                    f"indices must be from 0 to {len(self) - 1}, not from {lowest} to {highest}."
                )
        if self._on_device is None:
            return self._stream(indices.numpy(), batch_size)
        rows = indices.to(self.device, non_blocking=True)
        parts = [part for part in rows.split(batch_size) if len(part)]
        images = self._on_device
        return (images.index_select(0, part) for part in parts)

    def _stream(self, indices: Rows, batch_size: int) -> Iterator[Tensor]:
        """Yield batches that a thread gathers, some of them ahead of the one in use."""
        starts = range(0, len(indices), batch_size)
        parts = iter([indices[start : start + batch_size] for start in starts])
        pool = ThreadPoolExecutor(1, thread_name_prefix="image feed")
        try:
            ahead: deque[Future[Tensor]] = deque()
            ahead.extend(pool.submit(self._batch, part) for part in islice(parts, PREFETCH))
            while ahead:
                batch = ahead.popleft().result()
                ahead.extend(pool.submit(self._batch, part) for part in islice(parts, 1))
                yield batch.to(self.device, non_blocking=True)
        finally:
            pool.shutdown(cancel_futures=True)

    def _batch(self, rows: Rows) -> Tensor:
        """Gather a batch in host memory.

        It is pinned for CUDA; torch reuses pinned memory once its copies are done.
        """
        shape = (len(rows), *self._images.shape[1:])
        batch = torch.empty(shape, dtype=torch.uint8, pin_memory=self.device.type == "cuda")
        if self._file is None:
            # The mode "raise" would copy twice.
            np.take(self._images, rows, axis=0, out=batch.numpy(), mode="clip")
        else:
            _read_rows(self._file, rows, batch.numpy())
        return batch


def _file_behind(images: Pixels) -> Path | None:
    """Return the file that an array is a map of, as a store's images are.

    Return None for other arrays and for parts of a map.
    """
    if not isinstance(images, np.memmap) or images.mode != "r" or images.filename is None:
        return None
    path = Path(images.filename)
    return path if images.flags.c_contiguous and images.nbytes == path.stat().st_size else None


def _read_rows(path: Path, rows: Rows, out: Pixels) -> None:
    """Read rows of a file in the order of the file, each to its position in the batch.

    Reading is better than copying from the map: mapped pages count as the process's memory, an
    uncached row costs one wait per page, and a failing disk would end the process instead of
    raising an error.
    """
    row_bytes = out[0].nbytes
    order = np.argsort(rows, kind="stable")
    starts = (rows[order] * row_bytes).tolist()
    with path.open("rb", buffering=0) as file:
        # The disk serves announced reads in parallel: four times faster if uncached.
        if hasattr(os, "posix_fadvise"):
            # RANDOM: read nothing beyond the rows.
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_RANDOM)
            for start in starts:
                os.posix_fadvise(file.fileno(), start, row_bytes, os.POSIX_FADV_WILLNEED)
        for position, start in zip(order.tolist(), starts, strict=True):
            file.seek(start)
            if file.readinto(out[position]) != row_bytes:
                raise FileFormatError(f"{path} is cut short. Prepare the dataset again.")
