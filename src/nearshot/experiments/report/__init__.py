"""The report: one page of HTML with everything that was run, which needs nothing but itself."""

from nearshot.experiments.report.page import write_report

__all__ = ["write_report"]
