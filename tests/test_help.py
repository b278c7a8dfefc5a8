"""What one sees first of the command line: its help, its version, and what it says of mistakes; and how soon."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from nearshot import __version__
from nearshot.cli import COMMANDS, main
from nearshot.cli._errors import in_options
from nearshot.cli.evaluate import Evaluate

TRAINING = ["train", "--preset", "glyphs-nca"]


def help_of(*names: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("COLUMNS", "80")
    with pytest.raises(SystemExit) as ended:
        main([*names, "--help"])
    assert ended.value.code == 0
    return capsys.readouterr().out


def test_the_help_has_a_line_for_each_command(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = help_of(capsys=capsys, monkeypatch=monkeypatch).splitlines()
    assert len(lines) <= 25
    for name, what in COMMANDS.items():
        assert any(name in line and what in line for line in lines)


@pytest.mark.parametrize("name", COMMANDS)
def test_each_command_says_more_within_80_columns(
    name: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    out = help_of(name, capsys=capsys, monkeypatch=monkeypatch)
    assert f"usage: nearshot {name}" in out
    above, _, _ = out.partition("usage:")
    assert all(len(line) < 80 for line in above.splitlines())
    for line in above.splitlines():
        if line.startswith("  "):
            assert line.startswith(("  nearshot ", "  # "))


def test_commands_within_a_command(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    out = help_of("data", capsys=capsys, monkeypatch=monkeypatch)
    assert "Draw a contact sheet" in out
    assert "cifar100.zip" not in out  # which is in the help of the one
    out = help_of("data", "prepare", capsys=capsys, monkeypatch=monkeypatch)
    assert "usage: nearshot data prepare" in out
    assert "\n  nearshot data prepare cifar-fs --from cifar100.zip\n" in out


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["tarin"], "nearshot --help"),
        (["train", "--epoch", "3"], "nearshot train --help"),
        (["data", "prepere"], "nearshot data --help"),
        (["data", "prepare", "glyphs", "--sied", "3"], "nearshot data prepare --help"),
    ],
)
def test_a_mistake_leads_to_the_right_help(arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 2
    assert said in " ".join(capsys.readouterr().err.split())


@pytest.mark.parametrize("option", ["--version", "-V"])
def test_the_version(option: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([option]) == 0
    out = capsys.readouterr().out
    assert out.startswith(f"nearshot {__version__}")
    assert f"Python {sys.version_info.major}.{sys.version_info.minor}" in out
    assert "torch " in out


def imported_by(arguments: list[str]) -> set[str]:
    """Return what a command has imported when it is over."""
    code = f"import sys\nfrom nearshot.cli import main\ntry: main({arguments!r})\nexcept SystemExit: pass\n"
    code += "sys.stderr.write('\\n' + ' '.join(sys.modules))\n"
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    return set(done.stderr.splitlines()[-1].split())


@pytest.mark.parametrize("arguments", [["--help"], ["--version"], ["tarin"]])
def test_help_version_and_wrong_commands_do_not_wait_for_torch(arguments: list[str]) -> None:
    assert not {"torch", "numpy", "sklearn", "lightning_fabric"} & imported_by(arguments)


@pytest.mark.parametrize("arguments", [["train", "--epoch", "3"], ["evaluate", "--help"], ["show", "--help"]])
def test_help_does_not_wait_for_what_a_command_uses(arguments: list[str]) -> None:
    imported = imported_by(arguments)
    assert "nearshot" in imported
    assert not {"lightning_fabric", "scipy", "sklearn", "matplotlib"} & imported


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([*TRAINING, "--batch-size", "0"], "--batch-size must be at least 1, not 0."),
        ([*TRAINING, "--momentum", "1"], "--momentum must be under 1, not 1.0."),
        ([*TRAINING, "--n-way", "3"], "--n-way and --n-query go together; give both, or neither."),
        ([*TRAINING, "--validation-shots", "0"], "--validation-shots must be numbers of at least 1, not (0,)."),
        ([*TRAINING, "--flip", "2"], "--flip must be a probability, not 2.0."),
        (
            [*TRAINING, "--n-shot", "9", "--dry-run"],
            "8 images per class leave no query beside 9 shots. Raise --images-per-class, or lower --n-shot.",
        ),
        (
            [*TRAINING, "--batch-size", "8", "--dry-run"],
            "Use a batch of 16 or more, or fewer --images-per-class.",
        ),
        (
            ["train", "--preset", "glyphs-matching", "--keep-positives", "0.5", "--dry-run"],
            "--keep-positives is not a setting of the method matching; leave it at 1.0.",
        ),
        (["reproduce", "pairs", "--episode", "1", "5", "5"], "ways must be at least 2, not 1."),
    ],
)
def test_errors_speak_of_options(
    arguments: list[str], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    where = ["--results", str(tmp_path)] if arguments[0] == "reproduce" else ["--data-dir", str(tmp_path)]
    assert main([*arguments, *where]) == 1
    assert capsys.readouterr().err.rstrip().endswith(said)


def test_only_names_that_stand_alone_are_put_into_options() -> None:
    said = "n_way must be 2 in n_way/x.png, 'n_way', my-n_way and n_way.json: lower n_way."
    assert in_options(said, Evaluate) == said.replace("n_way must", "--way must").replace("lower n_way", "lower --way")
    assert in_options("Seeds: seed 3 is not episodes of it.", Evaluate) == "Seeds: seed 3 is not episodes of it."
    assert in_options("seed must be 3, not data_dir", Evaluate) == "--seed must be 3, not --data-dir"


def test_what_was_given_is_not_translated(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "my n_way tests").mkdir()
    assert main(["predict", "--support", str(tmp_path / "my n_way tests"), "a.png"]) == 1
    assert "my n_way tests" in " ".join(capsys.readouterr().err.split())
    given = ["--data-dir", "data_dir"]
    assert in_options("'zoo' is not in data_dir. data_dir must be a folder.", None, given).count("data_dir") == 2


def test_names_are_there_before_they_are_imported() -> None:
    program = (
        "import nearshot, sys; print({'FewShotClassifier', 'losses'} <= set(dir(nearshot)), 'torch' in sys.modules, "
        "nearshot.losses.nca_loss.__name__)"
    )
    done = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True)
    assert done.stdout == "True False nca_loss\n"
