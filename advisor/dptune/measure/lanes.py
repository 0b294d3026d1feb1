"""Time of one rank as lanes of pieces: what ran on each stream or thread, as fine as a picture can show.

Pieces of one kind that lie closer together than the resolution are one.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from dptune.measure.device.operations import Operations
from dptune.measure.device.phases import host_phases
from dptune.measure.host_ranges import HostRanges
from dptune.measure.intervals import NOTHING, Intervals, Ints
from dptune.measure.steps.windows import Step
from dptune.measure.views import DeviceView, RankView, busiest, view
from dptune.trace.columns import Columns
from dptune.trace.kernels import STEP_NAME, Work
from dptune.trace.run import Run

SELF_TIME = "operator self time"  # a piece without a name: between the operators that it calls
_LEAST_IDLE = 0.1  # of a step
PARTS = 1200  # of what is drawn: what is shorter than one of them cannot be seen
_NUMBERED = re.compile(r"script|compute|gloo \d+|(?:stream|[a-z]+:\d+) \d+")  # labels that name nothing of the trace
_KINDS = {
    Work.COMPUTE: "compute",
    Work.COMMUNICATION: "communication",
    Work.COPY: "copy",
    Work.MEMSET: "memset",
}


@dataclass(frozen=True)
class Piece:
    """Something that ran, or several things of a kind: from where drawing begins, ns, as far as it is drawn.

    `name` is of the longest, which takes `longest_ns` in all, drawn or not; 0 where no single thing is known. Something
    ran in `busy_ns` of it; None: in all of it.
    """

    start_ns: int
    length_ns: int
    kind: str
    name: str
    count: int
    longest_ns: int = 0
    busy_ns: int | None = None

    @property
    def busy_share(self) -> float:
        """The share of it in which something ran."""
        return 1.0 if self.busy_ns is None else self.busy_ns / max(self.length_ns, 1)


@dataclass(frozen=True)
class Lane:
    """A stream of a device, or threads of the host."""

    label: str
    pieces: list[Piece]


@dataclass(frozen=True)
class Idle:
    """The longest time of a step in which no lane has anything, ns from its start; `inside` is the innermost event of
    the main thread halfway through it, empty where it is in none.
    """

    start_ns: int
    length_ns: int
    inside: str = ""


@dataclass(frozen=True)
class SearchHit:
    """An event: its name and times, which of `many` with such names it is, and the lane it belongs to.

    What computes nothing by itself, such as a range of the script or an operator that starts kernels, belongs to the
    script's lane, the first.
    """

    name: str
    start_ns: int
    end_ns: int
    at: int
    many: int
    lane: int


@dataclass(frozen=True)
class StepLanes:
    """A step: of which rank, its number, its length as it was traced.

    Where it is compared with the same step of another rank, `start_ns` is by how much it starts after the earlier one,
    and `lag_ns` how late its rank arrives at collectives in it. `late`: its rank is the straggler. `idle` is None where
    it idles for less than a tenth of the step at a time: so much is seen without words.
    """

    rank: int
    number: int
    length_ns: int
    lanes: list[Lane]
    start_ns: int = 0
    lag_ns: int = 0
    late: bool = False
    idle: Idle | None = None


def median_of(steps: Sequence[Step]) -> int | None:
    """Which of some steps has the median length; None where there are none."""
    whole = [at for at, step in enumerate(steps) if not step.open_ended] or list(range(len(steps)))
    return sorted(whole, key=lambda at: steps[at].length_ns)[len(whole) // 2] if whole else None


class RankLanes:
    """The steps of one rank, drawn between any two moments."""

    def __init__(self, run: Run, rank: int, seen: RankView | None = None) -> None:
        """`seen`: the view of the rank where it was made before."""
        rank_trace = next(candidate for candidate in run.ranks if candidate.rank == rank)
        facts = run.facts.get(rank)
        self.rank = rank
        times = rank_trace.light.columns
        ends = (times.ts_ns + times.dur_ns).max(initial=0)
        self.recorded_ns = (int(times.ts_ns.min(initial=ends)), int(ends))  # from the first event to the last end
        self._seen = seen or view(rank, rank_trace.light, facts.window("light") if facts else None)
        self.host = HostRanges(rank_trace.light)

    @property
    def steps(self) -> list[Step]:
        """The windows of its device, in order of time; none where it has no steps."""
        return busiest(self._seen)

    @property
    def base_ns(self) -> int:
        """What its times count from, ns since the epoch; 0 where that is not known."""
        return self._seen.base_ns

    @property
    def median(self) -> int | None:
        """Which of the steps has the median length; None where there are none."""
        return median_of(self.steps)

    def next_named(self, words: str, after_ns: int) -> SearchHit | None:
        """The first event after a moment with the words in its name, in any case; round to the first of all after the
        last. None where no event has them.
        """
        columns, low = self._seen.columns, words.lower()
        rows = columns.rows(named=lambda name: low in name.lower())
        if not len(rows):
            return None
        rows = rows[np.argsort(columns.ts_ns[rows], kind="stable")]
        at = int(np.searchsorted(columns.ts_ns[rows], after_ns, side="right")) % len(rows)
        row = int(rows[at])
        begin, end = int(columns.ts_ns[row]), int(columns.ends(rows[at : at + 1])[0])
        return SearchHit(columns.name(row), begin, end, at + 1, len(rows), self._lane_of(row))

    def _lane_of(self, row: int) -> int:
        """Which of the lanes of `between` an event belongs to."""
        before = 1
        for device, place in zip(self._seen.devices, self._places, strict=True):
            operations = device.operations
            lanes: list[int] = np.unique(place).tolist()
            if row in operations.rows:
                return before + lanes.index(int(place[operations.rows == row][0]))
            before += len(lanes)
        return 0

    def between(self, start_ns: int, end_ns: int) -> list[Lane]:
        """What ran between two moments of the trace's clock. Every lane is there, whatever it holds then."""
        drawn = Step(0, start_ns, end_ns)
        several = len(self._seen.devices) > 1
        devices = [
            lane
            for device, place in zip(self._seen.devices, self._places, strict=True)
            for lane in _device(self._seen, device, place, drawn, several)
        ]
        return [self._script(drawn), *devices]

    @cached_property
    def _places(self) -> list[Ints]:
        """By device, the lane of each operation."""
        return [_places(device.operations, self._seen.columns) for device in self._seen.devices]

    @cached_property
    def _phases(self) -> list[tuple[str, Intervals]]:
        """When the script waits for its loader, goes back, optimizes."""
        phases = host_phases(self._seen.columns)
        found: list[tuple[str, Intervals]] = [("loader", self._seen.host.loading)]
        if not isinstance(phases, str):
            found += [("backward", phases.going_back - phases.optimizing), ("optimizer", phases.optimizing)]
        return found

    def _script(self, step: Step) -> Lane:
        """What the script does: its loader, its backward pass, its optimizer."""
        pieces = [piece for kind, busy in self._phases for piece in _pieces(busy, step, kind)]
        return Lane("script", sorted(pieces, key=lambda drawn_piece: drawn_piece.start_ns))


