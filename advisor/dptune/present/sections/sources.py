"""Which modules, functions and named ranges of the script the device's time comes from."""

from __future__ import annotations

from collections.abc import Iterator

from dptune.advice import Report
from dptune.measured import AttributionFigures, ComputeFunction, Missing, SourceFigures
from dptune.present.amounts import Hole, percent, several
from dptune.present.lines import Line, heading, wrapped
from dptune.present.table import Column, table

_SORTS = {
    "modules": "module (all of its class)",
    "functions": "function",
    "annotations": "named range",
}
COLUMNS = (
    Column("function", right=False, least=32),
    Column("forward"),
    Column("backward"),
    Column("share"),
    Column("mostly", right=False, least=len("mostly")),
)
_AT_MOST = 5
_CALLED = "A function's time includes the operators that it calls and their backward pass. "
_INNERMOST = "Modules and ranges: attributed to the innermost one at launch. "
_LINES = (
    "A function's line is its first line, or the line it was at when recording started. Installed packages are "
    "recognized by path; in traces without paths, their functions may be listed, too."
)
OF_FUNCTIONS = f"{_CALLED}{_LINES}"


def attribution(report: Report, width: int) -> Iterator[Line]:
    """A table for each sort of place that the trace shows."""
    yield from heading("Compute time by source (shares of the step)", width)
    try:
        found = report.measured.attribution
    except Missing as missing:
        yield from wrapped(str(Hole(missing.reason)), width, "  ")
        return
    functions = report.measured.known("compute_functions")
    for name, title in _SORTS.items():
        sources = found.known(name)
        if name == "functions" and functions:
            yield from table(COLUMNS, [function_row(function) for function in functions], width)
        elif sources is not None:
            yield from _sources(sources, title, width)
    yield from wrapped(_basis(found), width, "  ")
    yield from wrapped(f"{_CALLED}{_INNERMOST}{_LINES}", width, "  ", role="dim")


def function_row(function: ComputeFunction) -> list[str]:
    """Its place and name, shares of forward pass, backward pass and both, and its main operator."""
    forward = function.share * function.cost_ns / max(1, function.cost_ns + function.backward_ns)
    return [
        f"{function.at} {function.name}",
        percent(forward),
        percent(function.share - forward),
        percent(function.share),
        function.operator.removeprefix("aten::"),
    ]


def _sources(sources: SourceFigures, title: str, width: int) -> Iterator[Line]:
    columns = (Column(title, right=False, least=len(title)), Column("share"))
    rows = [
        [
            source.name if source.instances == 1 else f"{source.name} ({source.instances} modules)",
            percent(source.step_share),
        ]
        for source in sources.top[:_AT_MOST]
    ]
    yield from table(columns, rows, width)
    rest = sources.places - len(rows)
    more = f"and {rest:,} more; together" if rest > 0 else "together"
    yield from wrapped(f"{more} {percent(sources.covered_share)} of all compute", width, "    ", role="dim")


def _basis(found: AttributionFigures) -> str:
    window = "detailed window" if found.window == "detailed" else "trace"
    return (
        f"From rank {found.rank}: {several(found.steps, 'step')} of its {window}; compute takes "
        f"{percent(found.compute_share)} of {'it' if found.steps == 1 else 'them'}."
    )
