"""The full-screen report. It formats a Report and computes nothing; textual is imported nowhere else."""

from __future__ import annotations

from dptune.advice import Report


def show(report: Report) -> None:
    """Show the report until the user leaves."""
    from dptune.present.tui.app import ReportApp

    ReportApp(report).run()
