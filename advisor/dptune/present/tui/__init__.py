"""The full-screen report. It formats a Report, and asks for more of its run; textual is imported nowhere else."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dptune.advice import Report

if TYPE_CHECKING:
    from dptune.trace.run import Run


def show(report: Report, run: Run | None = None) -> None:
    """Show the report, and what its run allows to look at and to try, until the user leaves."""
    from dptune.present.tui.app import ReportApp

    ReportApp(report, run).run()
