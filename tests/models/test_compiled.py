"""The kernels compile for a GPU, here, where there need not be one."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("triton")


@pytest.mark.slow
def test_the_kernels_compile_and_do_not_count_in_16_bits(tmp_path: Path) -> None:
    """Integers of 16 bits, two in a register, came out wrong on an H200, though the PTX was right."""
    surroundings = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    script = Path(__file__).with_name("compile_kernels.py")
    done = subprocess.run(
        [sys.executable, str(script)],
        env=surroundings | {"TRITON_CACHE_DIR": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    compiled = json.loads(done.stdout)
    assert len(compiled) == 10
    for name, ptx in compiled.items():
        assert "ld.global" in ptx
        assert not re.findall(r"\b(?:add|sub|mul|mad|div|rem)[.\w]*\.[su]16(?:x2)?\b", ptx), name
