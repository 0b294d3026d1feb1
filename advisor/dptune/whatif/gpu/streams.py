"""What operations wait for on another stream beside what they were seen to wait for last.

A trace seldom records which event a stream waited for, and the operation that ended last hides the others: a collective
queued behind another seems to wait for that alone, and one that ended long before the optimizer for nothing. Two rules
of torch fill that in.

- ProcessGroupNCCL makes its stream wait for the stream that issues a collective (`syncStream`): a collective waits for
  what was launched before it on a stream, if that holds for all collectives of its kind. An all-gather that FSDP issues
  from a stream of its own begins while kernels launched before it run, so it gets no such edge; where the host is too
  slow for that, the ranges of fully_shard show it (`unit_streams`). The exception is the first of a step: FSDP's gather
  streams wait for the script's stream there (`_root_pre_forward`).
- What uses a result waits for it: the next kernel of the compute stream that began after the collective; where it
  reduces gradients, the first of those after the backward pass, or that copies a bucket back (DDP's reducer waits for
  all buckets when autograd's queue is empty; FSDP waits in its final callback, and before it reduces the next unit,
  because it keeps the input of one reduction at a time).
"""

from __future__ import annotations

import re
from collections import defaultdict

import numpy as np

from dptune.measure.communication.kinds import kernel_collective
from dptune.measure.communication.purposes import GRADIENTS, purposes
from dptune.measure.device.critical import Walk
from dptune.measure.device.phases import BACKWARD, host_phases
from dptune.measure.host.enclosing import NOWHERE, Ranges
from dptune.measure.host.launches import UNLAUNCHED
from dptune.measure.intervals import Ints, Mask
from dptune.measure.views import RankView
from dptune.trace.kernels import OPTIMIZER_STEP_NAME, RANGE_CATEGORIES
from dptune.whatif.gpu.unit_streams import gathers_of_units

_HOLDS = 0.98  # of the collectives of a kind, for all of them to be taken to wait
_COPIED_BACK = re.compile(r"torch\.distributed\.ddp\.reducer::copy_bucket_to_grad$")
_REDUCES, _GATHERS = "reduce_scatter", "all_gather"
_NEXT_UNIT = re.compile(r"FSDP::post_backward_reduce\b")


def starts_of(view: RankView) -> Ints:
    """When the host's steps start."""
    return np.array([step.start_ns for step in view.steps], dtype=np.int64)


def across_streams(walk: Walk, starts_ns: Ints) -> dict[int, list[int]]:
    """By place of an operation in the walk the places of those of other streams that it has to wait for.

    `starts_ns` are the starts of the host's steps.
    """
    found: dict[int, list[int]] = defaultdict(list)
    launched = walk.launch != UNLAUNCHED
    communicating = np.array([kind == "communication_ns" for kind in walk.kinds], dtype=np.bool_)
    (collectives,) = np.nonzero(communicating & launched)
    (others,) = np.nonzero(~communicating & launched)
    if not len(collectives) or not len(others):
        return found
    called = walk.columns.ts_ns[walk.launch]
    streams = walk.columns.queue[walk.rows]
    kinds = np.array([kernel_collective(name) or "" for name in _names(walk, collectives)])
    compute_stream = _busiest(streams[others])
    of_units = gathers_of_units(walk, collectives, compute_stream)
    in_units = np.isin(collectives, [*of_units])
    later = frozenset(collectives[in_units & ~_firsts(in_units, called[collectives], starts_ns)].tolist())
    for stream in np.unique(streams[others]):
        on_stream = others[streams[others] == stream]
        for waiting, awaited in _issued_after(walk, called, kinds, collectives, on_stream, starts_ns):
            if stream != compute_stream or waiting not in later:
                found[waiting].append(awaited)
    used = {gather for gather, (_, user) in of_units.items() if user is not None}
    for waiting, awaited in _used_after(walk, called, kinds, collectives, others[streams[others] == compute_stream]):
        if awaited not in used:
            found[waiting].append(awaited)
    for gather, (copied, user) in of_units.items():
        for later_one, first in ((gather, copied), (user, gather)):
            if later_one is not None and first is not None and walk.end[first] <= walk.begin[later_one]:
                found[later_one].append(first)
    return found


