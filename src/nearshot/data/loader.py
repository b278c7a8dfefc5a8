"""Where a store's images live while they are used, and how a batch of them gets to the device.

A small store lives on the device as one array, and a batch is an index away. A larger one lives in the host's memory,
and the largest stays on disk; of these a thread gathers the next batches while the device works on the current one.
The batches are the same, bit by bit, wherever the images live.
"""

from __future__ import annotations

import mmap
import os
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Literal, NamedTuple, get_args

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from nearshot.data.images import Pixels
from nearshot.errors import FileFormatError, InputError

__all__ = ["ImageFeed", "Residence", "available_memory", "choose_residence"]

Residence = Literal["device", "memory", "disk"]
"""Where images live."""
Rows = npt.NDArray[np.int64]

SHARE_OF_DEVICE = 1 / 3  # of what is free on the card; the rest is for the network and its activations
SHARE_OF_MEMORY = 1 / 2  # of what is available to the host
UNKNOWN_MEMORY = 8 << 30  # where the system does not say how much it has
ROWS_TO_LOAD = 512  # at a time, when all are read once


def choose_residence(n_bytes: int, device: torch.device, *, n_processes: int = 1) -> Residence:
    """Return where images of so many bytes live best: on the device, in the host's memory, or on disk.

    On the device where they take less than a third of the memory free there; in the host's memory where they take less
    than half of what is available; else on disk. Without an accelerator, in memory or on disk.

    Args:
        n_bytes: the size of the images.
        device: where batches of them are wanted.
        n_processes: how many processes of this machine will each hold the images, with a device of its own.

    >>> choose_residence(1 << 20, torch.device("cpu")), choose_residence(1 << 60, torch.device("cpu"))
    ('memory', 'disk')
    """
    if device.type == "cuda" and n_bytes < SHARE_OF_DEVICE * torch.cuda.mem_get_info(device)[0]:
        return "device"
    return "memory" if n_bytes * n_processes < SHARE_OF_MEMORY * available_memory() else "disk"


def available_memory() -> float:
    """Return how many bytes this process could still take without swapping, in a container too."""
    return min(_memory_of_the_machine(), _memory_of_the_container())


class ImageFeed:
    """Batches of a store's images on a device, by index, from wherever the images live.

    Args:
        images: (image, height, width, 3) uint8, as `Store.images`. A map of a file is read once, or streamed; any other
            array is used where it is, without a copy, unless it goes to the device.
        device: where batches are wanted.
        residence: where the images live; by default `choose_residence` decides.
        prefetch: how many batches are gathered ahead of use, where the images are not on the device.
        n_processes: how many processes of this machine have a feed of the same images.

    Attributes:
        device: where batches are wanted.
        residence: where the images live.

    >>> images = np.arange(2 * 4 * 4 * 3, dtype=np.uint8).reshape(2, 4, 4, 3)
    >>> feed = ImageFeed(images, "cpu")
    >>> [tuple(batch.shape) for batch in feed.batches(torch.tensor([1, 0, 1]), batch_size=2)]
    [(2, 4, 4, 3), (1, 4, 4, 3)]
    """

    def __init__(
        self,
        images: npt.NDArray[np.uint8],
        device: torch.device | str,
        *,
        residence: Residence | None = None,
        prefetch: int = 2,
        n_processes: int = 1,
    ) -> None:
        _check(images, residence, prefetch)
        self.device = torch.device(device)
        self.residence: Residence = residence or choose_residence(images.nbytes, self.device, n_processes=n_processes)
        self._shape = images.shape
        self._prefetch = prefetch
        file = _file_behind(images)
        self._gather: Callable[[Rows, Pixels], None] = (
            partial(_gather_from_array, images) if file is None else partial(_gather_from_file, file)
        )
        self._on_device: Tensor | None = None
        if self.residence == "device":
            self._on_device = self._load_to_device()
        elif self.residence == "memory" and file is not None:
            self._gather = partial(_gather_from_array, self._load_to_memory())

    def __len__(self) -> int:
        return int(self._shape[0])

    def batches(self, indices: Tensor, batch_size: int) -> Iterator[Tensor]:
        """Yield the images of `indices` in their order, (batch, height, width, 3) uint8 on the device.

        Leaving the loop early ends the thread that gathers; an error in it is raised here. On CUDA nothing here waits
        for the device: copies are queued behind the work that is on its way.

        Args:
            indices: (image,) int64, on the host or the device; an epoch's at once, or any part of it.
            batch_size: images in a batch; the last may be smaller.
        """
        if batch_size < 1:
            raise InputError(f"A batch needs at least one image, not {batch_size}.")
        if self._on_device is not None:
            _check_indices(indices, len(self))
            here = indices.to(self.device, non_blocking=True)
            return (self._on_device.index_select(0, rows) for rows in here.split(batch_size) if len(rows))
        indices = indices.cpu()
        _check_indices(indices, len(self))
        return self._stream(indices.numpy(), batch_size)

    def _stream(self, indices: Rows, batch_size: int) -> Iterator[Tensor]:
        """Yield batches that a thread gathers ahead, `prefetch` of them beside the one in use."""
        parts = (indices[start : start + batch_size] for start in range(0, len(indices), batch_size))
        pool = ThreadPoolExecutor(1, thread_name_prefix="image feed")
        try:
            ahead: deque[Future[Tensor]] = deque()
            ahead.extend(pool.submit(self._batch, part) for part in islice(parts, self._prefetch))
            while ahead:
                batch = ahead.popleft().result()
                ahead.extend(pool.submit(self._batch, part) for part in islice(parts, 1))
                yield batch.to(self.device, non_blocking=True)
        finally:
            pool.shutdown(cancel_futures=True)

    def _batch(self, rows: Rows) -> Tensor:
        """Gather a batch in the host's memory, where the device can fetch it by itself."""
        # Pinned memory comes from torch's own store of it, which hands it out again once its copies are done.
        batch = torch.empty((len(rows), *self._shape[1:]), dtype=torch.uint8, pin_memory=self.device.type == "cuda")
        self._gather(rows, batch.numpy())
        return batch

    def _load_to_device(self) -> Tensor:
        """Bring all images to the device, some at a time, so that the host never has a copy of them."""
        whole = torch.empty(self._shape, dtype=torch.uint8, device=self.device)
        batches = self._stream(np.arange(len(self)), ROWS_TO_LOAD)
        for part, batch in zip(whole.split(ROWS_TO_LOAD), batches, strict=True):
            part.copy_(batch)
        return whole

    def _load_to_memory(self) -> Pixels:
        """Read all images once, each to its place."""
        whole = np.empty(self._shape, np.uint8)
        for start in range(0, len(self), ROWS_TO_LOAD):
            part = whole[start : start + ROWS_TO_LOAD]
            self._gather(np.arange(start, start + len(part)), part)
        return whole


