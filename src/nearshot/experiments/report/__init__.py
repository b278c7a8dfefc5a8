"""The report: one self-contained page of HTML with all results."""

from nearshot.experiments.report.page import write_report

__all__ = ["write_report"]
