"""Memory that was freed is kept, unless the user configured the allocator."""

import os
import platform
import subprocess
import sys

import pytest

from nearshot.allocator import KEPT_MEMORY

ALLOCATE = """
import resource, sys
from nearshot.allocator import keep_freed_memory
is_kept = keep_freed_memory() if sys.argv[1] == "keep" else False
for _ in range(2):
    bytearray(1 << 26)
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(10):
    bytearray(1 << 26)
print(is_kept, resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def allocate(how: str, **environment: str) -> tuple[bool, int]:
    """Whether memory is kept, and the pages that ten blocks of 64 MiB took from the system."""
    clean = {
        name: value
        for name, value in os.environ.items()
        if name not in KEPT_MEMORY and name != "GLIBC_TUNABLES"
    }
    done = subprocess.run(
        [sys.executable, "-c", ALLOCATE, how],
        env=clean | environment,
        capture_output=True,
        text=True,
        check=True,
    )
    is_kept, n_pages = done.stdout.split()
    return is_kept == "True", int(n_pages)


def test_freed_memory_is_used_again() -> None:
    is_kept, n_pages = allocate("keep")
    assert is_kept == (platform.libc_ver()[0] == "glibc")
    _, n_pages_by_default = allocate("leave")
    if is_kept:
        assert n_pages < 0.2 * n_pages_by_default


@pytest.mark.parametrize(
    "environment",
    [{"MALLOC_TRIM_THRESHOLD_": "100000"}, {"GLIBC_TUNABLES": "glibc.malloc.perturb=0"}],
)
def test_what_the_user_configured_stays(environment: dict[str, str]) -> None:
    is_kept, _ = allocate("keep", **environment)
    assert not is_kept
