"""The version, in one place, and the commit, where it can be known."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import Any

__version__ = "0.1.0.dev0"


def state_of_code() -> dict[str, Any] | None:
    """Return the commit that runs, and whether files were changed since, if that can be known; None if neither can.

    An archive that git made has the commit in a file. A package that lies in somebody's repository is not of it.
    """
    package = Path(__file__).parent
    archived = (package / "_commit.txt").read_text().strip()
    if not archived.startswith("$"):
        return {"commit": archived, "changed": None}
    git = shutil.which("git")
    if git is None:
        return None

    def ask(*arguments: str) -> str | None:
        answer = subprocess.run([git, *arguments], cwd=package, capture_output=True, text=True, check=False)  # noqa: S603
        return answer.stdout.strip() if answer.returncode == 0 else None

    commit = ask("rev-parse", "HEAD") if ask("ls-files", "--error-unmatch", "_commit.txt") else None
    return None if commit is None else {"commit": commit, "changed": bool(ask("status", "--porcelain", "."))}
