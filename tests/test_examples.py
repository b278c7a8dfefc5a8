"""Every example runs; one that is added here is also one that is tested."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tutorial import TUTORIAL, printed, steps

EXAMPLES = Path(__file__).parent.parent / "examples"
# What makes an example quick, and something that it must print.
QUICK = {
    "classify_my_photos.py": ([], "shin/5.png: shin"),
    "compare_losses.py": (["--steps", "2", "--seeds", "1"], "Prototypical"),
    "own_loss.py": (["--steps", "2"], "hardest_triplets, 5-shot"),
}


def test_every_line_of_the_tutorial(tmp_path: Path, glyphs_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Numbers may differ in their last digits from machine to machine; labels, files and words may not."""
    pytest.importorskip("onnxruntime")
    monkeypatch.setenv("NEARSHOT_DATA", str(glyphs_dir))
    for step in steps(TUTORIAL.read_text(encoding="utf-8")):
        assert _without_numbers(printed(step, tmp_path)) == _without_numbers(step.expected), step.code


def _without_numbers(text: str) -> str:
    return " ".join(re.sub(r"[0-9][0-9.]*", "#", re.sub("fingerprint .*", "", text)).split())


def printed_by(example: str, arguments: list[str], folder: Path, data_dir: Path) -> str:
    command = [sys.executable, "-W", "error", str(EXAMPLES / example), *arguments, "--data-dir", str(data_dir)]
    done = subprocess.run(command, check=False, capture_output=True, text=True, cwd=folder)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.py")), ids=lambda path: path.name)
def test_example(path: Path, tmp_path: Path, glyphs_dir: Path) -> None:
    arguments, expected = QUICK[path.name]
    assert expected in printed_by(path.name, arguments, tmp_path, glyphs_dir)


@pytest.mark.slow
def test_the_losses_are_compared_seed_by_seed(tmp_path: Path, glyphs_dir: Path) -> None:
    several = ["--steps", "2", "--seeds", "2"]
    assert "2 training seeds" in printed_by("compare_losses.py", several, tmp_path, glyphs_dir)
