"""The command line: `nearshot`. One file a command; each is a dataclass of its options with a method `run`."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import tyro
from rich.console import Console

from nearshot.cli.data import Data
from nearshot.errors import NearshotError

__all__ = ["COMMANDS", "entry_point", "main"]

COMMANDS: dict[str, Callable[..., Any]] = {"data": Data}


def main(arguments: list[str] | None = None) -> int:
    """Run a command; an error is one sentence on the error output."""
    arguments = sys.argv[1:] if arguments is None else arguments
    try:
        chosen = tyro.extras.subcommand_cli_from_dict(
            COMMANDS, prog="nearshot", description="Few-shot image classification.", args=arguments
        )
        # Plain text: names of files may have brackets, and long lines are for the terminal to wrap.
        chosen.run(Console(markup=False, highlight=False, soft_wrap=True))
    except NearshotError as error:
        Console(stderr=True, markup=False, highlight=False, soft_wrap=True).print(f"nearshot: {error}")
        return 1
    except KeyboardInterrupt:
        Console(stderr=True).print("Stopped. Run the same command again to go on.")
        return 130
    return 0


def entry_point() -> None:
    """Run the command of the shell and exit with its status."""
    sys.exit(main())
