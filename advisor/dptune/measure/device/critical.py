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

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

from dptune.measure.device.idle import LATENCY_NS
from dptune.measure.device.operations import Operations
from dptune.measure.host.launches import UNLAUNCHED
from dptune.measure.host.threads import Host
from dptune.measure.intervals import Intervals, Ints
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


class Part(NamedTuple):
    """A stretch of the path, and what it is of: a field of `CriticalPath`, and the row of an event, -1 for none."""

    start_ns: int
    end_ns: int
    kind: str
    row: int


def critical(view: RankView) -> CriticalPath | None:
    """The path through the steps of one rank, on the device that it has most steps of; None where there are none."""
    device = max(view.devices, key=lambda candidate: len(candidate.windows), default=None)
    if device is None or not device.windows or device.operations.on_cpu:
        return None
    walk = Walk.of(view.columns, device.operations, view.host)
    whole = [window for window in device.windows if not window.open_ended]
    windows = whole if len(whole) >= _LEAST_WHOLE else device.windows
    spent: dict[str, int] = defaultdict(int)
    named: dict[tuple[str, int], list[int]] = defaultdict(list)
    parts = [part for window in windows for part in walk.back(window)]
    host = [part for part in parts if part.kind in _OF_THE_HOST]
    names = view.columns.name_id[[part.row for part in parts]].tolist()
    for part, name in zip(parts, names, strict=True):
        took_ns = part.end_ns - part.start_ns
        spent[part.kind] += took_ns
        if part.row != _NONE:
            named[part.kind, name].append(took_ns)
    on_host = [part for part in host if part.kind == "host_ns"]
    spent["host_ns"] = 0
    for kind, ns in _by_cause(on_host, view.host).items():
        spent[kind] += ns
    longest = sorted(named.items(), key=lambda named_part: -sum(named_part[1]))[:MOST]
    path_ns = sum(window.end_ns - window.start_ns for window in windows)
    return CriticalPath(
        rank=view.rank,
        device=device.operations.device,
        steps=len(windows),
        path_ns=path_ns,
        **spent,
        idle_share=_not_computing_ns(host, device.operations) / max(1, path_ns),
        longest=[
            OnPath(name=view.columns.names[name], kind=kind.removesuffix("_ns"), total_ns=sum(took), count=len(took))
            for (kind, name), took in longest
        ],
    )


def _not_computing_ns(parts: Sequence[Part], operations: Operations) -> int:
    """How much of these parts the device computed nothing in."""
    start, end = _extents(parts)
    return int((end - start).sum() - operations.time[Work.COMPUTE].lengths(start, end).sum())


def _by_cause(parts: Sequence[Part], host: Host) -> dict[str, int]:
    """What the host did in these parts, separated as the account separates idle time."""
    start, end = _extents(parts)
    rest = Intervals.union(start, end)
    found = {}
    for kind, doing in (
        ("input_ns", host.loading),
        ("gc_ns", host.collecting),
        ("malloc_ns", host.allocating),
        ("launching_ns", host.working),
    ):
        found[kind] = int((rest & doing).lengths(start, end).sum())
        rest -= doing
    return {**found, "host_ns" if host.recorded else "unexplained_ns": int(rest.lengths(start, end).sum())}


def _extents(parts: Sequence[Part]) -> tuple[Ints, Ints]:
    """Their starts and their ends."""
    extents = np.array([(part.start_ns, part.end_ns) for part in parts], dtype=np.int64).reshape(-1, 2)
    return extents[:, 0], extents[:, 1]


class _Path:
    """Parts from a moment back, down to the least."""

    def __init__(self, at: int, least: int) -> None:
        self.at, self.least = at, least
        self.parts: list[Part] = []

    def back_to(self, start_ns: int, kind: str, row: int = _NONE) -> None:
        """What lies between the moment and an earlier one is of a kind. A later moment is where it is already."""
        start_ns = max(start_ns, self.least)
        if start_ns < self.at:
            self.parts.append(Part(start_ns, self.at, kind, row))
            self.at = start_ns


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

    def back(self, window: Step) -> list[Part]:
        """The path through a window, from its end to its beginning, without a gap."""
        path = _Path(window.end_ns, window.start_ns)
        beginning = self._beginning(window.end_ns)  # an operation of which it is asked why it did not begin earlier
        over = self.last(window.end_ns) if beginning == _NONE else _NONE  # or one that was waited for
        begins, ends, rows, waited_for = self._listed
        while path.at > window.start_ns:
            if over != _NONE:
                path.back_to(ends[over], "queued_ns")
                path.back_to(begins[over], self.kinds[over], rows[over])
                beginning, over = over, _NONE
            elif beginning != _NONE:
                over, called = waited_for[beginning]
                if called != UNLAUNCHED:
                    call_end = int(self.columns.ts_ns[called] + self.columns.dur_ns[called])
                    if path.at - call_end > LATENCY_NS:  # something else held it, as in the account
                        path.back_to(call_end, "queued_ns")
                    path.back_to(int(self.columns.ts_ns[called]), "latency_ns")
                elif over == _NONE:
                    path.back_to(window.start_ns, "unexplained_ns")
                beginning = _NONE
            else:
                over = self._on_host(path)
        return path.parts

    def _on_host(self, path: _Path) -> int:
        """From where the host goes on, back to the call that held it, and to what that waited for; -1 for nothing."""
        call = int(np.searchsorted(self.held.end_ns, path.at, side="right")) - 1
        if call < 0:
            path.back_to(path.least, "host_ns")
            return _NONE
        begun, ended = int(self.held.start_ns[call]), int(self.held.end_ns[call])
        path.back_to(ended, "host_ns")
        over = self.copied.get(ended, self.last(ended))
        waited = over != _NONE and int(self.end[over]) > begun
        path.back_to(int(self.end[over]) if waited else begun, "sync_ns")
        return over if waited else _NONE

    def _beginning(self, at: int) -> int:
        """The operation that begins at a moment; -1 for none."""
        first = int(np.searchsorted(self.begin, at))
        return first if first < len(self.begin) and int(self.begin[first]) == at else _NONE

    def last(self, at: int) -> int:
        """The operation that ended last, up to a moment; -1 for none."""
        place = int(np.searchsorted(self.ends, at, side="right")) - 1
        return int(self.by_end[place]) if place >= 0 else _NONE

    @cached_property
    def _listed(self) -> tuple[list[int], list[int], list[int], list[tuple[int, int]]]:
        """By operation its begin, end and row, and of `all_waited_for`: a path asks for them one by one."""
        over, called = self.all_waited_for
        pairs = list(zip(over.tolist(), called.tolist(), strict=True))
        return self.begin.tolist(), self.end.tolist(), self.rows.tolist(), pairs

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
