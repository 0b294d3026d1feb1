"""Logs of NCCL Inspector: who arrives last, then how long collectives take and how fast they are."""

from __future__ import annotations

from collections.abc import Iterator

from dptune.measured.inspector import InspectedCalls, InspectorFigures, LastRank
from dptune.present.amounts import data, number, percent, several
from dptune.present.lines import BLANK, Line, heading, wrapped
from dptune.present.table import Cell, Column, table

_AT_MOST = 12
_COLUMNS = (
    Column("collective", right=False, least=10),
    Column("communicator", right=False, least=8),
    Column("ranks"),
    Column("nodes"),
    Column("size"),
    Column("calls"),
    Column("ms"),
    Column("transfer"),
    Column("busbw GB/s"),
)
_WORDS = (
    "ms: the longest duration over ranks, including the wait for the last to arrive; transfer: the shortest, that of "
    "the last to arrive; busbw: bus bandwidth of the transfer. Medians over calls."
)


def inspector(found: InspectorFigures, width: int) -> Iterator[Line]:
    """The verdict and the table of collectives."""
    processes = several(found.processes, "process", "processes")
    yield from heading(f"NCCL Inspector: {processes}, {several(found.calls, 'call')}", width)
    for last in found.last_ranks[:_AT_MOST]:
        yield from wrapped(_last(last), width, "  ", "    ", role="strong")
    if not found.last_ranks:
        yield from wrapped("No rank arrives last in half or more of the collectives.", width, "  ")
    if found.unread:
        yield from wrapped(f"{several(found.unread, 'object')} could not be read.", width, "  ", role="dim")
    for finding in found.findings:
        yield from wrapped(f"{finding}.", width, "  ", "    ", role="dim")
    yield BLANK
    yield from table(_COLUMNS, [_row(row) for row in found.collectives[:_AT_MOST]], width)
    if len(found.collectives) > _AT_MOST:
        more = f"and {several(len(found.collectives) - _AT_MOST, 'more row')}: see --format json"
        yield from wrapped(more, width, "  ", role="dim")
    yield from wrapped(_WORDS, width, "  ", role="dim")


def _last(last: LastRank) -> str:
    where = f" on {last.host} (pid {last.pid})" if last.host else ""
    return (
        f"Straggler: rank {last.rank} of {last.of_ranks:,} in {last.name or last.communicator}{where} arrives last at "
        f"{percent(last.share)} of the collectives; the others wait {number(last.waiting_us / 1e3)} ms."
    )


def _row(row: InspectedCalls) -> list[Cell]:
    ranks = f"{row.ranks:,}" if row.ranks == row.of_ranks else f"{row.ranks:,} of {row.of_ranks:,}"
    return [
        row.kind,
        row.name or row.communicator,
        ranks,
        f"{row.nodes:,}",
        data(row.message_bytes),
        f"{row.calls:,}",
        number(row.exec_us / 1e3),
        number(row.transfer_us / 1e3),
        number(row.busbw_gb_per_s),
    ]
