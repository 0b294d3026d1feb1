"""Ranks as a Perfetto file: a process for each rank, a track for each thread and stream, arrows between ranks.

Every complete event of a trace is a slice of the same name and nanoseconds, moved by the difference of clocks only.
Tracks above the threads hold the steps, why each device is idle, and what the recommendations refer to.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import BinaryIO

import numpy as np

from dptune.advice import Advice
from dptune.errors import RunError
from dptune.measure.intervals import Ints
from dptune.measure.one_timeline import Arrival, OneTimeline, RankTimeline
from dptune.present.amounts import in_unit
from dptune.present.perfetto.nesting import edges
from dptune.present.perfetto.packets import Numbers, Packets, builder
from dptune.present.step_classes import NAMES
from dptune.trace.columns import NONE


@dataclass
class _Slice:
    """What one slice shows besides its name and times: numbers of arrows that leave and arrive, and details."""

    leaving: list[int] = field(default_factory=list)
    arriving: list[int] = field(default_factory=list)
    details: dict[str, int | str] = field(default_factory=dict)


_PLAIN = _Slice()


@dataclass(frozen=True)
class _Row:
    """A slice of a track of dptune's own, on the clock of the file."""

    name: str
    start_ns: int
    end_ns: int
    details: Mapping[str, int | str] = field(default_factory=dict)


def write(timeline: OneTimeline, advice: Sequence[Advice], file: BinaryIO) -> int:
    """Write the file; how many slices are events of the traces. Raises UsageError without the perfetto package."""
    new_builder, numbers = builder(), Numbers()
    slices = _arrows(timeline, numbers)
    later_ns = _later_ns(timeline)
    for rank in timeline.ranks:
        packets = Packets(file, new_builder, numbers, rank.rank + 1)
        process = packets.process(_process_name(rank))
        for arrival in rank.arrivals:
            slices[rank.rank][arrival.row].details |= _details(arrival)
        _own_tracks(packets, process, rank, advice, later_ns)
        _events(packets, process, rank, slices[rank.rank], later_ns)
        packets.flush()
    return sum(len(rank.columns) for rank in timeline.ranks)


def _arrows(timeline: OneTimeline, numbers: Numbers) -> dict[int, dict[int, _Slice]]:
    """By rank and row, the slices with arrows: each arrow has a number of its own."""
    slices: dict[int, dict[int, _Slice]] = defaultdict(lambda: defaultdict(_Slice))
    for arrow in timeline.arrows:
        number = numbers.next()
        slices[arrow.from_rank][arrow.from_row].leaving.append(number)
        slices[arrow.to_rank][arrow.to_row].arriving.append(number)
    return slices


def _later_ns(timeline: OneTimeline) -> int:
    """How much later than recorded everything is written: 0, unless a time lies before the epoch.

    Perfetto has no negative times. Raises RunError where the ranks then do not fit into its 64 bits.
    """
    ranks = [rank for rank in timeline.ranks if len(rank.columns)]
    later_ns = max([0, *(-int(rank.columns.ts_ns.min()) - rank.shift_ns for rank in ranks)])
    if any(int(rank.columns.end_ns.max()) + rank.shift_ns + later_ns >= 2**63 for rank in ranks):
        raise RunError("the times of these ranks are too far apart for one file", "export fewer ranks: --ranks")
    return later_ns


def _process_name(rank: RankTimeline) -> str:
    host = f" on {rank.host}" if rank.host else ""
    return f"rank {rank.rank}{host}{'' if rank.aligned else ' (clock not aligned)'}"


def _details(arrival: Arrival) -> dict[str, int | str]:
    shown: dict[str, int | str] = {
        "collective": arrival.kind,
        "last rank to arrive": arrival.last_rank,
        "ns before the last rank": arrival.early_ns,
    }
    return shown if arrival.message_bytes is None else shown | {"message bytes": arrival.message_bytes}