def _names(walk: Walk, places: Ints) -> list[str]:
    return [walk.columns.name(row) for row in walk.rows[places].tolist()]


def _busiest(streams: Ints) -> int:
    numbers, counts = np.unique(streams, return_counts=True)
    return int(numbers[np.argmax(counts)])


def _issued_after(
    walk: Walk, called: Ints, kinds: np.ndarray, collectives: Ints, on_stream: Ints, starts_ns: Ints
) -> list[tuple[int, int]]:
    """Each collective with the operation launched last before it on a stream, if those of its kind waited for it.

    If only the first all-gather of every step did, only these are returned.
    """
    in_order = on_stream[np.argsort(called[on_stream], kind="stable")]
    at = np.searchsorted(called[in_order], called[collectives], side="left") - 1
    known = at >= 0
    before = in_order[np.maximum(at, 0)]
    waited = known & (walk.end[before] <= walk.begin[collectives])
    pairs = []
    for kind in np.unique(kinds):
        of_kind = (kinds == kind) & known
        if not of_kind.any():
            continue
        if waited[of_kind].mean() < _HOLDS and kind == _GATHERS:
            of_kind = _firsts(of_kind, called[collectives], starts_ns)
        if of_kind.any() and waited[of_kind].mean() >= _HOLDS:
            chosen = of_kind & waited
            pairs += list(zip(collectives[chosen].tolist(), before[chosen].tolist(), strict=True))
    return pairs


def _firsts(of_kind: Mask, called: Ints, starts_ns: Ints) -> Mask:
    """The first of these collectives that is called in each step."""
    places = np.flatnonzero(of_kind)
    places = places[np.argsort(called[places], kind="stable")]
    steps, first = np.unique(np.searchsorted(starts_ns, called[places], side="right"), return_index=True)
    found = np.zeros(len(of_kind), dtype=np.bool_)
    found[places[first[steps > 0]]] = True
    return found


def _used_after(
    walk: Walk, called: Ints, kinds: np.ndarray, collectives: Ints, computing: Ints
) -> list[tuple[int, int]]:
    """The operation of the compute stream that uses each collective's result, with that collective."""
    order = computing[np.argsort(called[computing], kind="stable")]
    first = np.searchsorted(called[order], called[collectives], side="right")
    first = np.maximum(first, np.searchsorted(np.maximum.accumulate(walk.begin[order]), walk.end[collectives]))
    reducing = (kinds == _REDUCES) | (purposes(walk.columns, walk.launch[collectives]) == GRADIENTS)
    after_pass = _next_true(_after_passes(walk, called, order))
    first = np.where(reducing, after_pass[np.minimum(first, len(order))], first)
    used = first < len(order)
    return list(zip(order[first[used]].tolist(), collectives[used].tolist(), strict=True))


def _after_passes(walk: Walk, called: Ints, places: Ints) -> Mask:
    """Which operations wait for reduced gradients: those launched outside of backward passes, and in some ranges.

    Where the trace shows no backward pass, those of the optimizer; all where it shows none of that either.
    """
    columns, phases = walk.columns, host_phases(walk.columns)
    thread, time_ns = columns.thread[walk.launch[places]], called[places]

    def launched_in(pattern: re.Pattern[str]) -> Mask:
        ranges = Ranges.of_rows(columns, columns.rows(RANGE_CATEGORIES, pattern.match))
        inside: Mask = ranges.at(thread, time_ns) != NOWHERE
        return inside

    if isinstance(phases, str):
        updates = launched_in(OPTIMIZER_STEP_NAME)
        return updates if updates.any() else np.ones(len(places), dtype=np.bool_)
    outside: Mask = phases.at(thread, time_ns) != BACKWARD
    return outside | launched_in(_COPIED_BACK) | launched_in(_NEXT_UNIT)


def _next_true(mask: Mask) -> Ints:
    """For each place, and the one after the last, the first from there on that is true; their number where none is."""
    places = np.where(mask, np.arange(len(mask)), len(mask))
    nearest = np.minimum.accumulate(places[::-1])[::-1] if len(mask) else places
    return np.append(nearest, len(mask)).astype(np.int64)
