"""How much of the device's peak the steps reach: the section of the text, its figures as a list and a table."""

from __future__ import annotations

from collections.abc import Iterator

from dptune.advice import Report
from dptune.present.html.markup import WIDE, Section, labelled, note
from dptune.present.html.tables import table
from dptune.present.lines import Line
from dptune.present.lines import labelled as line_of
from dptune.present.sections import efficiency as text

_FIGURES = ("flops", "memory_bound_share", "samples_per_s", "tokens_per_s")


def efficiency(report: Report) -> Iterator[Section]:
    """Where one of its figures is known."""
    found = report.measured.known("efficiency")
    if found is None or (report.cost is None and all(found.known(name) is None for name in _FIGURES)):
        return
    lines: list[Line] = [line for label, words in text.summary(report, found) for line in line_of(label, words, WIDE)]
    body = "".join(labelled(lines))
    if found.known("flops") is not None:
        operators = table(text.columns(found), text.rows(found), "FLOPs by kind of operator")
        body += f"{operators}"
    if said := text.note(report, found):
        body += note(said)
    yield Section("efficiency", text.title(found), "Efficiency", body)
