"""The first tab: what is wrong, how far that can be trusted, where the time goes, what to change."""

from __future__ import annotations

from collections.abc import Iterator

from dptune.advice import Report
from dptune.present.lines import Line, heading, wrapped
from dptune.present.sections import without_steps
from dptune.present.sections.account import account, by_rank
from dptune.present.sections.advice import in_short, sections
from dptune.present.sections.attribution import attribution
from dptune.present.sections.critical_path import path
from dptune.present.sections.gaps import gaps
from dptune.present.sections.headline import headline, source, trust, trust_at_a_glance
from dptune.present.sections.kernels import kernels
from dptune.present.sections.links import links
from dptune.present.sections.memory import memory
from dptune.present.sections.phases import phases
from dptune.present.sections.steps import steps
from dptune.present.sections.traffic import collectives, copies, data_loading

_MOST_ADVICE = 3


def top_advice(report: Report, width: int) -> Iterator[Line]:
    """The first pieces of advice, with what each promises and what came of running it."""
    ranked = [card for _, cards in sections(report.advice) for card in cards]
    if ranked:
        yield from heading("Recommendations", width)
    for advice in ranked[:_MOST_ADVICE]:
        yield from in_short(advice, report, width)
    if len(ranked) > _MOST_ADVICE:
        yield from wrapped(f"and {len(ranked) - _MOST_ADVICE} more: key 2", width, role="dim")


_SECTIONS = (
    headline,
    trust_at_a_glance,
    account,
    by_rank,
    top_advice,
    phases,
    path,
    gaps,
    steps,
    trust,
    collectives,
    links,
    copies,
    kernels,
    attribution,
    memory,
    data_loading,
    source,
)


def overview(report: Report, width: int) -> Iterator[Line]:
    """Headline, account, advice, phases, path, gaps, step times, trust; below them what moves and what runs."""
    return without_steps.page(_SECTIONS, report, width)
