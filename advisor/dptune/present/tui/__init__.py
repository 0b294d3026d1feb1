"""The full-screen report. It formats a Report, and asks for more of its run; textual is imported nowhere else."""

from __future__ import annotations

import gc
from collections.abc import Sequence
from typing import TYPE_CHECKING

from dptune.advice import Report

if TYPE_CHECKING:
    from dptune.trace.run import Run


def show(report: Report, run: Run, paths: Sequence[str], patches: bool) -> None:
    """Show the report, and what its run allows to look at and to try, until the user leaves.

    `paths`: the run as the user named it; `patches`: whether the recommended change can be applied to the script here.
    """
    from dptune.present.tui.app import ReportApp

    gc.freeze()  # the report and the run stay
    ReportApp(report, run, paths=paths, patches=patches).run()
