"""`nearshot report`."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro
from rich.console import Console

from nearshot.experiments.report import write_report
from nearshot.experiments.results import Results


@dataclass(frozen=True)
class Report:
    """Make one page of HTML of all results: tables, figures, claims and the runs behind them.

    The page is one file that needs no network: tables can be sorted and filtered, and a number links to its runs, with
    their curves, episodes, classes, configuration and environment. Results that are not at the paper's scale are
    labelled.

    Examples: nearshot reproduce schedule --quick; nearshot report; nearshot report --output report.html
    """

    results: Annotated[Path, tyro.conf.arg(metavar="DIR")] = Path("results")
    """The folder of results."""
    output: Annotated[Path | None, tyro.conf.arg(metavar="FILE")] = None
    """The file to write; by default report.html in the folder of results."""

    def run(self, console: Console) -> None:
        """Write the page and print its path."""
        page = write_report(Results(self.results), self.output or self.results / "report.html")
        console.print(f"The report is {page} ({page.stat().st_size / 1e6:.1f} MB). Open it in a browser.")
