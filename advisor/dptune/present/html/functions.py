"""The functions of the script that compute longest: the table of the text."""

from __future__ import annotations

from collections.abc import Iterator

from dptune.advice import Report
from dptune.present.html.markup import Section, note
from dptune.present.html.tables import table
from dptune.present.sections import sources as text


def functions(report: Report) -> Iterator[Section]:
    """Where stacks and operators were recorded."""
    found = report.measured.known("compute_functions")
    if found:
        rows = [text.function_row(function) for function in found]
        body = f"{table(text.COLUMNS, rows, 'Compute by function of the script')}{note(text.OF_FUNCTIONS)}"
        yield Section("functions", "Compute by function (shares of the step)", "Functions", body)
