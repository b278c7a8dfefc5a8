"""Arguments as people type them."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

__all__ = ["at_home", "file_last"]


def at_home(command: Any) -> Any:
    """Return a command with ~ in its paths as the home folder: shells leave it as it is in --output=~/runs.

    >>> @dataclasses.dataclass(frozen=True)
    ... class Command:
    ...     output: Path
    >>> at_home(Command(Path("~/runs"))).output == Path.home() / "runs"
    True
    """
    if isinstance(command, Path):
        try:
            return command.expanduser()
        except RuntimeError:  # there is nobody of that name, and a file may be called so
            return command
    if isinstance(command, tuple):
        return tuple(map(at_home, command)) if any(isinstance(one, Path) for one in command) else command
    if dataclasses.is_dataclass(command) and not isinstance(command, type):
        values = {one.name: getattr(command, one.name) for one in dataclasses.fields(command) if one.init}
        changed = {name: new for name, value in values.items() if (new := at_home(value)) is not value}
        return dataclasses.replace(command, **changed) if changed else command
    return command


def file_last(arguments: Sequence[str]) -> list[str]:
    """Return arguments with the file after --output at the end, where a command has it without; of two, the later.

    >>> file_last(["./flowers", "--output", "flowers.onnx", "--device", "cpu"])
    ['./flowers', '--device', 'cpu', 'flowers.onnx']
    >>> file_last(["--output", "other.onnx", "--output=flowers.onnx", "./flowers"])
    ['./flowers', 'flowers.onnx']
    """
    rest, file = [], None
    waiting = iter(arguments)
    for one in waiting:
        if one in ("--output", "-o"):
            file = next(waiting, file)
        elif one.startswith("--output="):
            file = one.partition("=")[2]
        else:
            rest.append(one)
    return rest if file is None else [*rest, file]
