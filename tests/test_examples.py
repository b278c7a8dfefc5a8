"""Every example runs; one that is added here is also one that is tested."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parent.parent / "examples"
# What makes an example quick, and something that it must print.
QUICK = {
    "classify_my_photos.py": (["--steps", "2"], "Expected to be right"),
    "compare_losses.py": (["--steps", "2", "--seeds", "2"], "Prototypical"),
    "own_loss.py": (["--steps", "2"], "hardest_triplets, 5-shot"),
}


@pytest.fixture(scope="module")
def data_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("data")


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.py")), ids=lambda path: path.name)
def test_example(path: Path, tmp_path: Path, data_dir: Path) -> None:
    arguments, expected = QUICK[path.name]
    command = [sys.executable, "-W", "error", str(path), *arguments, "--data-dir", str(data_dir)]
    done = subprocess.run(command, check=False, capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert expected in done.stdout
