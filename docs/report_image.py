"""Make docs/images/report.png: the first screen of the report of the repository's results.

    PYTHONPATH=tests/experiments python docs/report_image.py

It needs Chromium, which `make browser` installs.
"""

import tempfile
from pathlib import Path

from browser import open_browser

from nearshot.experiments.report import write_report
from nearshot.experiments.results import Results

ROOT = Path(__file__).resolve().parent.parent

if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder, open_browser(Path(folder) / "profile") as browser:
        browser.resize(1280, 800)
        browser.open(write_report(Results(ROOT / "results"), Path(folder) / "report.html"))
        browser.screenshot(ROOT / "docs" / "images" / "report.png", height=800)