def unnamed(step: StepLanes) -> StepLanes:
    """The same without the names of what ran, and of streams and threads that have more than a number."""
    lanes = [
        Lane(
            lane.label if _NUMBERED.fullmatch(lane.label) else f"stream or thread {number}",
            [replace(piece, name=piece.kind) for piece in lane.pieces],
        )
        for number, lane in enumerate(step.lanes, 1)
    ]
    return replace(step, lanes=lanes, idle=replace(step.idle, inside="") if step.idle else None)


def step_lanes(run: Run, rank: int | None = None) -> StepLanes | None:
    """The median step of a rank, of the first one where none is named; None where it has no steps."""
    ranks = [rank_trace.rank for rank_trace in run.ranks if rank is None or rank_trace.rank == rank]
    rank_lanes = RankLanes(run, ranks[0]) if ranks else None
    if rank_lanes is None or rank_lanes.median is None:
        return None
    return drawn(rank_lanes, rank_lanes.steps[rank_lanes.median])


def drawn(rank_lanes: RankLanes, step: Step) -> StepLanes:
    """The lanes of one step of a rank, without those in which nothing ran."""
    lanes = [lane for lane in rank_lanes.between(step.start_ns, step.end_ns) if lane.pieces]
    return StepLanes(rank_lanes.rank, step.number, step.length_ns, lanes, idle=_idle(rank_lanes, step, lanes))


