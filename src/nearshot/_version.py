"""The version, and the commit if it is known."""

import subprocess
from pathlib import Path
from typing import Any

__version__ = "0.1.0"


def state_of_code() -> dict[str, Any] | None:
    """Return the commit of this code and whether files have changed since.

    Return None if they are unknown.

    An archive made by git has the commit in a file. A package inside another repository does not
    belong to it.
    """
    package = Path(__file__).parent
    archived = (package / "_commit.txt").read_text().strip()
    if not archived.startswith("$"):
        return {"commit": archived, "changed": None}

    def git(*arguments: str) -> str:
        result = subprocess.run(  # noqa: S603
            ["git", *arguments],  # noqa: S607
            cwd=package,
            capture_output=True,
            text=True,
            check=True,
        )
        return result.stdout.strip()

    try:
        git("ls-files", "--error-unmatch", "_commit.txt")
        return {
            "commit": git("rev-parse", "HEAD"),
            "changed": bool(git("status", "--porcelain", ".")),
        }
    except (OSError, subprocess.CalledProcessError):
        # There is no git, or no repository.
        return None
