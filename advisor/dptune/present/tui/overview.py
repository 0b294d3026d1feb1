"""The first tab: what is wrong, what to change, step after step, where the time goes, how far that can be trusted."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import ClassVar

from textual.binding import Binding

from dptune.advice import Report
from dptune.measure.steps.history import WindowHistory
from dptune.present.lines import Line
from dptune.present.sections import without_steps
from dptune.present.sections.breakdown import account
from dptune.present.sections.critical_path import path
from dptune.present.sections.efficiency import efficiency
from dptune.present.sections.first import first
from dptune.present.sections.fsdp import fsdp
from dptune.present.sections.gaps import gaps
from dptune.present.sections.headline import source, trust
from dptune.present.sections.kernels import kernels
from dptune.present.sections.links import links
from dptune.present.sections.memory import memory
from dptune.present.sections.outliers import outliers
from dptune.present.sections.overlap import overlap
from dptune.present.sections.phases import phases
from dptune.present.sections.sources import attribution
from dptune.present.sections.step_history import step_columns
from dptune.present.sections.steps import steps
from dptune.present.sections.traffic import collectives, copies, data_loading
from dptune.present.tui.pane import Pane

_BELOW = (
    account,
    phases,
    fsdp,
    path,
    gaps,
    steps,
    trust,
    outliers,
    collectives,
    overlap,
    links,
    copies,
    kernels,
    efficiency,
    attribution,
    memory,
    data_loading,
    source,
)


class Overview(Pane):
    """The page, with keys to what its first lines speak of."""

    BINDINGS: ClassVar = [
        Binding("enter", "app.show('advice')", "Advice", id="overview.advice", tooltip="Open the recommendations"),
        Binding("e", "app.evidence", "Evidence", id="overview.evidence", tooltip="Show the evidence in the timeline"),
    ]


def overview(report: Report, width: int, history: Sequence[WindowHistory] = (), patches: bool = True) -> Iterator[Line]:
    """The first screen; below it the time of each step, the account, phases, path, gaps, step times, trust, and what
    moves and what runs.
    """

    def timed_steps(report: Report, width: int) -> Iterator[Line]:
        measured = report.measured
        only = measured.ranks[0].rank if len(measured.ranks) == 1 else None
        recorded, step_ns = measured.step.basis == "untraced", measured.step.known("time_ns")
        return step_columns(history, width, recorded=recorded, rank=only, step_ns=step_ns)

    def first_screen(report: Report, width: int) -> Iterator[Line]:
        return first(report, width, keys=True, patches=patches)

    return without_steps.page((first_screen, timed_steps, *_BELOW), report, width)