def _own_tracks(packets: Packets, process: int, rank: RankTimeline, advice: Sequence[Advice], later_ns: int) -> None:
    """The steps, the causes of idle time by device, and the evidence of the recommendations."""
    shift_ns = rank.shift_ns + later_ns
    steps = [_Row(f"step {step.number}", step.start_ns + shift_ns, step.end_ns + shift_ns) for step in rank.steps]
    _rows(packets, process, "steps", steps)
    for device, causes in rank.idle.items():
        idle = [
            _Row(NAMES[cause], start + shift_ns, end + shift_ns)
            for cause, time in causes.items()
            for start, end in zip(time.start_ns.tolist(), time.end_ns.tolist(), strict=True)
        ]
        _rows(packets, process, f"idle {device}, by cause", idle)
    _rows(packets, process, "recommendations", list(_marks(rank.rank, advice, shift_ns)))


def _marks(rank: int, advice: Sequence[Advice], shift_ns: int) -> Iterator[_Row]:
    """A mark for each place of evidence on a rank."""
    for recommendation in advice:
        for evidence in recommendation.evidence:
            if evidence.rank == rank and evidence.start_ns is not None and evidence.end_ns is not None:
                yield _Row(
                    f"{recommendation.rule} {recommendation.slug}",
                    evidence.start_ns + shift_ns,
                    evidence.end_ns + shift_ns,
                    {"recommendation": recommendation.title, evidence.label: in_unit(evidence.value, evidence.unit)},
                )


def _rows(packets: Packets, process: int, name: str, rows: Sequence[_Row]) -> None:
    """A track of dptune's own; none where it would hold nothing."""
    if not rows:
        return
    packets.intern(row.name for row in rows)
    tracks = _Lanes(packets, packets.track(process, name), process, name)
    start_ns = np.array([row.start_ns for row in rows], dtype=np.int64)
    end_ns = np.array([row.end_ns for row in rows], dtype=np.int64)
    for lane, at, ends in edges(start_ns, end_ns):
        row = rows[at]
        if ends:
            packets.end(tracks[lane], row.end_ns)
        else:
            packets.begin(tracks[lane], row.start_ns, row.name, details=row.details)


def _events(packets: Packets, process: int, rank: RankTimeline, slices: Mapping[int, _Slice], later_ns: int) -> None:
    """Every event of the trace, on the track of its thread or stream."""
    columns = rank.columns
    packets.intern(columns.names, columns.categories)
    starts = columns.ts_ns + (rank.shift_ns + later_ns)
    ends_ns = starts + columns.dur_ns
    order = np.argsort(columns.thread, kind="stable")
    _, first = np.unique(columns.thread[order], return_index=True)
    for rows in np.split(order, first[1:]) if len(order) else []:
        tracks = _track(packets, process, rank, rows)
        numbers, names, categories = rows.tolist(), columns.name_id[rows].tolist(), columns.category_id[rows].tolist()
        begin_ns, until_ns = starts[rows].tolist(), ends_ns[rows].tolist()
        for lane, at, ends in edges(starts[rows], ends_ns[rows]):
            shown = slices.get(numbers[at], _PLAIN)
            if ends:
                packets.end(tracks[lane], until_ns[at], shown.arriving)
            else:
                name, category = columns.names[names[at]], columns.categories[categories[at]]
                packets.begin(tracks[lane], begin_ns[at], name, category, shown.leaving, shown.details)


def _track(packets: Packets, process: int, rank: RankTimeline, rows: Ints) -> _Lanes:
    """The track of a thread or stream, by the first of its events, and those beside it for events that overlap."""
    columns = rank.columns
    first = int(rows[0])
    pid, tid = columns.labels[columns.pid_id[first]], columns.labels[columns.tid_id[first]]
    streams = columns.stream[rows]
    if (streams != NONE).any():
        name = f"device {pid} stream {int(streams[streams != NONE][0])}"
        return _Lanes(packets, packets.track(process, name), process, name)
    title = rank.trace.thread_names.get((pid, tid), "")
    name = f"{title or 'thread'} (pid {pid}, tid {tid})"
    thread = packets.thread(process, name)
    return _Lanes(packets, thread, thread, name)


class _Lanes:
    """The tracks of one thread or stream: its own, and one more for each further lane of overlapping events."""

    def __init__(self, packets: Packets, first: int, parent: int, name: str) -> None:
        self._packets, self._tracks = packets, [first]
        self._parent, self._name = parent, name

    def __getitem__(self, lane: int) -> int:
        while lane >= len(self._tracks):
            name = f"{self._name}, overlapping {len(self._tracks)}"
            self._tracks.append(self._packets.track(self._parent, name))
        return self._tracks[lane]
