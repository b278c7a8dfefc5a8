"""The progress bar, on a real terminal."""

from __future__ import annotations

import os
import pty
import subprocess
import sys

import pytest

MANY_EPISODES = """
import torch
from nearshot.evaluation import evaluate_features
labels = torch.arange(5).repeat_interleave(4)
evaluate_features(torch.randn(20, 2), labels, n_way=2, n_shot=1, n_query=1, n_episodes=int({n_episodes}))
"""


def shown_on_a_terminal(code: str) -> str:
    """Run code in a process whose error output is a terminal, and return what is shown there."""
    ours, theirs = pty.openpty()
    environment = os.environ | {"TERM": "xterm", "COLUMNS": "80"}
    with subprocess.Popen([sys.executable, "-c", code], stderr=theirs, env=environment) as process:
        os.close(theirs)
        shown = b""
        while True:
            try:
                piece = os.read(ours, 4096)
            except OSError:  # the other side is closed
                break
            if not piece:
                break
            shown += piece
    os.close(ours)
    assert process.returncode == 0, shown.decode()
    return shown.decode()


@pytest.mark.parametrize(
    ("n_episodes", "visible"), [(60_000, True), pytest.param(1_000, False, marks=pytest.mark.slow)]
)
def test_a_bar_where_it_takes_long_and_somebody_watches(n_episodes: int, visible: bool) -> None:
    shown = shown_on_a_terminal(MANY_EPISODES.format(n_episodes=n_episodes))
    assert (f"{n_episodes:,} episodes" in shown) == visible


def test_no_bar_where_nobody_watches(capfd: pytest.CaptureFixture[str]) -> None:
    exec(MANY_EPISODES.format(n_episodes=60_000))  # noqa: S102
    assert capfd.readouterr() == ("", "")
