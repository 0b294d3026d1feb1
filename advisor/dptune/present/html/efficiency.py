"""How much of the device's peak the steps reach: the section of the text, its figures as a list and a table."""

from __future__ import annotations

from collections.abc import Iterator

from dptune.advice import Report
from dptune.present.html.markup import WIDE, Section, labelled, note
from dptune.present.html.tables import table
from dptune.present.lines import Line
from dptune.present.lines import labelled as line_of
from dptune.present.sections import efficiency as text


def efficiency(report: Report) -> Iterator[Section]:
    """Where operators with known sizes ran in the steps."""
    found = report.measured.known("efficiency")
    if found is None or found.known("flops") is None:
        return
    lines: list[Line] = [line for label, words in text.summary(report, found) for line in line_of(label, words, WIDE)]
    body = f"{''.join(labelled(lines))}{table(text.columns(found), text.rows(found), 'FLOPs by kind of operator')}"
    yield Section("efficiency", text.title(found), "Efficiency", f"{body}{note(text.NOTE)}")
