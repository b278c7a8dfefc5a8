"""The tutorial and every example run."""

from __future__ import annotations

import importlib.util
import re
import runpy
import sys
from pathlib import Path

import pytest

from tutorial import TUTORIAL, printed, steps

EXAMPLES = Path(__file__).parent.parent / "examples"
# Options that make an example quick, and text that it must print.
QUICK = {
    "classify_my_photos.py": ([], "shin/5.png: shin"),
    "compare_losses.py": (["--steps", "2", "--seeds", "2"], "2 seeds"),
    "own_loss.py": (["--steps", "2"], "hardest_triplets, 5-shot"),
}
SLOW = ("compare_losses.py", "own_loss.py")


@pytest.mark.parametrize("with_onnx", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_every_line_of_the_tutorial(
    with_onnx: bool, tmp_path: Path, glyphs_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Numbers may differ between machines in their last digits; labels, files and words may not."""
    monkeypatch.setenv("NEARSHOT_DATA", str(glyphs_dir))
    for step in steps(TUTORIAL.read_text(encoding="utf-8")):
        if "onnx" in step.code and not (with_onnx and importlib.util.find_spec("onnxruntime")):
            continue
        assert _without_numbers(printed(step, tmp_path)) == _without_numbers(step.expected), step.code


def _without_numbers(text: str) -> str:
    return " ".join(re.sub(r"[0-9][0-9.]*", "#", re.sub("fingerprint .*", "", text)).split())


@pytest.mark.parametrize(
    "example",
    [
        pytest.param(path.name, marks=[pytest.mark.slow] if path.name in SLOW else [])
        for path in sorted(EXAMPLES.glob("*.py"))
    ],
)
def test_example(
    example: str, tmp_path: Path, glyphs_dir: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments, expected = QUICK[example]
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", [example, *arguments, "--data-dir", str(glyphs_dir)])
    runpy.run_path(str(EXAMPLES / example), run_name="__main__")
    assert expected in capsys.readouterr().out
