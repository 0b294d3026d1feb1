"""Which modules, functions and named ranges of the script the device's time comes from."""

from __future__ import annotations

from collections.abc import Iterator

from dptune.advice import Report
from dptune.measured import AttributionFigures, Missing, SourceFigures
from dptune.present.amounts import Hole, percent, several
from dptune.present.lines import Line, heading, wrapped
from dptune.present.table import Column, table

_SORTS = {
    "modules": "module (all of its class)",
    "functions": "function",
    "annotations": "named range",
}
_AT_MOST = 5
_WORDS = (
    "Attributed to the innermost enclosing module, function or range at launch. A function's line is its first line, "
    "or the line it was at when recording started. Installed packages are recognized by their path, which many "
    "traces lack."
)


def attribution(report: Report, width: int) -> Iterator[Line]:
    """A table for each sort of place that the trace shows."""
    yield from heading("Compute time by source (shares of the step)", width)
    try:
        found = report.measured.attribution
    except Missing as missing:
        yield from wrapped(str(Hole(missing.reason)), width, "  ")
        return
    for name, title in _SORTS.items():
        sources = found.known(name)
        if sources is not None:
            yield from _sources(sources, title, width)
    yield from wrapped(_basis(found), width, "  ")
    yield from wrapped(_WORDS, width, "  ", role="dim")


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
    more = f"and {rest:,} more, " if rest > 0 else ""
    yield from wrapped(f"{more}{percent(sources.covered_share)} of all compute", width, "    ", role="dim")


def _basis(found: AttributionFigures) -> str:
    window = "detailed window" if found.window == "detailed" else "trace"
    return (
        f"From rank {found.rank}, {several(found.steps, 'step')} of its {window} (compute: "
        f"{percent(found.compute_share)} of {'it' if found.steps == 1 else 'them'})."
    )
