"""`nearshot report`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro
from rich.console import Console

from nearshot.cli._warnings import print_warnings
from nearshot.experiments.report import write_report
from nearshot.experiments.results import LeftOutWarning, Results

__all__ = ["Report"]


@dataclass(frozen=True)
class Report:
    """Make one page of HTML of everything that was run so far: tables, figures, claims and the runs behind them.

    It trains nothing, and the page fetches nothing: it can be opened from the disk, sent and kept. Tables sort by
    their headings and filter by what you type; a number leads to its runs, with their curves, episodes, classes,
    configuration and provenance. What is not at the paper's scale says so.

    Examples: nearshot reproduce schedule --quick; nearshot report; nearshot report --output report.html
    """

    results: Annotated[Path, tyro.conf.arg(metavar="DIR")] = Path("results")
    """Where the results are."""
    output: Annotated[Path | None, tyro.conf.arg(metavar="FILE")] = None
    """Where the page goes; by default report.html among the results."""

    def run(self, console: Console) -> None:
        """Write the page, and say where it is."""
        with print_warnings(LeftOutWarning, others=True):
            page = write_report(Results(self.results), self.output or self.results / "report.html")
        console.print(f"The report is {page} ({page.stat().st_size / 1e6:.1f} MB). Open it in a browser.")
