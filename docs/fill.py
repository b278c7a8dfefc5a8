"""Copy generated tables and figures into the pages.

    python docs/fill.py     # or: make fill

A page names a table, which is written between two comments:

    <!-- from results/tables/paper/comparison-cifar-fs.md -->
    <!-- end -->

A figure `results/tables/SIZE/NAME.png` that a page shows is copied to
`docs/figures/SIZE-NAME.png`.
"""

import re
import shutil
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TABLES = ROOT / "results" / "tables"
BLOCK = re.compile(
    r"^<!-- from (?P<file>\S+) -->$(?:(?!<!-- from ).)*?^<!-- end -->$", re.MULTILINE | re.DOTALL
)
MARK = re.compile(r"<!-- (?:from \S+|end) -->")
FIGURE = re.compile(r"\((?:docs/)?figures/(?P<size>[a-z0-9]+)-(?P<name>[\w-]+\.png)\)")


def filled(page: str) -> str:
    r"""Return a page with the current content of the files that its comments name.

    >>> print(filled("<!-- from CITATION.cff -->\nold\n<!-- end -->").splitlines()[2])
    cff-version: 1.2.0
    """
    n_blocks = len(BLOCK.findall(page))
    if len(MARK.findall(page)) != 2 * n_blocks:
        raise ValueError(
            "Every <!-- from … --> needs its own <!-- end -->, each on a line of its own."
        )
    return BLOCK.sub(_block, page)


def _block(match: re.Match[str]) -> str:
    file = match["file"]
    content = (ROOT / file).read_text(encoding="utf-8").strip("\n")
    return f"<!-- from {file} -->\n\n{content}\n\n<!-- end -->"


def figures(page: str) -> dict[Path, Path]:
    """Return where a page's figures are copied to, and where each is copied from.

    >>> page = "![](figures/32px-ablations-cifar-fs.png), not ![](figures/estimator-glyphs.png)"
    >>> [source.name for source in figures(page).values()]
    ['ablations-cifar-fs.png']
    """
    sources = {}
    for match in FIGURE.finditer(page):
        folder = TABLES / match["size"]
        # Other images are of other commands.
        if folder.is_dir():
            copy = ROOT / "docs" / "figures" / f"{match['size']}-{match['name']}"
            sources[copy] = folder / match["name"]
    return sources


def pages() -> list[Path]:
    """Return the pages."""
    return [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


def main() -> None:
    """Fill all pages."""
    for page in pages():
        text = page.read_text(encoding="utf-8")
        new_text = filled(text)
        if new_text != text:
            page.write_text(new_text, encoding="utf-8")
            print(f"{page.relative_to(ROOT)} was updated.")
        for copy, source in figures(text).items():
            if not copy.is_file() or copy.read_bytes() != source.read_bytes():
                shutil.copyfile(source, copy)
                print(f"{copy.relative_to(ROOT)} was updated.")


if __name__ == "__main__":
    main()
