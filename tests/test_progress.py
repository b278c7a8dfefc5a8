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
features = torch.randn(20, 2)
evaluate_features(features, labels, n_way=2, n_shot=1, n_query=1, n_episodes=int({n_episodes}))
"""


def shown_on_a_terminal(code: str, status: int = 0, **variables: str) -> str:
    """Run code in a process whose output is a terminal, and return what is shown there."""
    terminal, process_side = pty.openpty()
    environment = os.environ | {"TERM": "xterm", "COLUMNS": "80", "NO_COLOR": ""} | variables
    with subprocess.Popen(
        [sys.executable, "-c", code], stdout=process_side, stderr=process_side, env=environment
    ) as process:
        os.close(process_side)
        shown = b""
        while True:
            try:
                piece = os.read(terminal, 4096)
            except OSError:  # the process has ended
                break
            if not piece:
                break
            shown += piece
    os.close(terminal)
    assert process.returncode == status, shown.decode()
    return shown.decode()


@pytest.mark.parametrize(
    ("n_episodes", "visible"), [(60_000, True), pytest.param(1_000, False, marks=pytest.mark.slow)]
)
def test_a_bar_for_long_work_on_a_terminal(n_episodes: int, visible: bool) -> None:
    shown = shown_on_a_terminal(MANY_EPISODES.format(n_episodes=n_episodes))
    assert (f"{n_episodes:,} episodes" in shown) == visible


def test_no_bar_without_a_terminal(capfd: pytest.CaptureFixture[str]) -> None:
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
