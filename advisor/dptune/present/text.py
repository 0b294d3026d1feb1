"""The report as a page of text: for a terminal, a file, or to be read aloud."""

from __future__ import annotations

from collections.abc import Iterator

from dptune.advice import Report
from dptune.present.ink import paint
from dptune.present.lines import Line
from dptune.present.sections import without_steps
from dptune.present.sections.account import account
from dptune.present.sections.advice import advice
from dptune.present.sections.attribution import attribution
from dptune.present.sections.critical_path import path
from dptune.present.sections.gaps import gaps
from dptune.present.sections.headline import headline, source, trust, which
from dptune.present.sections.kernels import kernels
from dptune.present.sections.links import links
from dptune.present.sections.memory import memory
from dptune.present.sections.phases import phases
from dptune.present.sections.ranks import ranks
from dptune.present.sections.skipped import next_command, skipped
from dptune.present.sections.steps import steps
from dptune.present.sections.traffic import collectives, copies, data_loading

_PAGE = (
    which,
    headline,
    trust,
    advice,
    account,
    phases,
    path,
    gaps,
    steps,
    ranks,
    collectives,
    links,
    copies,
    kernels,
    attribution,
    memory,
    data_loading,
    skipped,
    source,
    next_command,
)


def page(report: Report, width: int) -> Iterator[Line]:
    """Every section of the report, as lines."""
    return without_steps.page(_PAGE, report, width)


def text(report: Report, width: int = 80, colour: bool = False) -> str:
    """The whole report, folded at `width`, ending with a line break."""
    return paint(page(report, width), colour)
