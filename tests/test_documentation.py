"""What the documentation shows is what the programs printed."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).parent.parent


def test_the_readme_shows_the_demos_own_output() -> None:
    """`make demo` writes what it prints; a README that shows something else is out of date."""
    output = (ROOT / "examples" / "output" / "compare_losses.txt").read_text()
    assert output.strip("\n") in (ROOT / "README.md").read_text()
