"""The package's page on PyPI: addresses of the project, and a README with absolute links.

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
        address = _repository(self.root)
        text = Path(self.root, "README.md").read_text(encoding="utf-8")
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
    """Return the web address of the remote `origin`, as of git@host:path.git, or None."""
    command = ["git", "-C", root, "remote", "get-url", "origin"]
    try:
        output = subprocess.run(command, capture_output=True, text=True, check=True).stdout  # noqa: S603
    except (OSError, subprocess.CalledProcessError):  # no git, no clone, or no remote
        return None
    host_and_path = r"(?:https://(?:[^@/]+@)?|(?:ssh://)?git@)([\w.-]+)[:/](.+?)(?:\.git)?/?"
    match = re.fullmatch(host_and_path, output.strip())
    return f"https://{match[1]}/{match[2]}" if match else None
