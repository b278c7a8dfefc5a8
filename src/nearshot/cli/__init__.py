"""The command line, `nearshot`. A command is a file with a dataclass of options, with a `run`."""

import inspect
import io
import logging
import os
import platform
import re
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import is_dataclass, make_dataclass, replace
from importlib import import_module, metadata
from itertools import pairwise
from types import NoneType, UnionType
from typing import Annotated, Any, Union, get_args, get_type_hints

# Everything else follows NO_COLOR by itself. tyro reads its own variable when it is imported.
if os.environ.get("NO_COLOR"):
    os.environ.setdefault("PYTHON_TYRO_ANSI_CODES", "False")

import tyro
from rich.console import Console

from nearshot._version import __version__, state_of_code
from nearshot.allocator import keep_freed_memory
from nearshot.errors import InputError, NearshotError, did_you_mean
from nearshot.text import print_message

# One line per command. A command's own module is imported only when it is chosen: some take seconds
# to import.
COMMANDS = {
    "data": "Prepare, check and inspect datasets.",
    "train": "Train a network and keep its best epochs in a run folder.",
    "evaluate": "Evaluate a network, or features, on unseen classes.",
    "runs": "List runs: settings that differ, and accuracies pooled over seeds.",
    "compare": "Compare runs or features on the same episodes.",
    "predict": "Classify images by a few labelled ones.",
    "export": "Export a classifier to one file, for nearshot or ONNX.",
    "suggest": "Suggest photos to label next, and labels that look wrong.",
    "backbones": "Compare backbones on your labelled photos.",
    "app": "Sort photos on a page in your browser.",
    "reproduce": "Regenerate tables and figures of the paper.",
}
HOW_TO_RESUME = {
    "data": " Run the same command again to resume.",
    "train": " Run the same command with --resume to resume.",
    "reproduce": " Run the same command again to resume.",
}
DESCRIPTION = """Few-shot image classification: train, evaluate, and classify your own images.

nearshot COMMAND --help describes a command; nearshot --version prints the version."""
RULES = tyro.constructors.ConstructorRegistry()


def main(arguments: list[str] | None = None) -> int:
    """Run a command and return its exit status. An error is one sentence on standard error."""
    if arguments is None:
        arguments = sys.argv[1:]
    arguments = [_with_home(argument) for argument in arguments]
    # Plain text: file names may contain brackets, and the terminal wraps long lines.
    console = _Console(markup=False, highlight=False, soft_wrap=True)
    if arguments[:1] in (["--version"], ["-V"]):
        console.print(_version())
        return 0
    try:
        _check_none_is_empty(arguments)
        with _print_warnings(), _print_log():
            _parse(arguments).run(console)
    except NearshotError as error:
        print_message(error)
        return 1
    except BrokenPipeError:
        # The reader has closed the pipe, as `head` does; Python would flush into it at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except OSError as error:
        print_message(f"{error.strerror or error}: {error.filename or ''}".rstrip(": "))
        return 1
    except MemoryError:
        print_message("There is not enough memory. Use fewer or smaller files.")
        return 1
    except KeyboardInterrupt:
        how_to_resume = HOW_TO_RESUME.get(arguments[0], "") if arguments else ""
        Console(stderr=True).print(f"Stopped.{how_to_resume}", highlight=False)
        return 130
    return 0


class _Console(Console):
    def on_broken_pipe(self) -> None:
        """Let the error pass: rich would exit with status 1."""
        raise  # noqa: PLE0704


def entry_point() -> None:
    """Run the command of the shell and exit with its status."""
    keep_freed_memory()
    if isinstance(sys.stdout, io.TextIOWrapper):
        # File names may have characters that the output's encoding lacks.
        sys.stdout.reconfigure(errors="backslashreplace")
    sys.exit(main())


@contextmanager
def _print_warnings() -> Iterator[None]:
    """Print each UserWarning once, as a sentence on standard error."""
    printed: set[str] = set()
    default = warnings.showwarning

    def print_once(message: Warning | str, category: type[Warning], *location: Any) -> None:
        if not issubclass(category, UserWarning):
            default(message, category, *location)
        elif str(message) not in printed:
            printed.add(str(message))
            print_message(f"warning: {message}")

    with warnings.catch_warnings():
        warnings.simplefilter("always", UserWarning)
        warnings.filterwarnings("ignore", module=r"PIL\.")  # about odd metadata
        warnings.showwarning = print_once  # type: ignore[assignment]
        yield


class _PrintMessages(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        """Print the message of a record to standard error."""
        prefix = "warning: " if record.levelno >= logging.WARNING else ""
        print_message(prefix + record.getMessage())


@contextmanager
def _print_log() -> Iterator[None]:
    """Print what the library logs, one line a message."""
    logger = logging.getLogger("nearshot")
    handler = _PrintMessages()
    level = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)


