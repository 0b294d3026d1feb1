"""Hidden and exposed communication: a bar for each collective, as long as its share of the step."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from dptune.advice import Report
from dptune.measured import CommunicationFigures, ProcessGroupFigures
from dptune.present.amounts import percent, several
from dptune.present.lines import Line, Span, heading, wrapped
from dptune.present.plots import legend
from dptune.present.process_groups import parallel_dimensions
from dptune.present.step_classes import PARTS, Part, cells

MOST_COLLECTIVES = 12
_LEAST_BAR, _WIDEST_BAR = 12, 72
_BLOCKS = {part.name: part for part in PARTS}
_LEGEND = (
    (_BLOCKS["compute"], "hidden: overlapped by compute"),
    (_BLOCKS["exposed comm"], "exposed communication"),
    (_BLOCKS["waiting"], "waiting for ranks"),
)


def overlap(report: Report, width: int) -> Iterator[Line]:
    """The longest first; nothing where no collective ran in a step."""
    found, account = report.measured.known("overlap"), report.measured.known("account")
    if found is None or account is None or not account.window_ns:
        return
    rows = sorted(found.rows, key=lambda row: -row.communication_ns)
    if not rows or not rows[0].communication_ns:
        return
    yield from heading("Hidden and exposed communication (shares of the traced step)", width)
    shown = rows[:MOST_COLLECTIVES]
    names = [collective_name(row, report.measured.process_groups) for row in shown]
    shares = [percent(row.communication_ns / account.window_ns) for row in shown]
    column, figures = max(map(len, names)), max(map(len, shares))
    beside = width - column - figures - 6
    room = min(max(beside, _LEAST_BAR), _WIDEST_BAR)
    for row, name, share in zip(shown, names, shares, strict=True):
        drawn = cells(_parts(row, rows[0].communication_ns), room)
        if beside >= _LEAST_BAR:
            yield Span(f"  {name:<{column}}  {share:>{figures}}  "), *drawn
        else:
            yield from wrapped(f"{name} {share}", width, "  ")
            yield Span("    "), *drawn
    if len(rows) > len(shown):
        yield from wrapped(f"and {several(len(rows) - len(shown), 'shorter row')}", width, "  ", role="dim")
    yield from legend(((part.block, part.role, words) for part, words in _LEGEND), width, "  ")
    hidden = f"{percent(account.overlap_share)} of all communication is hidden."
    yield from wrapped(hidden, width, "  ", role="dim")


def collective_name(row: CommunicationFigures, groups: Iterable[ProcessGroupFigures]) -> str:
    """`all_reduce (gradients) in backward`; by what its group is for where its purpose is not known."""
    phase, purpose = row.known("phase"), row.known("purpose")
    where = f" in {phase}" if phase and phase != "unknown" else ""
    meant = purpose if purpose and purpose != "other" else parallel_dimensions(row.known("group"), groups)
    of = f" ({meant})" if meant else ""
    return f"{row.kind}{of}{where}"


def _parts(row: CommunicationFigures, longest_ns: int) -> Iterator[tuple[Part, float]]:
    """Hidden, transferring, waiting: as shares of the longest row."""
    waiting_ns = row.exposed_ns - row.exposed_transfer_ns
    for (part, _), part_ns in zip(_LEGEND, (row.hidden_ns, row.exposed_transfer_ns, waiting_ns), strict=True):
        yield part, part_ns / longest_ns
