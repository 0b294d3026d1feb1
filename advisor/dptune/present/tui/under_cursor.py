"""Words on what is under the cursor of the timeline."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np

from dptune.measure.host_ranges import Nested
from dptune.measure.lanes import SELF_TIME, Piece, SearchHit
from dptune.measure.rank_time import RankTime
from dptune.measured import short_name
from dptune.measured.naming import cut
from dptune.present.amounts import milliseconds, ns_as_ms, percent, several
from dptune.present.lines import Line, labelled, line
from dptune.present.step_classes import kind_name
from dptune.present.tui.rows import Row, common_ns, parts_of
from dptune.present.tui.scene import Window, mean_shares
from dptune.runfile.ranks import spans

_DEEPEST = 6  # names of a path, the innermost
_BUSY = 0.995  # of a piece: one with more is called busy throughout


def of_ranks(
    row: Row, ranks: Sequence[RankTime], window: Window, cell: Window, path: Sequence[Nested], lag_ns: int, width: int
) -> Iterator[Line]:
    """On the time of whole ranks: what most of the cell is, the shares of what is drawn, and where the host was."""
    name = f"Rank {row.ranks[0]}" if len(row.ranks) == 1 else f"Ranks {spans(row.ranks, ',')}"
    host = f" on {ranks[0].host}" if ranks[0].host and len({rank.host for rank in ranks}) == 1 else ""
    here = _shares(ranks, cell)
    what = max(here, key=lambda part: part[1], default=("", 0.0))
    yield line(f"{name}{host}: {what[0] if what[1] > 0 else 'not recorded'}", "strong")
    lacking = next((rank.missing for rank in ranks if rank.missing), "")
    if lacking:
        yield from labelled("Unknown", lacking, width, role="warning")
    if lag_ns > 0:
        yield from labelled("Late", f"{milliseconds(lag_ns / 1e6)} in the median step", width)
    shown = ", ".join(f"{part} {percent(share)}" for part, share in _shares(ranks, window) if share >= 0.0005)
    yield from labelled("In view", shown or "nothing recorded", width)
    if path:
        yield from labelled("Host in", inside(path), width)
    if not all(rank.aligned for rank in ranks):
        yield from labelled("Clock", "not comparable with the first rank's; placed by the start of its steps", width)


def _shares(ranks: Sequence[RankTime], window: Window) -> list[tuple[str, float]]:
    shares = mean_shares(ranks, np.array(window, dtype=np.int64))
    return [(part.name, float(share[0])) for part, share in parts_of(shares)]


def of_level(
    row: Row, event: Nested | None, found: SearchHit | None, path: Sequence[Nested], width: int
) -> Iterator[Line]:
    """On a level of nested ranges: the event, how long it takes, and what it lies in."""
    if event is None:
        yield line(f"{row.label.strip()}: no event of this level", "strong")
    else:
        yield line(f"{event.kind}: {event.name}", "strong")
        yield from _found(found, width, cut)
        yield from labelled("Takes", milliseconds(event.length_ns / 1e6), width)
    around = [each for each in path if event is None or each.length_ns > event.length_ns]
    if around:
        yield from labelled("Inside", inside(around), width)


def inside(path: Sequence[Nested]) -> str:
    """Names from the outer to the inner, each with its length; the innermost few of many."""
    shown = [f"{cut(event.name)} ({milliseconds(event.length_ns / 1e6)})" for event in path[-_DEEPEST:]]
    return " > ".join([*(["..."] if len(path) > _DEEPEST else []), *shown])


def of_lane(
    row: Row, piece: Piece | None, length_ns: int, found: SearchHit | None, path: Sequence[Nested], width: int
) -> Iterator[Line]:
    """On a stream or on the script: what runs, how long; where nothing does, what the host was in."""
    yield line(f"{row.label}{f': {kind_name(piece.kind)}' if piece else ''}", "strong")
    yield from _found(found, width, short_name)
    if piece is not None:
        yield from _piece(piece, length_ns, width)
    elif found is None:
        yield from labelled("Idle", "nothing runs here", width)
    if path:
        yield from labelled("Host in", inside(path), width)


def _found(found: SearchHit | None, width: int, shortened: Callable[[str], str]) -> Iterator[Line]:
    if found is not None:
        yield from labelled("Found", f"{shortened(found.name)}, {ns_as_ms(found.end_ns - found.start_ns)} ms", width)


def _piece(piece: Piece, length_ns: int, width: int) -> Iterator[Line]:
    yield from labelled("What", short_name(piece.name) or SELF_TIME, width)
    at_edge = piece.start_ns <= 0 or piece.start_ns + piece.length_ns >= length_ns
    whole_ns = piece.longest_ns if piece.count == 1 and at_edge else 0
    yield from labelled("Takes", f"{ns_as_ms(max(whole_ns, piece.length_ns))} ms", width)
    if whole_ns > piece.length_ns:
        yield from labelled("Drawn", f"{ns_as_ms(piece.length_ns)} ms of it", width)
    if piece.count > 1:
        longest = f"the longest, of {ns_as_ms(piece.longest_ns)} ms, is named"
        gaps = f", {percent(piece.busy_share)} busy" if piece.busy_share < _BUSY else ""
        yield from labelled("Holds", f"{several(piece.count, 'operation')}{gaps}; {longest}", width)


def piece_at(row: Row, cell: Window) -> Piece | None:
    """The piece of a lane that takes most of a cell, whose times count from where drawing begins."""
    low, high = cell
    pieces = row.lane.pieces if row.lane is not None else []
    touching = [piece for piece in pieces if piece.start_ns < high and piece.start_ns + piece.length_ns > low]
    return max(touching, key=lambda piece: common_ns(piece, low, high), default=None)


def event_at(row: Row, cell: Window) -> Nested | None:
    """The event of a level that takes most of a cell."""
    low, high = cell
    touching = [event for event in row.level if event.start_ns < high and event.end_ns > low]
    return max(touching, key=lambda event: min(event.end_ns, high) - max(event.start_ns, low), default=None)
