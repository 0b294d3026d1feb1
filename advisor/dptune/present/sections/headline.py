"""Verdict, Why, Next, and how far they can be trusted."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import PurePath

from dptune.advice import Report, Together
from dptune.advise.unjudgeable import is_why
from dptune.finding import Finding
from dptune.present.amounts import between, percent
from dptune.present.lines import Line, Role, heading, labelled
from dptune.present.sections.advice import proven

_AT_MOST = 12
_FULL = re.compile(r" `dptune report [^`]*--full` shows [^.]*\.$")  # what the reader of this page sees already
_MOST_FILES = 3
_LEVELS: dict[str, tuple[str, Role]] = {
    "sound": ("yes", "good"),
    "partial": ("partly; see the limitations below", "warning"),
    "unjudgeable": ("no; 'no findings' does not mean that the run is healthy", "error"),
}


def which(report: Report, width: int) -> Iterator[Line]:
    """The run that is spoken of: where it lies, and what was recorded."""
    yield from labelled("Run", report.run.subject, width, role="dim")


def headline(report: Report, width: int) -> Iterator[Line]:
    """The three sentences at the top of every report."""
    summary = report.headline
    yield from labelled("Verdict", summary.verdict, width, role="strong")
    yield from labelled("Why", summary.why, width)
    yield from labelled("Next", _FULL.sub("", summary.next), width)
    yield from proven(report, summary.rule, width)
    for combination in report.together:
        yield from labelled("Combined", _together(combination), width)


def _together(combination: Together) -> str:
    """`DP102 and DP101 cut the time per sample by 18.0 to 39.0 %; training results unchanged.`"""
    saves, rules = combination.saves, " and ".join([", ".join(combination.rules[:-1]), combination.rules[-1]])
    shares = between(percent(saves.low_share)[:-2], percent(saves.high_share)[:-2], "%")
    learning = "unchanged" if combination.numerics == "same" else "may change"
    return f"{rules} cut the time per sample by {shares}; training results {learning}."


def trust(report: Report, width: int) -> Iterator[Line]:
    """Whether the run can be judged, and each thing that limits it but what the headline above it says."""
    yield from _quality(
        report, [fault for fault in report.trust.findings if not is_why(fault, report.headline.why)], width
    )


def quality(report: Report, width: int) -> Iterator[Line]:
    """Whether the run can be judged, and each thing that limits it, for a page without the headline."""
    yield from _quality(report, report.trust.findings, width)


def _quality(report: Report, findings: Sequence[Finding], width: int) -> Iterator[Line]:
    words, role = _LEVELS[report.trust.level]
    yield from heading("Data quality", width)
    yield from labelled("Reliable", words, width, column=13, indent="  ", role=role)
    for finding in findings[:_AT_MOST]:
        yield from labelled(finding.level, finding.text, width, column=13, indent="  ")
    if len(findings) > _AT_MOST:
        more = f"and {len(findings) - _AT_MOST:,} more: see --format json"
        yield from labelled("", more, width, column=13, indent="  ", role="dim")


def source(report: Report, width: int) -> Iterator[Line]:
    """What was read, and where it came from."""
    run = report.run
    yield from heading("What was read", width)
    folder, names = _in_one_folder(run.sources)
    if folder:
        yield from labelled("Folder", folder, width, indent="  ")
    for place, name in enumerate(names[:_MOST_FILES]):
        yield from labelled("Files" if place == 0 else "", name, width, indent="  ")
    if len(names) > _MOST_FILES:
        yield from labelled("", f"and {len(names) - _MOST_FILES:,} more", width, indent="  ")
    said = (
        ("Command", run.command),
        ("Recorded", run.recorded),
        ("Ended", run.how_it_ended),
        ("Set", "; ".join(run.settings)),
        ("torch", run.torch),
        ("Ranks from", run.rank_basis),
    )
    for label, text in said:
        if text:
            yield from labelled(label, text, width, indent="  ")


def _in_one_folder(sources: Sequence[str]) -> tuple[str, Sequence[str]]:
    """The folder of several files, and their names; without one "", and the paths."""
    folders = {str(PurePath(source).parent) for source in sources}
    if len(sources) < 2 or len(folders) > 1 or "://" in sources[0]:
        return "", sources
    return folders.pop(), [PurePath(source).name for source in sources]
