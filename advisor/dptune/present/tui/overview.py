"""The first tab: what is wrong, how far it can be trusted, where the time goes."""

from __future__ import annotations

from collections.abc import Iterator

from dptune.advice import Report
from dptune.present import unstepped
from dptune.present.account import account
from dptune.present.attribution import attribution
from dptune.present.gaps import gaps
from dptune.present.headline import headline, source, trust, trust_at_a_glance
from dptune.present.kernels import kernels
from dptune.present.lines import Line
from dptune.present.links import links
from dptune.present.memory import memory
from dptune.present.phases import phases
from dptune.present.steps import steps
from dptune.present.traffic import collectives, copies, feeding

_SECTIONS = (
    headline,
    trust_at_a_glance,
    account,
    phases,
    gaps,
    steps,
    trust,
    collectives,
    links,
    copies,
    kernels,
    attribution,
    memory,
    feeding,
    source,
)


def overview(report: Report, width: int) -> Iterator[Line]:
    """Headline, account, phases, gaps, step times, trust; below them what moves and what runs."""
    return unstepped.page(_SECTIONS, report, width)
