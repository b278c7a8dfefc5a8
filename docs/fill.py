"""Put the tables that commands wrote into the pages, between marks, so that they are read wherever a page is.

    python docs/fill.py     # or: make fill

A page says what it wants, and the rest is done here:

    <!-- from results/tables/paper/comparison-cifar-fs.md -->
    <!-- end -->
"""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
BLOCK = re.compile(r"^<!-- from (?P<file>\S+) -->$.*?^<!-- end -->$", re.MULTILINE | re.DOTALL)


def filled(page: str) -> str:
    r"""Return a page with what its marks name between them, as it is now.

    >>> print(filled("<!-- from CITATION.cff -->\nold\n<!-- end -->").splitlines()[2])
    cff-version: 1.2.0
    """
    return BLOCK.sub(_block, page)


def _block(found: re.Match[str]) -> str:
    content = (ROOT / found["file"]).read_text(encoding="utf-8").strip("\n")
    return f"<!-- from {found['file']} -->\n\n{content}\n\n<!-- end -->"


def pages() -> list[Path]:
    """Return the pages."""
    return [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


def main() -> None:
    """Fill all pages."""
    for page in pages():
        text = page.read_text(encoding="utf-8")
        if filled(text) != text:
            page.write_text(filled(text), encoding="utf-8")
            print(f"{page.relative_to(ROOT)} has the tables of now.")


if __name__ == "__main__":
    main()
