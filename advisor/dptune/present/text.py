"""The report as a page of text: for a terminal, a file, or to be read aloud."""

from __future__ import annotations

from collections.abc import Iterator

from dptune.advice import Report
from dptune.present import unstepped
from dptune.present.account import account
from dptune.present.advice import advice
from dptune.present.attribution import attribution
from dptune.present.gaps import gaps
from dptune.present.headline import headline, source, trust, which
from dptune.present.ink import paint
from dptune.present.kernels import kernels
from dptune.present.lines import Line
from dptune.present.links import links
from dptune.present.memory import memory
from dptune.present.path import path
from dptune.present.phases import phases
from dptune.present.ranks import ranks
from dptune.present.skipped import next_command, skipped
from dptune.present.steps import steps
from dptune.present.traffic import collectives, copies, feeding

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
    feeding,
    skipped,
    source,
    next_command,
)


def page(report: Report, width: int) -> Iterator[Line]:
    """Every section of the report, as lines."""
    return unstepped.page(_PAGE, report, width)


def text(report: Report, width: int = 80, colour: bool = False) -> str:
    """The whole report, folded at `width`, ending with a line break."""
    return paint(page(report, width), colour)
