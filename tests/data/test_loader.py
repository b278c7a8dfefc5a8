"""Where images are kept: the same batches from everywhere, in little memory; threads that end."""

import hashlib
import json
import subprocess
import sys
import threading
import time
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.helpers.layouts import picture, write_sparse_split

from nearshot.data import ImageFeed, Residence, Store, choose_residence
from nearshot.data.loader import Rows, available_memory
from nearshot.errors import FileFormatError, InputError

CPU = torch.device("cpu")
RESIDENCES: tuple[Residence, ...] = ("device", "memory", "disk")
needs_cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    """A store of 300 different images."""
    folder = tmp_path_factory.mktemp("d") / "zoo" / "8" / "train"
    return Store(write_sparse_split(folder, 300, 8, range(300)))


def feeding_threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("image feed")]


@settings(deadline=None, max_examples=60)
@given(
    indices=st.lists(st.integers(0, 199), max_size=60),
    batch_size=st.integers(1, 70),
    residence=st.sampled_from(RESIDENCES),
    kind=st.sampled_from(["mapped", "part of a map", "array", "every other"]),
)
def test_batches_are_the_same_from_everywhere(
    store: Store, indices: list[int], batch_size: int, residence: Residence, kind: str
) -> None:
    kinds = {
        "mapped": store.images,
        "part of a map": store.images[70:270],
        "array": np.array(store.images),
        "every other": store.images[:, ::2],
    }
    images = kinds[kind]
    feed = ImageFeed(images, "cpu", residence=residence)
    batches = list(feed.batches(torch.tensor(indices, dtype=torch.int64), batch_size))
    starts = range(0, len(indices), batch_size)
    expected = [images[indices[start : start + batch_size]] for start in starts]
    assert feed.residence == residence
    assert len(feed) == len(images)
    assert len(batches) == len(expected)
    for ours, theirs in zip(batches, expected, strict=True):
        assert ours.dtype == torch.uint8
        assert np.array_equal(ours.numpy(), theirs)


def test_the_residence_goes_by_size() -> None:
    assert available_memory() > 0
    assert choose_residence(1000, CPU) == "memory"
    assert choose_residence(2 * int(available_memory()), CPU) == "disk"
    fits_twice = int(available_memory() / 5)
    assert choose_residence(fits_twice, CPU) == "memory"
    assert choose_residence(fits_twice, CPU, n_processes=8) == "disk"


