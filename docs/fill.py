"""Put the tables and figures that commands made into the pages, so that they are seen wherever a page is read.

    python docs/fill.py     # or: make fill

A page says which table it wants, and gets it between the marks:

    <!-- from results/tables/paper/comparison-cifar-fs.md -->
    <!-- end -->

A figure `results/tables/SCALE/NAME.png` that a page shows is copied to `docs/figures/SCALE-NAME.png`.
"""

from __future__ import annotations

import re
import shutil
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TABLES = ROOT / "results" / "tables"
BLOCK = re.compile(r"^<!-- from (?P<file>\S+) -->$(?:(?!<!-- from ).)*?^<!-- end -->$", re.MULTILINE | re.DOTALL)
MARK = re.compile(r"<!-- (?:from \S+|end) -->")
FIGURE = re.compile(r"\((?:docs/)?figures/(?P<scale>[a-z0-9]+)-(?P<name>[\w-]+\.png)\)")


def filled(page: str) -> str:
    r"""Return a page with what its marks name between them, as it is now.

    >>> print(filled("<!-- from CITATION.cff -->\nold\n<!-- end -->").splitlines()[2])
    cff-version: 1.2.0
    """
    n_marks, n_blocks = len(MARK.findall(page)), len(BLOCK.findall(page))
    if n_marks != 2 * n_blocks:
        raise ValueError("A mark has no other, or does not stand on a line of its own: from … and end go together.")
    return BLOCK.sub(_block, page)


def _block(found: re.Match[str]) -> str:
    content = (ROOT / found["file"]).read_text(encoding="utf-8").strip("\n")
    return f"<!-- from {found['file']} -->\n\n{content}\n\n<!-- end -->"


def figures(page: str) -> dict[Path, Path]:
    """Return where the figures among a page's pictures are kept, and where a command puts them.

    >>> page = "![](figures/32px-ablations-cifar-fs.png), not ![](figures/estimator-glyphs.png)"
    >>> [source.name for source in figures(page).values()]
    ['ablations-cifar-fs.png']
    """
    places = [(one["scale"], one["name"]) for one in FIGURE.finditer(page)]
    return {
        ROOT / "docs" / "figures" / f"{scale}-{name}": TABLES / scale / name
        for scale, name in places
        if (TABLES / scale).is_dir()  # the other pictures are of other commands
    }


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
        for kept, source in figures(text).items():
            if not kept.is_file() or kept.read_bytes() != source.read_bytes():
                shutil.copyfile(source, kept)
                print(f"{kept.relative_to(ROOT)} is the figure of now.")


if __name__ == "__main__":
    main()
