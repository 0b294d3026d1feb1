"""Dumps of the flight recorder: who hangs first, then calls that differ, then how long calls take."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from dptune.measured.flight import Culprit, FlightCalls, FlightFigures, Mismatch, StuckCollective
from dptune.present.amounts import Hole, data, number, several
from dptune.present.lines import BLANK, Line, heading, wrapped
from dptune.present.table import Cell, Column, table
from dptune.runfile.ranks import spans

_AT_MOST = 8
_COLUMNS = (
    Column("collective", right=False, least=10),
    Column("group", right=False, least=8),
    Column("size"),
    Column("ranks"),
    Column("calls"),
    Column("ms"),
    Column("longest"),
)
_NO_DURATION = Hole("neither the dumps nor traces show durations (TORCH_NCCL_ENABLE_TIMING=1 records them)")
_NO_SIZE = Hole("the element type is not known, or nothing is sent")
_ALL_ARRIVED = (
    "Every rank with a dump has called the unfinished collectives. If the job hangs, the cause is a rank without a "
    "dump, calls that differ, a network failure, or earlier work on the device."
)


def flight(found: FlightFigures, width: int) -> Iterator[Line]:
    """The verdict, what it rests on, and the table of calls."""
    title = f"Flight recorder: {several(len(found.ranks), 'rank')}, {several(found.entries, 'call')}"
    yield from heading(title, width)
    for words in _verdict(found):
        yield from wrapped(words, width, "  ", role="strong")
    for words in (*map(_stuck, found.stuck[:_AT_MOST]), *map(_mismatch, found.mismatches[:_AT_MOST])):
        yield from wrapped(words, width, "  ", "    ")
    left_out = max(0, len(found.stuck) - _AT_MOST) + max(0, len(found.mismatches) - _AT_MOST)
    if left_out:
        yield from wrapped(f"and {left_out} more: see --format json", width, "  ", role="dim")
    for words in _remarks(found):
        yield from wrapped(words, width, "  ", "    ", role="dim")
    if found.calls:
        yield BLANK
        yield from table(_COLUMNS, [_row(calls) for calls in found.calls[:_AT_MOST]], width)
        if len(found.calls) > _AT_MOST:
            more = f"and {several(len(found.calls) - _AT_MOST, 'more row')}: see --format json"
            yield from wrapped(more, width, "  ", role="dim")


def _verdict(found: FlightFigures) -> Iterator[str]:
    """Who holds up the job, if anybody does."""
    for culprit in found.culprits[:_AT_MOST]:
        yield _culprit(culprit)
    if len(found.culprits) > _AT_MOST:
        yield f"and {several(len(found.culprits) - _AT_MOST, 'more rank')}: see --format json"
    if found.mismatches:
        yield "Ranks call different collectives: fix the first difference below."
    if not found.culprits and not found.mismatches:
        if not found.stuck:
            yield "No rank waits: every recorded collective has finished."
        elif not any(each.missing for each in found.stuck):
            yield _ALL_ARRIVED


def _culprit(culprit: Culprit) -> str:
    waits = _ranks(culprit.holds_up)
    if not culprit.dumped:
        return f"Rank {culprit.rank} has no dump, and {waits} wait for it: it may have died. See its log."
    last = f" after {culprit.last_call}" if culprit.last_call else ""
    at = f" ({culprit.at})" if culprit.at else ""
    verb = "waits" if len(culprit.holds_up) == 1 else "wait"
    return f"Rank {culprit.rank} hangs outside of collectives{last}{at}: {waits} {verb} for it. See its stack."


def _stuck(each: StuckCollective) -> str:
    size = "" if each.message_bytes is None else f" ({data(each.message_bytes)})"
    at = f" ({each.at})" if each.at else ""
    said = f"Unfinished: {each.kind} #{each.sequence}{size} in {_group(each.group, each.description)}{at}. "
    said += f"Called by {_ranks(each.reached)}" + (f", finished on {_ranks(each.done)}" if each.done else "")
    if each.missing:
        said += f"; not called by {_ranks(each.missing)}"
    if each.without_dump:
        said += f"; no dump of {_ranks(each.without_dump)}"
    if each.not_started:
        said += f"; not started on the device of {_ranks(each.not_started)}"
    return f"{said}."


def _mismatch(each: Mismatch) -> str:
    what = {"kind": "collectives", "sizes": "sizes", "types": "types"}[each.what]
    values = "; ".join(f"{value} on {_ranks(ranks)}" for value, ranks in list(each.values.items())[:_AT_MOST])
    return f"Different {what} at call #{each.sequence} in {_group(each.group, each.description)}: {values}."


def _remarks(found: FlightFigures) -> Iterator[str]:
    if found.without_dump:
        yield f"No dump of {_ranks(found.without_dump)}."
    if found.traced is not None:
        yield f"{found.traced:,} calls of the dumps were found in the traces, by process group and sequence number."
    yield from (
        f"{finding[:1].upper()}{finding[1:]}{'' if finding.endswith('?') else '.'}" for finding in found.findings
    )


def _row(calls: FlightCalls) -> list[Cell]:
    return [
        calls.kind,
        _group(calls.group, calls.description).removeprefix("group "),
        _NO_SIZE if calls.message_bytes is None else data(calls.message_bytes),
        f"{calls.ranks:,}",
        f"{calls.calls:,}",
        _NO_DURATION if calls.duration_ms is None else number(calls.duration_ms),
        _NO_DURATION if calls.longest_ms is None else number(calls.longest_ms),
    ]


def _group(name: str, description: str) -> str:
    return f"group {name}" if description in ("", "undefined", name) else f"group {name} ({description})"


def _ranks(ranks: Sequence[int]) -> str:
    if not ranks:
        return "no rank"
    return f"rank {ranks[0]}" if len(ranks) == 1 else f"ranks {spans(ranks)}"
