"""Settings for all tests."""

import os
import signal
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
from hypothesis import settings

# One thread per process, also in the processes that tests start: threads of several processes on
# two cores wait for each other.
os.environ.setdefault("OMP_NUM_THREADS", "1")
torch.set_num_threads(1)

# Without a GPU, Triton interprets its kernels, which is slow but tests them. It reads the variable
# when it is imported.
if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")

# Modules that need a package which may be missing: the GPU kernels, and those that build the
# documentation.
NEEDED = {
    "triton": ["src/nearshot/models/kernels/triton_*.py"],
    "griffe": ["docs/doctests.py"],
    "nbconvert": ["docs/notebook_pages.py"],
}
collect_ignore_glob = [
    pattern for module, patterns in NEEDED.items() if not find_spec(module) for pattern in patterns
]

# A script's background processes ignore Ctrl-C, and Python keeps that. Some tests send it.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# No deadlines: a busy machine is slow.
settings.register_profile("nearshot", deadline=None)
settings.load_profile("nearshot")


@pytest.fixture(scope="session")
def glyphs_dir(tmp_path_factory: pytest.TempPathFactory, worker_id: str) -> Path:
    """Return a folder with the prepared glyphs: one worker draws them, the others wait for it."""
    from nearshot.data import open_or_prepare  # noqa: PLC0415 (after TRITON_INTERPRET is set)

    base = tmp_path_factory.getbasetemp()
    folder = (base if worker_id == "master" else base.parent) / "glyphs"
    open_or_prepare("glyphs", "train", folder)
    return folder
