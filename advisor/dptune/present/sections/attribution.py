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
    "functions": "function of the script",
    "annotations": "range that the script names",
}
_AT_MOST = 5
_WORDS = (
    "Of each sort, the innermost that the host was in as it launched the work. A function's line is where it begins, "
    "or where it stood as recording began. Installed packages are told from the script's own files by their path "
    "only, which many traces lack."
)


def attribution(report: Report, width: int) -> Iterator[Line]:
    """A table for each sort of place that the trace shows."""
    yield from heading("Where the device's time comes from (compute, shares of the step)", width)
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
    yield from wrapped(f"{more}{percent(sources.covered_share)} of the compute in all", width, "    ", role="dim")


def _basis(found: AttributionFigures) -> str:
    window = "detailed window" if found.window == "rich" else "trace"
    return (
        f"Read from rank {found.rank}, {several(found.steps, 'step')} of its {window}, of which the device computes "
        f"in {percent(found.compute_share)}."
    )
