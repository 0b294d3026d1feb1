"""The outcome of `dptune check`: what tripped the gate, or why the run cannot be judged."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from dptune.advice import Advice, Report
from dptune.present.advice import saving, tag
from dptune.present.amounts import several
from dptune.present.headline import subject
from dptune.present.lines import Line, wrapped


def page(outcome: str, fail_on: str, tripped: Sequence[Advice], report: Report, width: int) -> Iterator[Line]:
    """One sentence on the outcome, then the reasons for it."""
    level = "'error'" if fail_on == "error" else f"'{fail_on}' or worse"
    if outcome == "unjudgeable":
        yield from wrapped("UNJUDGEABLE: this run cannot be judged, so it does not pass.", width, role="error")
    elif outcome == "failed":
        yield from wrapped(
            f"FAILED: {several(len(tripped), 'piece', 'pieces')} of advice at {level}.", width, role="error"
        )
    else:
        yield from _passed(level, report, width)
    yield from wrapped(f"run: {subject(report)}", width, "  ", "    ", "dim")
    for one in tripped:
        where = next((f" ({change.at})" for change in one.changes if change.at), "")
        yield from wrapped(f"{tag(one)}: {one.title}{where}", width, "  ", "    ")
        if one.saves:
            yield from wrapped(f"saves {saving(one.saves, report.measured)}", width, "    ", role="dim")
    if outcome != "failed":
        for finding in report.trust.findings:
            if finding.level != "info":
                yield from wrapped(f"{finding.level}: {finding.text}", width, "  ", "    ")


def _passed(level: str, report: Report, width: int) -> Iterator[Line]:
    reservations = []
    if report.trust.level == "partial":
        reservations.append("the run is partial")
    if report.skipped:
        reservations.append(f"{several(len(report.skipped), 'rule')} could not run on it (see `dptune report`)")
    if reservations:
        but = " and ".join(reservations)
        yield from wrapped(f"PASSED with reservations: no advice at {level}, but {but}.", width, role="warning")
    else:
        yield from wrapped(f"PASSED: no advice at {level}.", width, role="good")
