"""A full launch queue: a call then returns only when the device has begun something that was launched before.

CUDA keeps about 1,020 operations of a stream that are launched and have not begun. A call that finds them all there
blocks until one begins: the device is the limit then, and the host has nothing to do with it. Two things identify such
a call: that many operations are outstanding when it starts, and it lasts many times as long as usual.

Seen on a public trace (V100, one stream): of 4,933 launches with fewer than 1,021 outstanding none but two lasted more
than 0.14 ms, of 1,288 with 1,021 half lasted 0.12 ms or more, each until 5 us after the operation 1,021 launches before
it began. On another (H100, two streams) three in four blocked calls found 1,021 of their own stream, and 1,029 to 1,045
of both; none of 56 calls that launched into the other stream lasted long. Where the long calls of a trace show that
streams share a queue, they do. The operations of a CUDA graph take one place together.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from dptune.measure.device.operations import Operations
from dptune.measure.host.launches import UNLAUNCHED
from dptune.measure.intervals import Ints, Mask
from dptune.trace.columns import Columns
from dptune.trace.kernels import LAUNCH_CATEGORIES, waits

DEPTH = 1021  # launches that a queue holds
_NEARLY_FULL = 900
_LONG = 4  # times what a call usually takes
_USUAL_NS = 10_000  # where no call was made with room in the queue
_SMALLEST = 64  # places of a queue
_AS_MANY = 0.97  # of the most that are ever outstanding
_HELD_THERE = 0.8  # of the long calls, for that to be why they are long
_ENOUGH = 5  # calls of a name that say what it usually takes
_AS_WELL = 0.95  # of the time in long calls: an explanation that covers this much less is as good
_NO_STREAM = np.iinfo(np.int64).min  # of a call that launches nothing
_NONE = np.empty(0, dtype=np.int64)


@dataclass(frozen=True, eq=False)
class Launches:
    """The launches of a device in order of their calls: row of the call, its start, when its first work began, and the
    stream of that.
    """

    rows: Ints
    called_ns: Ints
    begun_ns: Ints
    stream: Ints

    @classmethod
    def of(cls, columns: Columns, operations: Operations) -> Launches:
        """Of the operations whose launch was recorded."""
        known = operations.launch != UNLAUNCHED
        begun, launch = columns.ts_ns[operations.rows[known]], operations.launch[known]
        order = np.lexsort((begun, launch))
        rows, first = np.unique(launch[order], return_index=True)
        begun, called = begun[order][first], columns.ts_ns[rows]
        stream = columns.queue[operations.rows[known]][order][first].astype(np.int64)
        order = np.argsort(called, kind="stable")
        return cls(rows[order], called[order], begun[order], stream[order])

    def outstanding(self, times_ns: Ints) -> Ints:
        """At each moment how many were launched before it and have not begun."""
        launched = np.searchsorted(self.called_ns, times_ns, side="left")
        begun = np.searchsorted(np.sort(self.begun_ns), times_ns, side="right")
        return np.asarray(np.maximum(launched - begun, 0), dtype=np.int64)

    def by_queue(self, *, of_streams: bool) -> Iterator[tuple[int, Ints, Launches]]:
        """By queue its number, the places of its launches among all, and these. Without `of_streams` there is one."""
        queues = self.stream if of_streams else np.zeros(len(self.stream), dtype=np.int64)
        for queue in np.unique(queues).tolist():
            (mine,) = np.nonzero(queues == queue)
            yield queue, mine, Launches(self.rows[mine], self.called_ns[mine], self.begun_ns[mine], self.stream[mine])


@dataclass(frozen=True, eq=False)
class Full:
    """The calls that a full queue blocked: their rows, and from when on, after what such a call usually takes.

    `of_streams`: whether each stream has a queue of its own.
    """

    rows: Ints
    since_ns: Ints
    of_streams: bool


NEVER_FULL = Full(_NONE, _NONE, of_streams=True)


def blocked_calls(columns: Columns, devices: Sequence[Operations]) -> Full:
    """The calls that a full queue blocked: of each stream or of the device, whichever covers more of the long calls."""
    rows = columns.rows(LAUNCH_CATEGORIES, lambda name: not waits("cuda_runtime", name))
    start, took = columns.ts_ns[rows], columns.dur_ns[rows]
    names = columns.name_id[rows].astype(np.int64)
    most_ns, found = 0.0, NEVER_FULL
    launched = [_Launched.of(columns, device, rows) for device in devices if not device.on_cpu]
    for of_streams in (True, False):
        outstanding = _outstanding(columns, launched, rows, of_streams=of_streams)
        full = outstanding >= _NEARLY_FULL
        if not full.any():
            full = _smaller_queue_full(names, took, outstanding)
        if not full.any():
            continue
        usual = _usual_ns(names, took, ~full)
        blocked = full & (took > _LONG * usual)
        covered_ns = float(took[blocked].sum())
        if _AS_WELL * covered_ns > most_ns:
            most_ns, found = covered_ns, Full(rows[blocked], (start + usual)[blocked], of_streams)
    return found


@dataclass(frozen=True, eq=False)
class _Launched:
    """The launches of a device, the rows of its operations that were launched before recording began, and by call of
    the host the stream that it launches into.
    """

    launches: Launches
    early: Ints
    into: Ints

    @classmethod
    def of(cls, columns: Columns, device: Operations, calls: Ints) -> _Launched:
        launches = Launches.of(columns, device)
        return cls(launches, device.rows[device.launch == UNLAUNCHED], _streams_of(launches, calls))


def _outstanding(columns: Columns, launched: Sequence[_Launched], rows: Ints, *, of_streams: bool) -> Ints:
    """How many are outstanding as each call starts, in the queue that it launches into; of others the fullest one."""
    start = columns.ts_ns[rows]
    found = np.zeros(len(rows), dtype=np.int64)
    for device in launched:
        early, into = device.early, device.into
        for queue, _, mine in device.launches.by_queue(of_streams=of_streams):
            # What was launched before recording began is in the queue, too, until it begins.
            before = np.sort(columns.ts_ns[early[columns.queue[early] == queue] if of_streams else early])
            unbegun = len(before) - np.searchsorted(before, start, side="right")
            here = (into == queue) | (into == _NO_STREAM) | (not of_streams)
            found[here] = np.maximum(found, mine.outstanding(start) + unbegun)[here]
    return found


def _streams_of(launches: Launches, rows: Ints) -> Ints:
    """By call the stream that it launches into."""
    in_order = np.argsort(launches.rows, kind="stable")
    if not len(in_order):
        return np.full(len(rows), _NO_STREAM, dtype=np.int64)
    known = launches.rows[in_order]
    at = np.minimum(np.searchsorted(known, rows), len(known) - 1)
    return np.where(known[at] == rows, launches.stream[in_order][at], _NO_STREAM).astype(np.int64)


def _smaller_queue_full(names: Ints, took: Ints, outstanding: Ints) -> Mask:
    """Which calls found a queue full that holds fewer than usual; none where long calls have other reasons."""
    full: Mask = outstanding >= max(_SMALLEST, _AS_MANY * outstanding.max(initial=0))
    long = took > _LONG * _usual_ns(names, took, ~full)
    if (long & full).sum() < _ENOUGH or full[long].mean() < _HELD_THERE:
        return np.zeros(len(full), dtype=np.bool_)
    return full


def _usual_ns(names: Ints, took: Ints, free: Mask) -> Ints:
    """By call the median of those of its name that found room, else of all that did."""
    usual = np.full(len(names), int(np.median(took[free])) if free.any() else _USUAL_NS, dtype=np.int64)
    for name in np.unique(names):
        of_name = names == name
        if (of_name & free).sum() >= _ENOUGH:
            usual[of_name] = int(np.median(took[of_name & free]))
    return usual
