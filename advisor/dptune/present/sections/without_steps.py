"""A run without steps: its sections that are about steps are named in one line, and the reason is given once."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

from dptune.advice import Report
from dptune.measured import Figures
from dptune.present.lines import BLANK, Line, wrapped
from dptune.present.sections.critical_path import path
from dptune.present.sections.efficiency import efficiency
from dptune.present.sections.gaps import gaps
from dptune.present.sections.inferred import inferred
from dptune.present.sections.kernels import kernels
from dptune.present.sections.links import links
from dptune.present.sections.phases import phases
from dptune.present.sections.sources import attribution
from dptune.present.sections.traffic import collectives, copies

F = TypeVar("F", bound=Figures)
Section = Callable[[Report, int], Iterator[Line]]

_OF_STEPS: dict[Section, tuple[str, tuple[str, ...]]] = {
    phases: ("phases and overlap", ("phases", "overlap")),
    gaps: ("longest gaps", ("gaps",)),
    path: ("critical path", ("path",)),
    collectives: ("collectives", ("collectives",)),
    links: ("links", ("links",)),
    copies: ("copies", ("copies",)),
    kernels: ("kernels", ("kernels",)),
    efficiency: ("efficiency", ("efficiency",)),
    attribution: ("compute time by source", ("attribution",)),
    inferred: ("facts inferred from the trace", ("inferred",)),
}
_SHORT, _LOST = "no steps were found", "device events are missing"


def page(sections: Sequence[Section], report: Report, width: int) -> Iterator[Line]:
    """The sections of a page that have something to say."""
    left_out = [section for section in sections if section in _OF_STEPS and _lacks(section, report)]
    shortened = _reason_once(report) if left_out else report
    for section in sections:
        if section not in left_out:
            yield from section(shortened, width)
        elif section is left_out[0]:
            names = ", ".join(_OF_STEPS[omitted][0] for omitted in left_out)
            yield BLANK
            yield from wrapped(f"Not shown without steps: {names}.", width)


def _lacks(section: Section, report: Report) -> bool:
    """Whether all its figures are missing for want of steps."""
    missing = report.measured.missing
    return "account" in missing and all(missing.get(name) == missing["account"] for name in _OF_STEPS[section][1])


def _reason_once(report: Report) -> Report:
    """The report with the reason cut short where it stands for figures of other sections."""
    measured = report.measured
    reason = measured.missing["account"]
    short = _LOST if any(loss.fatal for rank in measured.ranks for loss in rank.losses) else _SHORT

    def cut(figures: F) -> F:
        missing = {name: short if why == reason else why for name, why in figures.missing.items()}
        return figures.model_copy(update={"missing": missing})

    parts: dict[str, object] = {"ranks": [cut(rank) for rank in measured.ranks]}
    parts |= {"step": cut(measured.step), "input": cut(measured.input), "accumulation": cut(measured.accumulation)}
    if (rates := measured.known("efficiency")) is not None:
        parts["efficiency"] = cut(rates)
    return report.model_copy(update={"measured": cut(measured.model_copy(update=parts))})