def test_batches_are_gathered_ahead_but_not_further(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    feed = ImageFeed(store.images, "cpu", residence="disk")
    gathered = []
    gather = feed._batch

    def counting(rows: Rows) -> torch.Tensor:
        gathered.append(len(rows))
        return gather(rows)

    monkeypatch.setattr(feed, "_batch", counting)
    batches = feed.batches(torch.arange(300), 10)
    next(batches)
    deadline = time.monotonic() + 10
    while len(gathered) < 3 and time.monotonic() < deadline:
        time.sleep(0.005)
    time.sleep(0.05)
    assert len(gathered) == 3  # the one in use and two more
    assert feeding_threads()
    del batches  # leaving the loop ends the thread
    assert not feeding_threads()


def test_an_error_of_the_thread_is_raised_where_batches_are_used(tmp_path: Path) -> None:
    folder = write_sparse_split(tmp_path / "zoo" / "8" / "train", 100, 8, range(100))
    feed = ImageFeed(Store(folder).images, "cpu", residence="disk")
    with (folder / "images.u8").open("r+b") as file:
        file.truncate(50 * 8 * 8 * 3)
    batches = feed.batches(torch.arange(100), 25)
    assert len([next(batches), next(batches)]) == 2
    with pytest.raises(FileFormatError, match="images.u8 is cut short. Prepare the dataset again"):
        next(batches)
    assert not feeding_threads()


def test_impossible_feeds_and_indices(store: Store) -> None:
    for images in (np.zeros((2, 8, 8, 3)), store.images[:0]):
        with pytest.raises(InputError, match=r"uint8 \(image, height, width, 3\), not"):
            ImageFeed(images, "cpu")  # type: ignore[arg-type]
    for residence in RESIDENCES:
        with pytest.raises(InputError, match="indices must be from 0 to 299, not from 0 to 300"):
            ImageFeed(store.images, "cpu", residence=residence).batches(torch.tensor([0, 300]), 2)


# A few batches of 11 MB, and what the allocator keeps of those that are gone; under half of what
# the images take.
ALLOWANCE_KIB = 160 * 1024

# An epoch in a process of its own: prints the peak of its memory before and after, in KiB, and a
# hash of what it read.
EPOCH = """
import hashlib, json, resource, sys
from pathlib import Path
import numpy as np
from nearshot.data import ImageFeed, ShuffledBatches, Store

folder = Path(sys.argv[1])
residence = sys.argv[2]
batch_size = int(sys.argv[3])
store = Store(folder)
sampler = ShuffledBatches(len(store), batch_size, seed=0)
def peak():
    status = Path("/proc/self/status")
    if status.exists():  # ru_maxrss begins with the peak of the process that started this one
        for line in status.read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1])
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
# This loads all code.
for batch in ImageFeed(store.images[:4], "cpu").batches(sampler.epoch_indices() % 4, 8):
    batch.numpy().sum((1, 2, 3), dtype=np.int64)
before = peak()
feed = ImageFeed(store.images, "cpu", residence=residence)
sums = np.zeros(len(store), np.int64)
order = sampler.epoch_indices()
for rows, batch in zip(order.split(batch_size), feed.batches(order, batch_size), strict=True):
    sums[rows.numpy()] = batch.numpy().sum((1, 2, 3), dtype=np.int64)
digest = hashlib.sha256(sums.tobytes()).hexdigest()
print(json.dumps({"before": before, "after": peak(), "digest": digest}))
"""


@pytest.mark.parametrize(
    ("n_images", "residence"),
    [
        (20_000, "disk"),  # 423 MB of images, of which the process holds a few batches at a time
        pytest.param(20_000, "memory", marks=pytest.mark.slow),  # one copy
        pytest.param(500_000, "disk", marks=pytest.mark.slow),  # 10.6 GB
    ],
)
def test_an_epoch_reads_every_image_and_takes_little_memory(
    tmp_path: Path, n_images: int, residence: str
) -> None:
    random = np.random.default_rng(0).choice(n_images, 500, replace=False)
    marked = {0, n_images - 1, *random.tolist()}
    folder = write_sparse_split(tmp_path / "large" / "84" / "train", n_images, 84, sorted(marked))
    command = [sys.executable, "-c", EPOCH, str(folder), residence, "512"]
    output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    result = json.loads(output)
    sums = np.zeros(n_images, np.int64)
    for index in marked:
        sums[index] = picture(index, 84).sum(dtype=np.int64)
    assert result["digest"] == hashlib.sha256(sums.tobytes()).hexdigest()
    n_kept = n_images * 84 * 84 * 3 / 1024 if residence == "memory" else 0
    assert n_kept * 0.9 <= result["after"] - result["before"] < n_kept + ALLOWANCE_KIB


@needs_cuda
@pytest.mark.parametrize("residence", RESIDENCES)
def test_batches_on_cuda(store: Store, residence: Residence) -> None:
    order = torch.randperm(300, generator=torch.Generator().manual_seed(0))
    feed = ImageFeed(store.images, "cuda", residence=residence)
    for indices in (order, order.cuda()):
        batches = list(feed.batches(indices, 7))  # many in flight at once
        assert all(batch.device.type == "cuda" for batch in batches)
        assert np.array_equal(torch.cat(batches).cpu().numpy(), store.images[order.numpy()])


@needs_cuda
def test_a_store_on_the_device_never_makes_the_host_wait(store: Store) -> None:
    device = torch.device("cuda")
    free = torch.cuda.mem_get_info(device)[0]
    assert choose_residence(free // 4, device) == "device"
    assert choose_residence(free // 2, device) in ("memory", "disk")
    feed = ImageFeed(store.images, "cuda", residence="device")
    order = torch.arange(300, device="cuda")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # this check calls itself a prototype
        torch.cuda.set_sync_debug_mode("error")
    try:
        assert sum(len(batch) for batch in feed.batches(order, 16)) == 300
    finally:
        torch.cuda.set_sync_debug_mode("default")
