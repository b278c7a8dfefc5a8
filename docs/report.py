"""For the built documentation: the report of the results that are in the repository, as a page of its own."""

from __future__ import annotations

import tempfile
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

from nearshot.experiments.report import write_report
from nearshot.experiments.results import Results

ROOT = Path(__file__).resolve().parent.parent


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add `report.html`, as `nearshot report` writes it."""
    with tempfile.TemporaryDirectory() as folder:
        page = write_report(Results(ROOT / "results"), Path(folder) / "report.html")
        files.append(File.generated(config, "report.html", content=page.read_text(encoding="utf-8")))
    return files
