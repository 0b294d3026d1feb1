"""Which rows the timeline shows: all ranks, folded where there are more than lines; or what one rank ran."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from functools import partial
from statistics import median_low

import numpy as np

from dptune.advice import Report
from dptune.measure.intervals import Ints
from dptune.measure.lanes import RankLanes
from dptune.measure.rank_time import RankTime, RunTime, Shares
from dptune.present.amounts import milliseconds
from dptune.present.first_screen import reported_straggler
from dptune.present.tui.rows import Row, Sign, lane_row, level_rows, time_cells

Window = tuple[int, int]  # ns
_CHUNK = 8  # ranks that share a row where hosts are not known
_LONGEST_HOST = 9  # letters: of longer names both ends are shown


def lags_of(report: Report) -> dict[int, int]:
    """By rank, how late it is in the median step, of ranks of which that is known."""
    arrivals = ((rank.rank, rank.known("arrival")) for rank in report.measured.ranks)
    return {rank: arrival.lag_ns for rank, arrival in arrivals if arrival is not None}


def late_ranks_of(report: Report) -> list[int]:
    """The straggler; without one the ranks that the outliers name, the latest place first."""
    straggler, outliers = reported_straggler(report), report.measured.known("outliers")
    if straggler is not None:
        return [straggler]
    return [rank for place in (outliers.late if outliers else ()) for rank in place.ranks]


def usual_rank(rank: int, ranks: Sequence[int], lags: dict[int, int], late: int | None) -> int | None:
    """Whom to compare a rank with: the straggler; the straggler with the rank of the median lag."""
    others = [number for number in ranks if number != rank]
    if not others:
        return None
    if late in others:
        return late
    known = [lags[number] for number in others if number in lags]
    return next((number for number in others if known and lags.get(number) == median_low(known)), others[0])


def folded(
    run_time: RunTime, ranks: Sequence[int], late: Sequence[int], room: int
) -> list[tuple[str, tuple[int, ...]]]:
    """Names and ranks of the rows: a row per rank, late ones first; where there is no room for that, one per host, or
    per few ranks of hosts that are not known, and late ranks by themselves in half of the room.
    """
    known = set(ranks)
    first = [rank for rank in late if rank in known][: max(room // 2, 1)]
    others = [rank for rank in ranks if rank not in first]
    if len(ranks) <= max(room, 2):
        return [(f"r{rank}", (rank,)) for rank in (*first, *others)]
    hosts = {rank: run_time.ranks[rank].host for rank in others}
    found: list[tuple[str, tuple[int, ...]]] = [(f"r{rank}", (rank,)) for rank in first]
    if len({*hosts.values()}) > 1:
        for host in dict.fromkeys(hosts.values()):
            inside = tuple(rank for rank in others if hosts[rank] == host)
            found.append((f"{_host(host)} x{len(inside)}", inside))
        return found
    size = max(-(-len(others) // room), _CHUNK)
    chunks = [tuple(others[at : at + size]) for at in range(0, len(others), size)]
    return [*found, *((f"r{chunk[0]}-{chunk[-1]}", chunk) for chunk in chunks)]


def _host(name: str) -> str:
    half = _LONGEST_HOST // 2 - 1
    return name if len(name) <= _LONGEST_HOST else f"{name[:half]}..{name[-_LONGEST_HOST + half + 2 :]}"


def run_rows(
    run_time: RunTime,
    names: Sequence[tuple[str, tuple[int, ...]]],
    window: Window,
    columns: int,
    late: Collection[int],
    lags: dict[int, int],
) -> list[Row]:
    """A row for each rank or few ranks."""
    cuts = np.linspace(*window, columns + 1).astype(np.int64)
    rows = []
    for name, ranks in names:
        is_late = len(ranks) == 1 and ranks[0] in late
        label = f"{name} +{milliseconds(lags[ranks[0]] / 1e6)}" if is_late and lags.get(ranks[0]) else name
        rows.append(Row(label, ranks, partial(_time, run_time, ranks, cuts), is_late))
    return rows


def _time(run_time: RunTime, ranks: Sequence[int], cuts: Ints) -> list[Sign]:
    return time_cells(mean_shares([run_time.ranks[rank] for rank in ranks], cuts))


def mean_shares(ranks: Sequence[RankTime], cuts: Ints) -> dict[str, Shares]:
    """The shares of each class between neighbouring moments, the mean over ranks."""
    each = [rank.shares(cuts) for rank in ranks]
    return {name: sum((shares[name] for shares in each[1:]), start=each[0][name]) / len(each) for name in each[0]}


def rank_rows(
    lanes: RankLanes, window: Window, columns: int, time_rows: Sequence[Row], most: int | None = None
) -> list[Row]:
    """The time of a rank where it is known, its streams that run anything, the phases of its script, and the nested
    ranges of its threads; `window` is by its own clock. With `most`, only so many: outer ranges before streams.
    """
    begin, end = window
    drawn = [(number, lane) for number, lane in enumerate(lanes.between(begin, end)) if lane.pieces]
    streams = [lane_row(lane, number, lanes.rank, end - begin, columns) for number, lane in drawn]
    streams.sort(key=lambda row: row.number == 0)  # the script's below those of the device
    threads = lanes.host.between(begin, end, (end - begin) // (2 * columns))
    levels = [row for thread in threads for row in level_rows(thread, lanes.rank, window, columns)]
    if most is None:
        return [*time_rows, *streams, *levels]
    room = most - len(time_rows)
    levels = levels[: max(most // 2, room - len(streams), 2)]
    return [*time_rows, *streams[: max(room - len(levels), 0)], *levels]
