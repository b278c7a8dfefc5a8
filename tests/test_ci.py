"""CI skips nothing that could be installed."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
TESTS = """
import pytest

@pytest.mark.skipif(True, reason="no Chromium")
def test_a_page() -> None: ...

@pytest.mark.skipif(True, reason="needs a GPU")
def test_on_a_gpu() -> None: ...

def test_on_a_cluster() -> None:
    pytest.importorskip("no_such_package")
"""
MODULE = "import pytest; pytest.importorskip('no_such_package')"


@pytest.mark.parametrize(
    ("ci", "expected"),
    [("", {"skipped": "4"}), ("1", {"skipped": "1", "failed": "1", "errors": "2"})],
)
def test_what_could_be_installed_is_not_skipped(
    ci: str, expected: dict[str, str], tmp_path: Path
) -> None:
    shutil.copy(ROOT / "conftest.py", tmp_path)
    (tmp_path / "test_tests.py").write_text(TESTS)
    (tmp_path / "test_module.py").write_text(MODULE)
    command = [sys.executable, "-m", "pytest", "--continue-on-collection-errors"]
    done = subprocess.run(
        command,
        cwd=tmp_path,
        env=os.environ | {"CI": ci},
        check=False,
        capture_output=True,
        text=True,
    )
    counts = re.findall(r"(\d+) (\w+)", done.stdout.splitlines()[-1].split(" in ")[0])
    assert {outcome: count for count, outcome in counts} == expected
