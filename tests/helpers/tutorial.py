"""Run the tutorial line by line; `python -m tests.helpers.tutorial` also updates its output."""

import io
import os
import re
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import chdir, redirect_stdout
from pathlib import Path
from typing import NamedTuple

from nearshot.cli import main

TUTORIAL = Path(__file__).parent.parent.parent / "docs" / "tutorial.md"
BLOCK = re.compile(r"```(console|python|text)\n(.*?)```\n", re.DOTALL)
COMMAND = re.compile(r"^\$ (.*)\n((?:(?!\$ ).*\n)*)", re.MULTILINE)


class Step(NamedTuple):
    """A command or a block of Python, and its output in the tutorial."""

    kind: str
    code: str
    expected: str


def steps(text: str) -> Iterator[Step]:
    """Yield the steps of the tutorial, in order."""
    blocks = [match.groups() for match in BLOCK.finditer(text)]
    for number, (kind, content) in enumerate(blocks):
        if kind == "console":
            yield from (Step(kind, *match.groups()) for match in COMMAND.finditer(content))
        elif kind == "python":
            next_kind, next_content = blocks[number + 1] if number + 1 < len(blocks) else ("", "")
            yield Step(kind, content, next_content if next_kind == "text" else "")


def printed(step: Step, folder: Path) -> str:
    """Run a step in a folder and return what it prints; a command that fails is an error."""
    is_command = step.code.startswith("nearshot ") and not set("|<>$*") & set(step.code)
    if step.kind == "python" or is_command:  # without starting Python once more
        with chdir(folder), redirect_stdout(io.StringIO()) as output:
            if not is_command:
                exec(compile(step.code, str(TUTORIAL), "exec"), {"__name__": "__main__"})  # noqa: S102
            elif status := main(shlex.split(step.code)[1:]):
                raise RuntimeError(f"{step.code}: status {status}")
        return output.getvalue()
    # `nearshot` of this interpreter, wherever it is installed.
    program = f'nearshot() {{ "{sys.executable}" -W error -m nearshot "$@"; }}\nset -e\n{step.code}'
    done = subprocess.run(
        ["/bin/bash", "-c", program], cwd=folder, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise RuntimeError(f"{step.code}: status {done.returncode}\n{done.stdout}{done.stderr}")
    return done.stdout


def with_output(text: str, folder: Path) -> str:
    """Return the tutorial with its current output."""
    for step in steps(text):
        above = f"{step.code}```\n\n```text\n" if step.kind == "python" else f"$ {step.code}\n"
        text = text.replace(above + step.expected, above + printed(step, folder), 1)
    return text


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as scratch:
        os.environ["NEARSHOT_DATA"] = str(Path(scratch) / "data")
        (Path(scratch) / "here").mkdir()
        (Path(scratch) / "here" / "docs").symlink_to(TUTORIAL.parent)
        TUTORIAL.write_text(
            with_output(TUTORIAL.read_text(encoding="utf-8"), Path(scratch) / "here"),
            encoding="utf-8",
        )
