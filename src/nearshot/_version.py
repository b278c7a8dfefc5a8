"""The version, and the commit if it is known."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import Any

__version__ = "0.1.0.dev0"


def state_of_code() -> dict[str, Any] | None:
    """Return the commit of this code and whether files have changed since; None if they are unknown.

    An archive made by git has the commit in a file. A package inside another repository does not belong to it.
    """
    package = Path(__file__).parent
    archived = (package / "_commit.txt").read_text().strip()
    if not archived.startswith("$"):
        return {"commit": archived, "changed": None}
    git = shutil.which("git")
    if git is None:
        return None

    def run_git(*arguments: str) -> str | None:
        done = subprocess.run([git, *arguments], cwd=package, capture_output=True, text=True, check=False)  # noqa: S603
        return done.stdout.strip() if done.returncode == 0 else None

    commit = run_git("rev-parse", "HEAD") if run_git("ls-files", "--error-unmatch", "_commit.txt") else None
    return None if commit is None else {"commit": commit, "changed": bool(run_git("status", "--porcelain", "."))}
