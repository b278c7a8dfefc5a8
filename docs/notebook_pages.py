"""An MkDocs hook: shows the notebooks, with the outputs that are stored in them, as pages."""

from pathlib import Path

import nbformat
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page
from nbconvert import MarkdownExporter

NOTEBOOKS = Path(__file__).resolve().parent / "notebooks"


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add a page for each notebook, with its figures and a link to the notebook."""
    for path in sorted(NOTEBOOKS.glob("*.ipynb")):
        exporter = MarkdownExporter()
        notebook = nbformat.read(path, as_version=4)
        text, resources = exporter.from_notebook_node(
            notebook, {"unique_key": path.stem, "output_files_dir": path.stem}
        )
        download = f"[Download this notebook]({path.name}){{ .md-button download }}"
        files.append(
            File.generated(config, f"notebooks/{path.stem}.md", content=f"{text}\n\n{download}\n")
        )
        for name, content in resources["outputs"].items():
            files.append(File.generated(config, f"notebooks/{name}", content=content))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Let links to a notebook, which code hosts show, lead to its page."""
    return (
        markdown
        if page.file.src_uri.startswith("notebooks/")
        else markdown.replace(".ipynb)", ".md)")
    )