def _idle(rank_lanes: RankLanes, step: Step, lanes: Sequence[Lane]) -> Idle | None:
    pieces = sorted((piece.start_ns, piece.start_ns + piece.length_ns) for lane in lanes for piece in lane.pieces)
    busy_until, longest = 0, (0, 0)  # length and start
    for start, end in [*pieces, (step.length_ns, step.length_ns)]:
        longest = max(longest, (start - busy_until, busy_until))
        busy_until = max(busy_until, end)
    length, start = longest
    if length < _LEAST_IDLE * step.length_ns:
        return None
    path = rank_lanes.host.path(step.start_ns + start + length // 2)
    names = [event.name for event in path if not STEP_NAME.match(event.name)]
    return Idle(start, length, names[-1] if names else "")


def _device(seen: RankView, device: DeviceView, place: Ints, step: Step, several: bool) -> list[Lane]:
    """A lane for each stream of a GPU, one of `several` or not; of a CPU one for compute and one for each thread that
    collectives. `place`: the lane of each operation.
    """
    operations, columns = device.operations, seen.columns
    start, end = columns.ts_ns[operations.rows], columns.ends(operations.rows)
    inside = np.flatnonzero((start < step.end_ns) & (end > step.start_ns))
    inside = inside[np.argsort(start[inside], kind="stable")]
    rows, work, lane = operations.rows[inside], operations.work[inside], place[inside]
    found: list[Lane] = []
    for number in np.unique(place).tolist():
        pieces: list[Piece] = []
        for kind, name in _KINDS.items():
            chosen = rows[(lane == number) & (work == int(kind))]
            if operations.on_cpu and kind == Work.COMPUTE:
                busy = operations.time[kind] if number == -1 else NOTHING  # an operator may hold more than compute
            else:
                busy = Intervals.union(columns.ts_ns[chosen], columns.ends(chosen))
            pieces += _pieces(busy, step, name, columns, chosen)
        host_label = "compute" if number == -1 else f"gloo {len(found)}"
        queue = columns.queue_label(number)
        stream = f"{operations.device} {queue}" if several else f"stream {queue}"
        label = host_label if operations.on_cpu else stream
        found.append(Lane(label, sorted(pieces, key=lambda piece: piece.start_ns)))
    return found


def _places(operations: Operations, columns: Columns) -> Ints:
    """By operation the stream it ran on; of a CPU the thread that communicates, -1 for what computes."""
    communicating = operations.work == int(Work.COMMUNICATION)
    place: Ints = (
        np.where(communicating, columns.thread[operations.rows], -1)
        if operations.on_cpu
        else columns.queue[operations.rows]
    )
    return place


def _pieces(
    busy: Intervals, step: Step, kind: str, columns: Columns | None = None, rows: Ints | None = None
) -> list[Piece]:
    """What of a set of time lies in the step; what is closer together than the resolution as one.

    `rows` are the events that it is of: a piece has the name of the longest of those that run in it.
    """
    start, end = np.maximum(busy.start_ns, step.start_ns), np.minimum(busy.end_ns, step.end_ns)
    lasting = end > start
    start, end = start[lasting], end[lasting]
    if not len(start):
        return []
    apart = start[1:] > end[:-1] + max(step.length_ns // PARTS, 1)
    first, last = np.concatenate(([True], apart)), np.concatenate((apart, [True]))
    ran = np.add.reduceat(end - start, np.flatnonzero(first))
    found = []
    for begin, until, busy_ns in zip(start[first].tolist(), end[last].tolist(), ran.tolist(), strict=True):
        of = (kind, 1, 0) if columns is None or rows is None else _longest(columns, rows, begin, until, step.start_ns)
        found.append(Piece(begin - step.start_ns, until - begin, kind, *of, busy_ns=busy_ns))
    return found


def _longest(columns: Columns, rows: Ints, begin: int, until: int, drawn_ns: int) -> tuple[str, int, int]:
    """The name of the longest of the events, in order of time, that begin there, how many do, and how long it takes.

    Where drawing begins there, those count that began before: `rows` are of what ends after that.
    """
    times = columns.ts_ns[rows]
    low = 0 if begin == drawn_ns else int(np.searchsorted(times, begin))
    high = int(np.searchsorted(times, until))
    if low == high:
        return "", 1, 0
    longest = int(rows[low + np.argmax(columns.dur_ns[rows[low:high]])])
    return columns.name(longest), high - low, int(columns.dur_ns[longest])
