"""What the documentation shows is what the programs printed."""

from __future__ import annotations

import json
from pathlib import Path

ROOT = Path(__file__).parent.parent


def test_the_readme_shows_the_demos_own_output() -> None:
    """`make demo` writes what it prints; a README that shows something else is out of date."""
    output = (ROOT / "examples" / "output" / "compare_losses.txt").read_text()
    assert output.strip("\n") in (ROOT / "README.md").read_text()


def test_the_time_of_the_quick_form_is_the_one_that_it_wrote_down() -> None:
    note = json.loads((ROOT / "results" / "quick" / "last-run.json").read_text())
    said = (ROOT / "docs" / "reproduce.md").read_text()
    assert f"took {note['seconds'] / 60:.0f} minutes for {note['done']} trainings" in said
    assert note["failed"] == note["done_before"] == 0
    assert note["environment"]["command"][1:] == ["reproduce", "--all", "--quick"]