def _with_home(argument: str) -> str:
    """Return an argument with ~ as the home folder; shells do not expand it in --output=~/runs."""
    option, path = re.fullmatch(r"(--[^=]*=)?(.*)", argument, re.DOTALL).groups("")  # type: ignore[union-attr]
    return option + os.path.expanduser(path)  # noqa: PTH111 (unknown users are kept)


def _check_none_is_empty(arguments: list[str]) -> None:
    """Raise an error for an empty argument, which a path would take for the current folder."""
    for before, argument in pairwise(["", *arguments]):
        option, equals, value = argument.partition("=")
        if argument == "":
            option = before if before.startswith("--") else "An argument"
        elif value or not equals or not option.startswith("--"):
            continue
        name = option.removeprefix("--").replace("-", "_")
        raise InputError(f"{name} must not be empty (got ''). For this folder, give '.'.")


def _parse(arguments: list[str]) -> Any:
    """Return the command that the arguments describe; help and errors end the program."""
    with RULES:
        return _parse_command(*arguments)


def _parse_command(name: str = "", *arguments: str) -> Any:
    if name not in COMMANDS:
        return _parse_unknown_command(name)
    module = import_module(f"nearshot.cli.{name}")
    if hasattr(module, "parse"):
        return module.parse(list(arguments))
    # A dataclass, or a union of them: the commands within a command.
    kind = getattr(module, name.capitalize())
    description = inspect.getdoc(kind) if isinstance(kind, type) else COMMANDS[name]
    try:
        return tyro.cli(kind, prog=f"nearshot {name}", args=arguments, description=description)
    except SystemExit as error:
        if error.code and isinstance(kind, type):
            _suggest_options(kind, arguments)
        raise


def _suggest_options(kind: type, arguments: tuple[str, ...]) -> None:
    """Print the option that was probably meant, for each that does not exist.

    tyro does so only where nothing else is wrong.
    """
    known = _options_of(kind)
    for argument in arguments:
        option = argument.partition("=")[0].replace("_", "-")
        hint = did_you_mean(option, known)
        if option.startswith("--") and option not in known and hint:
            sys.stderr.write(f"There is no option {option}.{hint}\n")


def _options_of(kind: type) -> set[str]:
    """Return the options of a command: the fields of its dataclass, and of those within it."""
    options = {"--help"}
    for name, field_type in get_type_hints(kind).items():
        if is_dataclass(field_type) and isinstance(field_type, type):
            options |= _options_of(field_type)
        else:
            options.add(f"--{name.replace('_', '-')}")
    return options


def _parse_unknown_command(name: str) -> Any:
    """Print the help of all commands, or the error that there is no such command."""
    if name and not name.startswith("-"):
        sys.stderr.write(f"There is no command {name!r}.{did_you_mean(name, COMMANDS)}\n")
    kinds = []
    for command, line in COMMANDS.items():
        kind = make_dataclass(command, (), namespace={"__doc__": line})
        kinds.append(Annotated[kind, tyro.conf.subcommand(command)])
    choice: Any = Union[tuple(kinds)]  # noqa: UP007 (a union of a list)
    return tyro.cli(choice, prog="nearshot", args=[name] if name else [], description=DESCRIPTION)


@RULES.primitive_rule
def _optional_rule(
    info: tyro.constructors.PrimitiveTypeInfo,
) -> tyro.constructors.PrimitiveConstructorSpec[Any] | None:
    """Show an option that may be None as its other type: `INT`, not `{None}|INT`."""
    kinds = [kind for kind in get_args(info.type) if kind is not NoneType]
    is_optional = NoneType in get_args(info.type) and len(kinds) == 1
    if info.type_origin not in (Union, UnionType) or not is_optional:
        return None
    spec = tyro.constructors.ConstructorRegistry.get_primitive_spec(
        tyro.constructors.PrimitiveTypeInfo.make(kinds[0], info.markers)
    )
    if not isinstance(spec, tyro.constructors.PrimitiveConstructorSpec):
        return None
    if not isinstance(spec.nargs, int):
        return None

    def read(words: list[str]) -> Any:
        return None if words == ["None"] else spec.instance_from_str(words)

    def write(value: Any) -> list[str]:
        return ["none"] if value is None else spec.str_from_instance(value)

    return replace(
        spec,
        instance_from_str=read,
        is_instance=lambda value: value is None or spec.is_instance(value),
        str_from_instance=write,
    )


def _version() -> str:
    """Return the versions of nearshot, with its commit if it is known, Python and PyTorch."""
    state = state_of_code()
    commit = ""
    if state is not None:
        changes = " and changes" if state["changed"] else ""
        commit = f" ({state['commit'][:12]}{changes})"
    python = platform.python_version()
    torch = metadata.version("torch")
    return f"nearshot {__version__}{commit}, Python {python}, torch {torch}"
