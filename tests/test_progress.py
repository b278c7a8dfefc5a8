"""The progress bar and colours, on a real terminal."""

import os
import pty
import re
import subprocess
import sys

import pytest

MANY_EPISODES = """
import torch
from nearshot.evaluation import evaluate_features
labels = torch.arange(5).repeat_interleave(4)
evaluate_features(torch.randn(20, 2), labels, n_way=2, n_shot=1, n_query=1, n_episodes=int({n_episodes}))
"""


def shown_on_a_terminal(code: str, status: int = 0, **more: str) -> str:
    """Run code in a process whose output is a terminal, and return what is shown there."""
    ours, theirs = pty.openpty()
    environment = os.environ | {"TERM": "xterm", "COLUMNS": "80", "NO_COLOR": ""} | more
    with subprocess.Popen(
        [sys.executable, "-c", code], stdout=theirs, stderr=theirs, env=environment
    ) as process:
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
    assert process.returncode == status, shown.decode()
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


@pytest.mark.parametrize("wanted", [True, False])
def test_colours_can_be_switched_off(wanted: bool) -> None:
    """In tyro's boxes too."""
    code = (
        "from nearshot.cli import entry_point; import sys; sys.argv[1:] = ['trian']; entry_point()"
    )
    shown = shown_on_a_terminal(code, status=2, NO_COLOR="" if wanted else "1")
    assert "trian" in shown
    assert bool(re.search(r"\x1b\[\d", shown)) == wanted
