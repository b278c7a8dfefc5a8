"""Attacks: every kind ends in plain data or one sentence, in a process with limited memory."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent.parent / "benchmarks"))

from attack import KINDS, OUTCOMES, attacked, table

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("kind", KINDS)
def test_attacks_do_no_harm(kind: str) -> None:
    outcomes = attacked(kind, 2000)
    assert outcomes
    for name, counts in outcomes.items():
        assert counts.keys() <= set(OUTCOMES), name
        assert counts.total() > 0
    assert len(table(outcomes).splitlines()) == 2 + len(outcomes)
