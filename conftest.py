"""Settings for all tests."""

import os
import signal
from collections.abc import Generator
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

# What CI may skip, by the beginning of its reason. In CI, any other test that is skipped fails:
# what it needs can be installed.
IN_CI = bool(os.environ.get("CI"))
MAY_BE_SKIPPED = (
    "needs a GPU",
    "needs a machine without a GPU",
    "needs the extra timm",
    "needs an environment without timm",
    "needs the real datasets",
    "needs the right to mount",
    "needs a checkout",
)

# Modules that need a package which may be missing: the GPU kernels, and those that build the
# documentation, of which CI runs the examples in the slow tier.
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


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """In CI, fail a test that is skipped for want of something that could be installed."""
    report = yield
    if not hasattr(report, "wasxfail"):
        _refuse_to_skip(report)
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report() -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """Treat a module that skips itself like a test."""
    report = yield
    _refuse_to_skip(report)
    return report


def _refuse_to_skip(report: pytest.TestReport | pytest.CollectReport) -> None:
    if IN_CI and report.skipped and isinstance(report.longrepr, tuple):
        reason = report.longrepr[2].removeprefix("Skipped: ")
        if not reason.startswith(MAY_BE_SKIPPED):
            report.outcome = "failed"
            report.longrepr = f"CI may not skip this: {reason}"
