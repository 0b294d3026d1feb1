"""What a trace shows of units of fully_shard, by the ranges that torch names after them.

`FSDP::all_gather (layers.0)` and `FSDP::post_backward_reduce (layers.0)` enclose the calls that issue collectives;
`FSDP::pre_forward (layers.0)` and `FSDP::pre_backward (layers.0)` start before the unit computes in that pass. Ranges
of the root name no unit, and FullyShardedDataParallel names none (`flat_events`). In a trace without ranges of
reductions, a reduce-scatter belongs to the unit that started last.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from dptune.measure.communication.calls import Call
from dptune.measure.communication.purposes import issuers
from dptune.measure.host.enclosing import NOWHERE, Ranges
from dptune.measure.host.launches import UNLAUNCHED
from dptune.measure.intervals import Ints
from dptune.measure.steps.windows import OUTSIDE, Step
from dptune.measure.views import DeviceView, RankView
from dptune.measured.shard_units import Pass
from dptune.trace.columns import Columns
from dptune.trace.kernels import RANGE_CATEGORIES

_UNIT = r"(?: \((?P<unit>.*)\))?$"
_ISSUES = re.compile(rf"FSDP::(?:all_gather|post_backward_reduce){_UNIT}")
_REDUCES = re.compile(r"FSDP::post_backward_reduce\b")
_STARTS = re.compile(rf"FSDP::pre_(?P<direction>forward|backward){_UNIT}")
_FREES = re.compile(rf"FSDP::post_(?P<direction>forward|backward)(?:_reshard)?{_UNIT}")
_BACKWARD = re.compile(r"FSDP::(pre_backward\b|backward_prefetch for |post_backward|root_post_backward)")


class UnitEvent(NamedTuple):
    """A unit starts or ends a pass, on the host. `step` is the index of the step."""

    time_ns: int
    step: int
    direction: Pass
    unit: str


class UnitCall(NamedTuple):
    """A collective of a unit: the place of its operation on the device, and when the host issued it.

    `behind`: it was issued after the unit that runs before it.
    """

    place: int
    call: Call
    time_ns: int
    step: int
    direction: Pass
    unit: str
    behind: bool = False


class UnitEvents(NamedTuple):
    """Of one rank: when units start passes, when they may be freed, and their collectives in the order of issuing.

    `numbered`: the units have no names.
    """

    starts: list[UnitEvent]
    frees: list[UnitEvent]
    calls: list[UnitCall]
    numbered: bool = False


def starts(columns: Columns, steps: Sequence[Step]) -> list[UnitEvent]:
    """When each unit starts each pass, in order of time."""
    return _events(columns, _STARTS, steps)


def frees(columns: Columns, steps: Sequence[Step]) -> list[UnitEvent]:
    """When each unit may free its parameters: at the end of each pass."""
    return _events(columns, _FREES, steps)


def calls_of_units(view: RankView, device: DeviceView, calls: Mapping[int, Call]) -> list[UnitCall]:
    """The collectives that units issue in the steps, in the order of issuing. `calls`: by the row of the operation."""
    columns, operations = view.columns, device.operations
    ranges = columns.rows(RANGE_CATEGORIES, _ISSUES.match)
    if not len(ranges) or not calls:
        return []
    (places,) = np.nonzero(np.isin(operations.rows, np.fromiter(calls, dtype=np.int64)))
    by = issuers(view, device)[places]
    known = (by != UNLAUNCHED) & (device.launched_in[places] != OUTSIDE)
    places, by = places[known], by[known]
    thread, time_ns = columns.thread[by], columns.ts_ns[by]
    inside = Ranges.of_rows(columns, ranges).at(thread, time_ns)
    backward = Ranges.of_rows(columns, columns.rows(RANGE_CATEGORIES, _BACKWARD.match)).hold(thread, time_ns)
    found = []
    begun = [] if len(columns.rows(RANGE_CATEGORIES, _REDUCES.match)) else starts(columns, view.steps)
    for at in np.argsort(time_ns, kind="stable").tolist():
        call = calls[int(operations.rows[places[at]])]
        if inside[at] != NOWHERE:
            unit, goes_back = _unit(_ISSUES, columns.name(int(ranges[inside[at]]))), bool(backward[at])
        elif call.kind == "reduce_scatter" and (last := _last_before(int(time_ns[at]), begun)) is not None:
            unit, goes_back = last.unit, True
        else:
            continue
        step = int(device.launched_in[places[at]])
        found.append(
            UnitCall(int(places[at]), call, int(time_ns[at]), step, "backward" if goes_back else "forward", unit)
        )
    return found


def _last_before(time_ns: int, begun: Sequence[UnitEvent]) -> UnitEvent | None:
    after = bisect_right(begun, time_ns, key=lambda start: start.time_ns)
    return begun[after - 1] if after else None


def _events(columns: Columns, pattern: re.Pattern[str], steps: Sequence[Step]) -> list[UnitEvent]:
    rows = columns.rows(RANGE_CATEGORIES, pattern.match)
    found = []
    for row, step in zip(rows.tolist(), step_of(columns.ts_ns[rows], steps).tolist(), strict=True):
        named = pattern.match(columns.name(row))
        if named is not None and step != OUTSIDE:
            direction: Pass = "forward" if named["direction"] == "forward" else "backward"
            found.append(UnitEvent(int(columns.ts_ns[row]), step, direction, named["unit"] or ""))
    return sorted(set(found))  # a range that is there twice is one


def step_of(time_ns: Ints, steps: Sequence[Step]) -> Ints:
    """The index of the step that each moment lies in, else OUTSIDE."""
    at = np.searchsorted(np.array([step.start_ns for step in steps], dtype=np.int64), time_ns, side="right") - 1
    ends = np.array([step.end_ns for step in steps], dtype=np.int64)
    inside = (at >= 0) & (time_ns < ends[at])
    return np.where(inside, at, OUTSIDE).astype(np.int64)


def _unit(pattern: re.Pattern[str], name: str) -> str:
    named = pattern.match(name)
    return (named["unit"] or "") if named is not None else ""
