"""The critical path of GPU steps: from the end of a step back to its beginning, always by what was waited for last.

An operation of the device could begin when the last of these was over: its launch, the operation before it on its
stream, one of another stream that it had to wait for. The thread that launches goes on after a call that waits for the
device when the device is through with what is waited for. So the path changes between device and host, and covers the
step without a gap. While the host is on it the device may compute as well: a faster host saves at most the time in
which it does not, and the time in which the rank waits for others, whose hosts may be late. Communication that runs
meanwhile would then run beside compute. A last step of which the end is not known lacks the host's time after it, and
is left out where there are others.

Traces seldom tell which other stream an operation waited for. Where the one before it on its own stream ended more than
`_FOLLOWS_NS` earlier, it is taken to have waited for the one that ended last on any stream of the device.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from typing import NamedTuple

import numpy as np

from dptune.measure.device.idle import LATENCY_NS
from dptune.measure.device.operations import Operations
from dptune.measure.host.launches import UNLAUNCHED
from dptune.measure.host.threads import Host
from dptune.measure.intervals import Intervals, Ints, Mask
from dptune.measure.steps.windows import Step
from dptune.measure.views import RankView
from dptune.measured import CriticalPath, OnPath
from dptune.trace.columns import Columns
from dptune.trace.kernels import Work

MOST = 8  # names that are reported
NO_PATH = "only GPU steps have one: on a CPU it is the script's thread, whose time the step breakdown shows"
_FOLLOWS_NS = 10_000  # an operation begins so soon after the one it waited for
_CLASSES: dict[int, str] = {Work.COMPUTE: "compute_ns", Work.COMMUNICATION: "communication_ns"}
_OF_THE_HOST = ("host_ns", "latency_ns", "sync_ns")
_NONE = -1
_LEAST_WHOLE = 2  # windows: with fewer the last one is needed too


def critical(view: RankView) -> CriticalPath | None:
    """The path through the steps of one rank, on the device that it has most steps of; None where there are none."""
    device = max(view.devices, key=lambda candidate: len(candidate.windows), default=None)
    if device is None or not device.windows or device.operations.on_cpu:
        return None
    walk = Walk.of(view.columns, device.operations, view.host)
    whole = [window for window in device.windows if not window.open_ended]
    windows = whole if len(whole) >= _LEAST_WHOLE else device.windows
    path = _Stretches.of([walk.back(window) for window in windows])
    spent: dict[str, int] = defaultdict(int, path.spent())
    host = np.isin(path.kind, [path.kinds.index(kind) for kind in _OF_THE_HOST if kind in path.kinds])
    on_host = path.of_kind("host_ns")
    spent["host_ns"] = 0
    for kind, ns in _by_cause(path.start_ns[on_host], path.end_ns[on_host], view.host).items():
        spent[kind] += ns
    path_ns = sum(window.end_ns - window.start_ns for window in windows)
    waiting_ns = _not_computing_ns(path.start_ns[host], path.end_ns[host], device.operations)
    return CriticalPath(
        rank=view.rank,
        device=device.operations.device,
        steps=len(windows),
        path_ns=path_ns,
        **spent,
        idle_share=waiting_ns / max(1, path_ns),
        longest=path.longest(view.columns),
    )


def _not_computing_ns(start_ns: Ints, end_ns: Ints, operations: Operations) -> int:
    """How much of these stretches the device computed nothing in."""
    return int((end_ns - start_ns).sum() - operations.time[Work.COMPUTE].lengths(start_ns, end_ns).sum())


def _by_cause(start_ns: Ints, end_ns: Ints, host: Host) -> dict[str, int]:
    """What the host did in these stretches, separated as the account separates idle time."""
    rest = Intervals.union(start_ns, end_ns)
    found = {}
    for kind, doing in (
        ("input_ns", host.loading),
        ("gc_ns", host.collecting),
        ("malloc_ns", host.allocating),
        ("launching_ns", host.working),
    ):
        found[kind] = int((rest & doing).lengths(start_ns, end_ns).sum())
        rest -= doing
    return {**found, "host_ns" if host.recorded else "unexplained_ns": int(rest.lengths(start_ns, end_ns).sum())}


class Path:
    """Stretches from a moment back, down to the least: by stretch its start and end, what it is of (a field of
    `CriticalPath`), and the row of an event, -1 for none.
    """

    def __init__(self, at: int, least: int) -> None:
        self.at, self.least = at, least
        self.starts: list[int] = []
        self.ends: list[int] = []
        self.kinds: list[str] = []
        self.rows: list[int] = []

    def back_to(self, start_ns: int, kind: str, row: int = _NONE) -> None:
        """What lies between the moment and an earlier one is of a kind. A later moment is where it is already."""
        if start_ns < self.least:
            start_ns = self.least
        if start_ns < self.at:
            self.starts.append(start_ns)
            self.ends.append(self.at)
            self.kinds.append(kind)
            self.rows.append(row)
            self.at = start_ns


@dataclass(frozen=True, eq=False)
class _Stretches:
    """Those of several paths as columns; `kind` indexes `kinds`."""

    start_ns: Ints
    end_ns: Ints
    kind: Ints
    row: Ints
    kinds: list[str]

    @classmethod
    def of(cls, paths: Sequence[Path]) -> _Stretches:
        def column(values: Iterable[list[int]]) -> Ints:
            return np.fromiter(chain.from_iterable(values), dtype=np.int64)

        number = {kind: at for at, kind in enumerate(dict.fromkeys(chain.from_iterable(path.kinds for path in paths)))}
        return cls(
            column(path.starts for path in paths),
            column(path.ends for path in paths),
            column([number[kind] for kind in path.kinds] for path in paths),
            column(path.rows for path in paths),
            list(number),
        )

    def of_kind(self, kind: str) -> Mask:
        """Which are of a kind."""
        found: Mask = self.kind == (self.kinds.index(kind) if kind in self.kinds else _NONE)
        return found

    def spent(self) -> dict[str, int]:
        """How long those of each kind are together."""
        took_ns = self.end_ns - self.start_ns
        return {kind: int(took_ns[self.kind == at].sum()) for at, kind in enumerate(self.kinds)}

    def longest(self, columns: Columns) -> list[OnPath]:
        """Kinds and names that take most; of those that take as long the one that the path meets first."""
        known = self.row != _NONE
        took_ns, names = (self.end_ns - self.start_ns)[known], len(columns.names)
        keys = self.kind[known] * names + columns.name_id[self.row[known]]
        each, first, place, count = np.unique(keys, return_index=True, return_inverse=True, return_counts=True)
        total_ns = np.zeros(len(each), dtype=np.int64)
        np.add.at(total_ns, place, took_ns)
        order = np.lexsort((first, -total_ns))[:MOST].tolist()
        return [
            OnPath(
                name=columns.names[int(each[at]) % names],
                kind=self.kinds[int(each[at]) // names].removesuffix("_ns"),
                total_ns=int(total_ns[at]),
                count=int(count[at]),
            )
            for at in order
        ]


class _Listed(NamedTuple):
    """What a path asks for one by one, as lists: by operation its begin, end and row, `Walk.all_waited_for` (the
    operation, and the call with its begin and end); then `by_end` and `ends` of the walk, and when the host is held.
    """

    begins: list[int]
    ends: list[int]
    rows: list[int]
    over: list[int]
    called: list[int]
    call_begins: list[int]
    call_ends: list[int]
    by_end: list[int]
    ends_in_order: list[int]
    held_begins: list[int]
    held_ends: list[int]


@dataclass(frozen=True, eq=False)
class Walk:
    """The operations of a device in order of their begin. `before` is the one before each on its stream, -1 for none.

    `handed_ns` is when each had been handed to the device: at the end of the call that launched it, but at its start
    where that call waits for the operation itself. `copied` is by the end of such a call the place of that operation.
    `by_end` are their places in order of their ends, `ends` those ends.
    """

    columns: Columns
    held: Intervals
    rows: Ints
    launch: Ints
    handed_ns: Ints
    copied: dict[int, int]
    kinds: list[str]
    begin: Ints
    end: Ints
    before: Ints
    by_end: Ints
    ends: Ints

    @classmethod
    def of(cls, columns: Columns, operations: Operations, host: Host) -> Walk:
        """Of the operations that last, and of when the script's threads are held."""
        lasting = columns.dur_ns[operations.rows] > 0
        rows, launch, work = operations.rows[lasting], operations.launch[lasting], operations.work[lasting]
        order = np.argsort(columns.ts_ns[rows], kind="stable")
        rows, launch, work = rows[order], launch[order], work[order]
        begin, end = columns.ts_ns[rows], columns.ends(rows)
        before = np.full(len(rows), _NONE, dtype=np.int64)
        streams = columns.queue[rows]
        for stream in np.unique(streams):
            (mine,) = np.nonzero(streams == stream)
            before[mine[1:]] = mine[:-1]
        by_end = np.argsort(end, kind="stable")
        kinds = [_CLASSES.get(work_class, "copy_ns") for work_class in work.tolist()]
        copying = dict(sorted(host.blocked.copying.items()))
        calls, copies = (np.array(list(each), dtype=np.int64) for each in (copying, copying.values()))
        itself = np.isin(launch, calls)
        itself[itself] = copies[np.searchsorted(calls, launch[itself])] == rows[itself]
        handed = np.where(itself, columns.ts_ns[launch], columns.ends(launch))
        copied = {int(columns.ends(launch)[place]): place for place in np.flatnonzero(itself).tolist()}
        return cls(columns, host.held, rows, launch, handed, copied, kinds, begin, end, before, by_end, end[by_end])

    def back(self, window: Step) -> Path:
        """The path through a window, from its end to its beginning, without a gap."""
        path = Path(window.end_ns, window.start_ns)
        beginning = self._beginning(window.end_ns)  # an operation of which it is asked why it did not begin earlier
        over = self.last(window.end_ns) if beginning == _NONE else _NONE  # or one that was waited for
        listed = self._listed
        while path.at > window.start_ns:
            if over != _NONE:
                path.back_to(listed.ends[over], "queued_ns")
                path.back_to(listed.begins[over], self.kinds[over], listed.rows[over])
                beginning, over = over, _NONE
            elif beginning != _NONE:
                over = listed.over[beginning]
                if listed.called[beginning] != UNLAUNCHED:
                    call_end = listed.call_ends[beginning]
                    if path.at - call_end > LATENCY_NS:  # something else held it, as in the account
                        path.back_to(call_end, "queued_ns")
                    path.back_to(listed.call_begins[beginning], "latency_ns")
                elif over == _NONE:
                    path.back_to(window.start_ns, "unexplained_ns")
                beginning = _NONE
            else:
                over = self._on_host(path)
        return path

    def _on_host(self, path: Path) -> int:
        """From where the host goes on, back to the call that held it, and to what that waited for; -1 for nothing."""
        listed = self._listed
        call = bisect_right(listed.held_ends, path.at) - 1
        if call < 0:
            path.back_to(path.least, "host_ns")
            return _NONE
        begun, ended = listed.held_begins[call], listed.held_ends[call]
        path.back_to(ended, "host_ns")
        over = self.copied.get(ended, self.last(ended))
        waited = over != _NONE and listed.ends[over] > begun
        path.back_to(listed.ends[over] if waited else begun, "sync_ns")
        return over if waited else _NONE

    def _beginning(self, at: int) -> int:
        """The operation that begins at a moment; -1 for none."""
        begins = self._listed.begins
        first = bisect_left(begins, at)
        return first if first < len(begins) and begins[first] == at else _NONE

    def last(self, at: int) -> int:
        """The operation that ended last, up to a moment; -1 for none."""
        place = bisect_right(self._listed.ends_in_order, at) - 1
        return self._listed.by_end[place] if place >= 0 else _NONE

    @cached_property
    def _listed(self) -> _Listed:
        over, called = self.all_waited_for
        columns, held = self.columns, self.held
        calls = columns.ts_ns[called], columns.ends(called)
        operations = self.begin, self.end, self.rows, over, called, *calls, self.by_end, self.ends
        return _Listed(*(each.tolist() for each in (*operations, held.start_ns, held.end_ns)))

    @cached_property
    def all_waited_for(self) -> tuple[Ints, Ints]:
        """By operation the one that it waited for last, else -1 and the row of the call that launched it.

        Places and rows; UNLAUNCHED for no call. The operation before it on its stream may end after its begin: the next
        begins while the last blocks still run.
        """
        over = self.before
        followed = (over != _NONE) & (self.begin - self.end[over] <= _FOLLOWS_NS)
        at = np.searchsorted(self.ends, self.begin, side="right") - 1
        over = np.where(followed, over, np.where(at >= 0, self.by_end[at], _NONE))
        launched = (self.launch != UNLAUNCHED) & ((over == _NONE) | (self.handed_ns > self.end[over]))
        return np.where(launched, _NONE, over), np.where(launched, self.launch, UNLAUNCHED)