class _Mapped(NamedTuple):
    """The file that an array is mapped from, and the byte of it where the array begins."""

    path: Path
    start: int


def _file_behind(images: npt.NDArray[np.uint8]) -> _Mapped | None:
    """Return the file that the array, or the array it is a stretch of, is mapped from; None for any other array."""
    if not isinstance(images, np.memmap) or images.mode == "c" or not images.flags.c_contiguous:
        return None
    base: object = images
    while isinstance(base, np.ndarray):
        base = base.base
    if images.filename is None or not isinstance(base, mmap.mmap):
        return None
    # A map starts at a whole page of the file, and a part of an array keeps the offset of the whole.
    in_map = images.ctypes.data - np.frombuffer(base, np.uint8).ctypes.data
    return _Mapped(Path(images.filename), images.offset - images.offset % mmap.ALLOCATIONGRANULARITY + in_map)


def _gather_from_array(images: npt.NDArray[np.uint8], rows: Rows, out: Pixels) -> None:
    np.take(images, rows, axis=0, out=out, mode="clip")  # the rows are known to exist; "raise" would copy twice


def _gather_from_file(file: _Mapped, rows: Rows, out: Pixels) -> None:
    """Read rows of a file in the order in which they lie there, each to its own place in the batch.

    Reading rather than copying from the map: pages of a map count as the process's memory, a row that is not in the
    system's cache takes a wait for every page of it, and a disk that fails ends the process instead of raising.
    """
    row_bytes = out[0].nbytes
    places = np.argsort(rows, kind="stable")
    starts = (file.start + rows[places] * row_bytes).tolist()
    with file.path.open("rb", buffering=0) as opened:
        _announce(opened.fileno(), starts, row_bytes)
        for place, start in zip(places.tolist(), starts, strict=True):
            opened.seek(start)
            if opened.readinto(out[place]) != row_bytes:
                raise FileFormatError(f"{file.path} is cut short. Prepare the dataset again.")


def _announce(descriptor: int, starts: list[int], n_bytes: int) -> None:
    """Tell the system what will be read, so that the disk works on all of it at once; four times as fast from cold."""
    if hasattr(os, "posix_fadvise"):
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_RANDOM)  # nothing beyond the rows
        for start in starts:
            os.posix_fadvise(descriptor, start, n_bytes, os.POSIX_FADV_WILLNEED)


def _memory_of_the_machine() -> int:
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:"))
    except (OSError, StopIteration):
        if hasattr(os, "sysconf") and "SC_PHYS_PAGES" in os.sysconf_names:
            return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2
        return UNKNOWN_MEMORY


def _memory_of_the_container() -> float:
    """Return what a container's limit leaves; cached files can be given up, so they count as free."""
    folder = Path("/sys/fs/cgroup")
    try:
        most = (folder / "memory.max").read_text().strip()
        used = int((folder / "memory.current").read_text())
        statistics = (line.split() for line in (folder / "memory.stat").read_text().splitlines())
        cached = next(int(value) for name, value in statistics if name == "inactive_file")
    except (OSError, ValueError, StopIteration):
        return float("inf")
    return float("inf") if most == "max" else max(0, int(most) - used + cached)


def _check(images: npt.NDArray[np.uint8], residence: Residence | None, prefetch: int) -> None:
    if images.ndim != 4 or images.shape[3] != 3 or images.dtype != np.uint8:
        raise InputError(f"Images must be uint8 (image, height, width, 3), not {images.dtype} {images.shape}.")
    if not len(images):
        raise InputError("There are no images to feed.")
    if residence is not None and residence not in get_args(Residence):
        raise InputError(f"Images live on the 'device', in 'memory' or on 'disk', not {residence!r}.")
    if prefetch < 1:
        raise InputError(f"At least one batch must be gathered ahead, not {prefetch}.")


def _check_indices(indices: Tensor, n_images: int) -> None:
    if indices.ndim != 1 or indices.dtype != torch.int64:
        raise InputError(f"Indices must be int64 (image,), not {indices.dtype} {tuple(indices.shape)}.")
    if len(indices) and indices.device.type == "cpu":  # elsewhere, looking would make the host wait
        low, high = (int(bound) for bound in indices.aminmax())
        if low < 0 or high >= n_images:
            raise InputError(f"Indices from {low} to {high} were asked for; there are {n_images:,} images.")
