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
_SUMMED = ("calls", "communication_ns", "hidden_ns", "exposed_ns", "exposed_transfer_ns", "exposed_unsplit_ns")
_BLOCKS = {part.name: part for part in PARTS}
_LEGEND = (
    (_BLOCKS["compute"], "hidden: overlapped by compute"),
    (_BLOCKS["exposed comm"], "exposed communication"),
    (_BLOCKS["comm or waiting"], "exposed, or waiting: ranks are missing"),
    (_BLOCKS["waiting"], "waiting for ranks"),
)


def overlap(report: Report, width: int) -> Iterator[Line]:
    """The longest first; nothing where no collective ran in a step."""
    found, account = report.measured.known("overlap"), report.measured.known("account")
    if found is None or account is None or not account.window_ns:
        return
    rows = named_rows(found.rows, report.measured.process_groups)
    longest_ns = max((row.communication_ns for _, row in rows), default=0)
    if not longest_ns:
        return
    yield from heading("Hidden and exposed communication (shares of the traced step)", width)
    names, shown = zip(*rows[:MOST_COLLECTIVES], strict=True)
    shares = [percent(row.communication_ns / account.window_ns) for row in shown]
    column, figures = max(map(len, names)), max(map(len, shares))
    beside = width - column - figures - 6
    room = min(max(beside, _LEAST_BAR), _WIDEST_BAR)
    for row, name, share in zip(shown, names, shares, strict=True):
        drawn = cells(_parts(row, longest_ns), room)
        if beside >= _LEAST_BAR:
            yield Span(f"  {name:<{column}}  {share:>{figures}}  "), *drawn
        else:
            yield from wrapped(f"{name} {share}", width, "  ")
            yield Span("    "), *drawn
    if len(rows) > len(shown):
        yield from wrapped(f"and {several(len(rows) - len(shown), 'shorter row')}", width, "  ", role="dim")
    unsplit = any(row.exposed_unsplit_ns for row in shown)
    keys = [key for key in _LEGEND if unsplit or key[0] is not _BLOCKS["comm or waiting"]]
    yield from legend(((part.block, part.role, words) for part, words in keys), width, "  ")
    hidden = f"{percent(account.overlap_share)} of all communication is hidden."
    yield from wrapped(hidden, width, "  ", role="dim")


def named_rows(
    rows: Iterable[CommunicationFigures], groups: Iterable[ProcessGroupFigures]
) -> list[tuple[str, CommunicationFigures]]:
    """Each collective by its name, the longest first; the same one in several process groups is one row, their sum."""
    found: dict[str, CommunicationFigures] = {}
    for row in rows:
        name = collective_name(row, groups)
        other = found.get(name)
        sums = {field: getattr(row, field) + getattr(other, field) for field in _SUMMED} if other else {}
        found[name] = row.model_copy(update=sums)
    return sorted(found.items(), key=lambda item: -item[1].communication_ns)


def collective_name(row: CommunicationFigures, groups: Iterable[ProcessGroupFigures]) -> str:
    """`all_reduce (gradients) in backward`; by what its group is for where its purpose is not known."""
    phase, purpose = row.known("phase"), row.known("purpose")
    where = f" in {phase}" if phase and phase != "unknown" else ""
    meant = purpose if purpose and purpose != "other" else parallel_dimensions(row.known("group"), groups)
    of = f" ({meant})" if meant else ""
    return f"{row.kind}{of}{where}"


def _parts(row: CommunicationFigures, longest_ns: int) -> Iterator[tuple[Part, float]]:
    """Hidden, exposed, exposed or waiting, waiting: as shares of the longest row."""
    for (part, _), part_ns in zip(_LEGEND, times(row), strict=True):
        yield part, part_ns / longest_ns


def times(row: CommunicationFigures) -> tuple[int, int, int, int]:
    """Hidden, exposed, exposed or waiting, waiting: they sum to the communication of the row."""
    unsplit_ns = row.exposed_unsplit_ns
    return row.hidden_ns, row.exposed_transfer_ns - unsplit_ns, unsplit_ns, row.exposed_ns - row.exposed_transfer_ns
