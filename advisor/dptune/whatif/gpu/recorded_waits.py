"""Waits of streams for events of other streams, where the trace records them.

torch.profiler writes CUPTI's synchronization records with `enable_cuda_sync_events`, as `dptune profile` asks it to. A
record of `cudaStreamWaitEvent` names the stream that waits, the call that makes it wait, the stream it waits for, and
the call of `cudaEventRecord`. What is launched on the first stream after the one call waits for what was launched on
the other before the other call, and for what that stream itself had been made to wait for by then.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from typing import NamedTuple

import msgspec
import numpy as np

from dptune.errors import TraceError
from dptune.measure.device.critical import Walk
from dptune.measure.host.launches import UNLAUNCHED
from dptune.measure.views import RankView
from dptune.trace.columns import NONE
from dptune.trace.kernels import LAUNCH_CATEGORIES, STREAM_WAIT, SYNC_CATEGORIES
from dptune.trace.kineto.arguments import chosen_arguments
from dptune.trace.kineto.schema import ABSENT

_KNOWN = 0.9  # of the records: events recorded before the trace started have no call in it


class _Awaited(msgspec.Struct):
    """The stream that a record's event is of, and the correlation of the call that recorded the event."""

    stream: msgspec.Raw = msgspec.field(default=ABSENT, name="wait_on_stream")
    recorded: msgspec.Raw = msgspec.field(default=ABSENT, name="wait_on_cuda_event_record_corr_id")


class _Wait(NamedTuple):
    """From which call on which stream waits, and for what was launched on which stream before which call."""

    since_ns: int
    stream: int
    awaited: int
    until_ns: int


def recorded_waits(view: RankView, walk: Walk) -> dict[int, list[int]] | None:
    """By place of an operation in the walk the places of those of other streams that it has to wait for.

    None where the trace records no waits, or does not show the calls of most.
    """
    waits = _waits(view, walk)
    if not waits:
        return None
    launched = np.flatnonzero(walk.launch != UNLAUNCHED)
    called_ns = walk.columns.ts_ns[walk.launch[launched]]
    order = np.argsort(called_ns, kind="stable")
    places: dict[int, list[int]] = defaultdict(list)
    called: dict[int, list[int]] = defaultdict(list)
    streams = walk.columns.queue[walk.rows[launched[order]]].tolist()
    for place, at, stream in zip(launched[order].tolist(), called_ns[order].tolist(), streams, strict=True):
        places[stream].append(place)
        called[stream].append(at)
    pending: dict[int, list[tuple[int, list[int]]]] = defaultdict(list)
    found: dict[int, list[int]] = defaultdict(list)
    for wait in waits:
        before = bisect_left(called[wait.awaited], wait.until_ns)
        over = places[wait.awaited][before - 1 : before] if before else []
        last_ns = called[wait.awaited][before - 1] if before else None
        for since_ns, others in pending[wait.awaited]:
            if since_ns < wait.until_ns and (last_ns is None or since_ns > last_ns):
                over = [*over, *others]
        pending[wait.stream].append((wait.since_ns, over))
        first = bisect_left(called[wait.stream], wait.since_ns)
        if first < len(places[wait.stream]):
            waiting = places[wait.stream][first]
            found[waiting] += [other for other in over if walk.end[other] <= walk.begin[waiting]]
    return {place: list(dict.fromkeys(others)) for place, others in found.items()}


def _waits(view: RankView, walk: Walk) -> list[_Wait]:
    """All that are recorded of the device, in the order of the calls that make streams wait."""
    columns = view.columns
    rows = columns.rows(SYNC_CATEGORIES, STREAM_WAIT.__eq__)
    devices = np.unique(columns.device[walk.rows])
    rows = rows[np.isin(columns.device[rows], devices)]
    calls = columns.rows(LAUNCH_CATEGORIES)
    called_ns = dict(zip(columns.correlation[calls].tolist(), columns.ts_ns[calls].tolist(), strict=True))
    called_ns.pop(NONE, None)
    found, of_same = [], 0
    try:
        read = list(chosen_arguments(view.trace, rows.tolist(), _Awaited))
    except TraceError:
        return []
    for places, several in read:
        for place, each in zip(places, several, strict=True):
            row = int(rows[place])
            since_ns, until_ns = (
                called_ns.get(number) for number in (int(columns.correlation[row]), _number(each.recorded))
            )
            stream, awaited = int(columns.queue[row]), _number(each.stream)
            if awaited == stream:
                of_same += 1
            elif since_ns is not None and until_ns is not None and until_ns <= since_ns and awaited != NONE:
                found.append(_Wait(since_ns, stream, awaited, until_ns))
    return sorted(found) if len(found) >= _KNOWN * (len(rows) - of_same) else []


def _number(text: msgspec.Raw) -> int:
    try:
        return msgspec.json.decode(bytes(text), type=int)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return NONE
