"""An MkDocs hook: adds the report of the repository's results as a page."""

import tempfile
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

from nearshot.experiments.report import write_report
from nearshot.experiments.results import Results

ROOT = Path(__file__).resolve().parent.parent


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the page that `nearshot report` writes."""
    with tempfile.TemporaryDirectory() as folder:
        page = write_report(Results(ROOT / "results"), Path(folder) / "report.html")
        files.append(File.generated(config, "report.html", content=page.read_text(encoding="utf-8")))
    return files
