"""The command line's help, version and errors, and how soon they come."""

import subprocess
import sys
from unittest.mock import Mock

import pytest

from nearshot import __version__
from nearshot.cli import COMMANDS, main


def help_of(*names: str, capsys: pytest.CaptureFixture[str]) -> str:
    with pytest.raises(SystemExit) as ended:
        main([*names, "--help"])
    assert ended.value.code == 0
    return capsys.readouterr().out


def test_the_help_has_a_line_for_each_command(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    lines = help_of(capsys=capsys).splitlines()
    assert len(lines) <= 25
    for name, what in COMMANDS.items():
        assert any(name in line and what in line for line in lines)


@pytest.mark.parametrize("name", [*(name for name in COMMANDS if name != "data"), "data prepare"])
def test_each_command_has_help_and_examples_on_lines_of_their_own(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    out = help_of(*name.split(), capsys=capsys)
    assert f"usage: nearshot {name}" in out
    assert f"\n  nearshot {name} " in out


@pytest.mark.parametrize("option", ["--version", "-V"])
def test_the_version(option: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([option]) == 0
    out = capsys.readouterr().out
    assert out.startswith(f"nearshot {__version__}")
    assert f"Python {sys.version_info.major}.{sys.version_info.minor}" in out
    assert "torch " in out


@pytest.mark.parametrize(
    ("commands", "not_needed"),
    [
        ([["--help"], ["--version"], ["tarin"]], {"torch", "numpy", "sklearn", "lightning_fabric"}),
        (
            [["train", "--epoch", "3"], ["evaluate", "--help"], ["show", "--help"]],
            {"lightning_fabric", "scipy", "sklearn", "matplotlib"},
        ),
    ],
)
def test_help_does_not_import_what_only_the_run_needs(
    commands: list[list[str]], not_needed: set[str]
) -> None:
    code = f"""
import sys
from nearshot.cli import main
for command in {commands!r}:
    try: main(command)
    except SystemExit: pass
sys.stderr.write(chr(10) + ' '.join(sys.modules))
"""
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    imported = set(done.stderr.splitlines()[-1].split())
    assert "nearshot" in imported
    assert not not_needed & imported


def test_a_closed_pipe_and_ctrl_c_have_their_statuses(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for error, status, message in (
        (KeyboardInterrupt(), 130, "resume"),
        (OSError(2, "gone", "x.txt"), 1, "gone: x.txt"),
    ):
        monkeypatch.setattr("nearshot.cli._parse", Mock(side_effect=error))
        assert main(["train"]) == status
        assert message in capsys.readouterr().err
    code = "from nearshot.cli import entry_point; entry_point()"
    command = f'"{sys.executable}" -c "{code}" data list; echo $? >&2'
    done = subprocess.run(
        ["/bin/bash", "-c", f"({command}) | true"], capture_output=True, text=True, check=False
    )
    assert done.stderr.strip() == "0"
