"""The package's page on PyPI: addresses of the project, and a README whose links and images work there.

The address is that of the clone's remote `origin`, so a fork's page links to the fork. A source
distribution keeps the result in its metadata.
"""

import re
import subprocess
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

PAPER = "https://arxiv.org/abs/2012.09831"


class ProjectPage(MetadataHookInterface):
    """Hatchling's hook that sets the dynamic fields `readme` and `urls`."""

    def update(self, metadata: dict[str, Any]) -> None:
        """Set the fields; without a remote on the web, links stay relative."""
        address, text = (
            _repository(self.root),
            Path(self.root, "README.md").read_text(encoding="utf-8"),
        )
        metadata["urls"] = {"Paper": PAPER}
        if address is not None:
            text = re.sub(r"(!\[[^]]*\]\()(?!\w+:)", rf"\g<1>{address}/raw/HEAD/", text)
            text = re.sub(r"((?<!!)\[[^]]*\]\()(?![#\w]+:)", rf"\g<1>{address}/blob/HEAD/", text)
            metadata["urls"] |= {
                "Repository": address,
                "Documentation": f"{address}/blob/HEAD/docs/index.md",
                "Changelog": f"{address}/blob/HEAD/CHANGELOG.md",
                "Issues": f"{address}/issues",
            }
        metadata["readme"] = {"content-type": "text/markdown", "text": text}


def _repository(root: str) -> str | None:
    """Return the web address of the remote `origin`, given as https://host/path.git or git@host:path.git."""
    command = ["git", "-C", root, "remote", "get-url", "origin"]
    try:
        remote = subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()  # noqa: S603
    except (OSError, subprocess.CalledProcessError):  # no git, no clone, or no remote
        return None
    found = re.fullmatch(
        r"(?:https://(?:[^@/]+@)?|(?:ssh://)?git@)([\w.-]+)[:/](.+?)(?:\.git)?/?", remote
    )
    return f"https://{found[1]}/{found[2]}" if found else None
