"""The command line: `nearshot`. One file a command; each is a dataclass of its options with a method `run`."""

from __future__ import annotations

import io
import os
import platform
import re
import sys
from collections.abc import Mapping
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import fields, make_dataclass
from importlib import import_module, metadata
from typing import Annotated, Any, Union, get_args, get_type_hints

import tyro
from rich.console import Console

from nearshot._version import __version__, state_of_code
from nearshot.cli._argv import at_home, file_last
from nearshot.cli._errors import in_options
from nearshot.cli._help import about, first_sentence
from nearshot.errors import InputError, NearshotError
from nearshot.text import say

__all__ = ["COMMANDS", "entry_point", "main"]

# What each command is for, in a line. Its own file says more, and is read when it is asked for: what some of them
# import takes seconds.
COMMANDS = {
    "data": "Prepare, check and look at datasets.",
    "train": "Train a network, and keep its best epochs in a run's folder.",
    "evaluate": "Measure a trained network on classes it has not seen.",
    "predict": "Classify pictures by a few labelled ones.",
    "export": "Put a classifier into one file, for nearshot or ONNX.",
    "show": "Draw what a classifier sees, as a page or a picture.",
    "reproduce": "Regenerate tables and figures of the paper.",
    "report": "Make one page of everything that was measured.",
}
# How to go on with a command that was stopped; the others have nothing that is worth it.
GOES_ON = {
    "data": " What was begun goes on with the same command.",
    "train": " Go on with the same command and --resume.",
    "reproduce": " What was begun goes on with the same command.",
}
DESCRIPTION = """Few-shot image classification: train embeddings, measure them honestly, put them to work.

nearshot COMMAND --help says more about a command, and nearshot --version which version this is."""


def main(arguments: list[str] | None = None) -> int:
    """Run a command; an error is one sentence on the error output."""
    arguments = sys.argv[1:] if arguments is None else arguments
    # Plain text: names of files may have brackets, and long lines are for the terminal to wrap.
    console = Console(markup=False, highlight=False, soft_wrap=True)
    if arguments[:1] in (["--version"], ["-V"]):
        console.print(_version())
        return 0
    try:
        _read(arguments, console).run(console)
    except NearshotError as error:
        say(
            in_options(
                str(error), _class(arguments[0]) if arguments and arguments[0] in COMMANDS else None, arguments[1:]
            )
        )
        return 1
    except BrokenPipeError:  # whoever was reading has enough
        sys.stderr.close()
        return 0
    except OSError as error:
        about = f" {error.filename}" if error.filename else ""
        say(f"{error.strerror or error}:{about}".rstrip(":"))
        return 1
    except KeyboardInterrupt:
        Console(stderr=True).print(f"Stopped.{GOES_ON.get(' '.join(arguments[:1]), '')}", highlight=False)
        return 130
    return 0


def entry_point() -> None:
    """Run the command of the shell and exit with its status."""
    if isinstance(sys.stdout, io.TextIOWrapper):  # names of files may hold what the output's encoding has not
        sys.stdout.reconfigure(errors="backslashreplace")
    sys.exit(main())


def _read(arguments: list[str], console: Console) -> Any:
    """Return the command that the arguments ask for."""
    names, kind, text, rest = _asked_for(arguments)
    settings: Any = {"prog": " ".join(["nearshot", *names]), "args": rest, "description": ""}
    if names == ["train"]:
        settings["default"] = import_module("nearshot.cli.train").defaults(rest)
    if names == ["export"]:
        settings["args"] = rest = file_last(rest)
    if {"--help", "-h"} & set(rest):
        console.print(f"{about(text)}\n")  # above what tyro says, which would put it into one line a paragraph
    else:
        nowhere = io.StringIO()
        try:
            with redirect_stdout(nowhere), redirect_stderr(nowhere):
                return at_home(tyro.cli(kind, **settings))
        except SystemExit as leaving:
            _raise_input_error(leaving)
    return _aloud(kind, settings)  # its help, or what it has to say about the arguments


def _aloud(kind: Any, settings: Mapping[str, Any]) -> Any:
    """Let tyro speak, in colours only where they are wanted."""
    if not os.environ.get("NO_COLOR"):
        return tyro.cli(kind, **settings)
    out, err = io.StringIO(), io.StringIO()
    try:
        with redirect_stdout(out), redirect_stderr(err):
            return tyro.cli(kind, **settings)
    finally:
        for file, said in ((sys.stdout, out), (sys.stderr, err)):
            file.write(re.sub(r"\x1b\[[0-9;]*m", "", said.getvalue()))


def _raise_input_error(error: BaseException | None) -> None:
    """Raise what a configuration said of its values, which tyro would put into its own words and a frame."""
    while error is not None:
        if isinstance(error, InputError):
            raise InputError(str(error)) from None
        error = error.__cause__ or error.__context__


def _asked_for(arguments: list[str]) -> tuple[list[str], Any, str, list[str]]:
    """Return the names of the command that is asked for, its type, what is said about it, and the other arguments.

    Where no command is named, that is a choice of names, each with a line of what it is for.
    """
    if not arguments or arguments[0] not in COMMANDS:
        return [], _choice(COMMANDS), DESCRIPTION, arguments
    name, rest = arguments[0], arguments[1:]
    kind = _class(name)
    within = _subcommands(kind)
    if not within:
        return [name], kind, _text(kind), rest
    if not rest or rest[0] not in within:
        choice = _choice({one: first_sentence(_text(of)) for one, of in within.items()})
        return [name], choice, f"{_text(kind)}\n\nnearshot {name} COMMAND --help says more about each.", rest
    return [name, rest[0]], within[rest[0]], _text(within[rest[0]]), rest[1:]


def _choice(lines: Mapping[str, str]) -> Any:
    """Return a type that tyro makes a choice of names from."""
    kinds = [
        Annotated[make_dataclass(name, (), namespace={"__doc__": line}), tyro.conf.subcommand(name)]
        for name, line in lines.items()
    ]
    return Union[tuple(kinds)]  # noqa: UP007 (of as many as there are)


def _text(kind: type) -> str:
    return kind.__doc__ or ""


def _class(name: str) -> type:
    """Return a command's class, which has the command's name."""
    found: type = getattr(import_module(f"nearshot.cli.{name}"), name.capitalize())
    return found


def _subcommands(kind: type) -> dict[str, type]:
    """Return the classes of the commands within a command, by their names."""
    hints = get_type_hints(kind, include_extras=True) if [one.name for one in fields(kind)] == ["command"] else {}
    found = {}
    for hint in hints.values():
        for one in get_args(get_args(hint)[0]):
            inner, config = get_args(one)
            found[config.name] = inner
    return found


def _version() -> str:
    """Say which versions there are: ours, with the commit where it is known, Python's and PyTorch's."""
    state = state_of_code()
    commit = "" if state is None else f" ({state['commit'][:12]}{' and changes' if state['changed'] else ''})"
    return f"nearshot {__version__}{commit}, Python {platform.python_version()}, torch {metadata.version('torch')}"
