"""The first tab: what is wrong, how far it can be trusted, where the time goes."""

from __future__ import annotations

from collections.abc import Iterator

from dptune.advice import Report
from dptune.present.account import account
from dptune.present.gaps import gaps
from dptune.present.headline import headline, source, trust, trust_at_a_glance
from dptune.present.lines import Line
from dptune.present.steps import steps
from dptune.present.traffic import collectives, copies, feeding

_SECTIONS = (headline, trust_at_a_glance, account, gaps, steps, trust, collectives, copies, feeding, source)


def overview(report: Report, width: int) -> Iterator[Line]:
    """Headline, account, step times, trust; below them what moves between ranks and devices."""
    for section in _SECTIONS:
        yield from section(report, width)
