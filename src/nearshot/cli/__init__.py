"""The command line: `nearshot`. One file a command; each is a dataclass of its options with a method `run`."""

from __future__ import annotations

import io
import sys
from contextlib import redirect_stderr, redirect_stdout
from importlib import import_module
from typing import Annotated, Any

import tyro
from rich.console import Console

from nearshot.cli.plain import say
from nearshot.errors import InputError, NearshotError

__all__ = ["entry_point", "main"]

ALONE = {"data": "Data", "predict": "Predict", "export": "Export", "show": "Show"}  # commands that need no training


def main(arguments: list[str] | None = None) -> int:
    """Run a command; an error is one sentence on the error output."""
    arguments = sys.argv[1:] if arguments is None else arguments
    try:
        chosen = _read(arguments)
        # Plain text: names of files may have brackets, and long lines are for the terminal to wrap.
        chosen.run(Console(markup=False, highlight=False, soft_wrap=True))
    except NearshotError as error:
        say(error)
        return 1
    except BrokenPipeError:  # whoever was reading has enough
        sys.stderr.close()
        return 0
    except OSError as error:
        about = f" {error.filename}" if error.filename else ""
        say(f"{error.strerror or error}:{about}".rstrip(":"))
        return 1
    except KeyboardInterrupt:
        Console(stderr=True).print("Stopped. What was begun can go on: run the same command again (train: --resume).")
        return 130
    return 0


def entry_point() -> None:
    """Run the command of the shell and exit with its status."""
    if isinstance(sys.stdout, io.TextIOWrapper):  # names of files may hold what the output's encoding has not
        sys.stdout.reconfigure(errors="backslashreplace")
    sys.exit(main())


def _read(arguments: list[str]) -> Any:
    """Return the command that the arguments ask for."""
    kind = _commands(arguments)
    settings: Any = {"prog": "nearshot", "description": "Few-shot image classification.", "args": arguments}
    nowhere = io.StringIO()
    try:
        with redirect_stdout(nowhere), redirect_stderr(nowhere):
            return tyro.cli(kind, **settings)
    except SystemExit as leaving:
        _raise_input_error(leaving)
    return tyro.cli(kind, **settings)  # aloud: its help, or what it has to say about the arguments


def _raise_input_error(error: BaseException | None) -> None:
    """Raise what a configuration said of its values, which tyro would put into its own words and a frame."""
    while error is not None:
        if isinstance(error, InputError):
            raise InputError(str(error)) from None
        error = error.__cause__ or error.__context__


def _commands(arguments: list[str]) -> Any:
    """Return the type that tyro makes the command line from: one of the commands."""
    # Training takes seconds to import, so a command that does without it is imported alone.
    alone = ALONE.get(arguments[0]) if arguments else None
    if alone is not None:
        return _command(arguments[0]) | Annotated[_Other, tyro.conf.subcommand("train")]
    from nearshot.cli.evaluate import Evaluate  # noqa: PLC0415
    from nearshot.cli.report import Report  # noqa: PLC0415
    from nearshot.cli.reproduce import Reproduce  # noqa: PLC0415
    from nearshot.cli.train import Train, chosen_preset, fitted_settings  # noqa: PLC0415

    preset = Train(config=chosen_preset(arguments), fit=fitted_settings(arguments))
    return (
        _command("data")
        | Annotated[Train, tyro.conf.subcommand("train", default=preset)]
        | Annotated[Evaluate, tyro.conf.subcommand("evaluate")]
        | _command("predict")
        | _command("export")
        | _command("show")
        | Annotated[Reproduce, tyro.conf.subcommand("reproduce")]
        | Annotated[Report, tyro.conf.subcommand("report")]
    )


def _command(name: str) -> Any:
    return Annotated[getattr(import_module(f"nearshot.cli.{name}"), ALONE[name]), tyro.conf.subcommand(name)]


class _Other:
    """Stands for the commands that are not asked for."""
