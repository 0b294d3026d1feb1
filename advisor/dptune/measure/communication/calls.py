"""Collective calls inside the steps of one rank: kind, size, and how long each took."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from dptune.measure.communication.dtypes import bytes_of, dtype_of
from dptune.measure.communication.kinds import kernel_collective, kernel_dtype
from dptune.measure.communication.shapes import size_of, tensors_of
from dptune.measure.device.communicating import collective_operators
from dptune.measure.host.enclosing import NOWHERE, Ranges
from dptune.measure.host.launches import UNLAUNCHED
from dptune.measure.intervals import Ints
from dptune.measure.views import DeviceView, RankView
from dptune.measured.collectives import UNKNOWN, collective, kind_of
from dptune.trace.columns import NONE, Columns
from dptune.trace.events import Trace
from dptune.trace.kernels import LAUNCH_CATEGORIES, Work

_RUN_AS = {"reduce_scatter": "all_reduce"}  # by gloo, under the name of the latter


@dataclass(frozen=True, slots=True)
class Call:
    """One collective on one rank. `step` is the index of its step; what the trace does not say is None.

    `start_ns` is on the trace's own clock; `members` the ranks of the group as the trace writes them; `row` is that of
    its event in the columns. `ambiguous`: it names no group, and is of one of several that do not hold the same ranks.
    `untyped`: its number of elements is known, their type is not.
    """

    step: int
    kind: str
    start_ns: int
    dur_ns: int
    group: str | None = None
    group_size: int | None = None
    dtype: str | None = None
    message_bytes: int | None = None
    members: str | None = None
    sequence: int | None = None
    row: int = NONE
    ambiguous: bool = False
    untyped: bool = False


@dataclass(frozen=True)
class _Unnamed:
    """The process group of the calls of a trace that do not name theirs."""

    group: str | None = None
    group_size: int | None = None
    ambiguous: bool = False


# By number of the rank and name of the device.
Collectives = dict[tuple[int, str], list[Call]]


def calls(view: RankView, device: DeviceView) -> list[Call]:
    """The collectives of a device in the order of launching (on a CPU: of beginning); some with the step OUTSIDE."""
    if device.record is not None:
        return device.record.calls_in(device.launched_in)
    operations, columns = device.operations, view.columns
    chosen = operations.work == Work.COMMUNICATION
    rows, steps = operations.rows[chosen], device.launched_in[chosen]
    described = {row: at for at, row in enumerate(view.trace.collectives.row.tolist())}
    unnamed = _unnamed(view.trace)
    if operations.on_cpu:
        kinds = _gloo_kinds(columns)
        order = np.argsort(columns.ts_ns[rows], kind="stable").tolist()
        return [_gloo_call(view.trace, int(rows[at]), int(steps[at]), kinds, described, unnamed) for at in order]
    launch = operations.launch[chosen]
    titles = _titles(columns, launch)
    when = np.where(launch == UNLAUNCHED, columns.ts_ns[rows], columns.ts_ns[launch])
    order = np.lexsort((columns.ts_ns[rows], when)).tolist()  # a graph launches several at once
    return [_nccl_call(view.trace, int(rows[at]), int(steps[at]), titles[at], described, unnamed) for at in order]


def _nccl_call(trace: Trace, row: int, step: int, title: str, described: dict[int, int], unnamed: _Unnamed) -> Call:
    columns, collectives = trace.columns, trace.collectives
    name, start_ns, dur_ns = columns.name(row), int(columns.ts_ns[row]), int(columns.dur_ns[row])
    at = described.get(row)
    kind = None if at is None else collectives.word(collectives.kind, at)
    if at is None or kind is None:
        known = kind_of(title) if title else UNKNOWN
        known = known if known != UNKNOWN else kernel_collective(name)
        dtype = dtype_of(kernel_dtype(name))
        return _of_unnamed(Call(step, known, start_ns, dur_ns, dtype=dtype, row=row), unnamed)
    dtype = dtype_of(collectives.word(collectives.dtype, at))
    elements = max(int(collectives.in_elements[at]), int(collectives.out_elements[at]))
    size = int(collectives.group_size[at])
    call = Call(
        step,
        kind_of(kind),
        start_ns,
        dur_ns,
        group=collectives.word(collectives.group, at),
        group_size=size if size > 0 else None,
        dtype=dtype,
        message_bytes=size_of(elements * bytes_of(dtype)) if dtype and elements >= 0 else None,
        members=collectives.word(collectives.group_ranks, at),
        sequence=int(collectives.sequence[at]) if collectives.sequence[at] != NONE else None,
        row=row,
        untyped=dtype is None and elements >= 0,
    )
    return call if call.group is not None else replace(call, ambiguous=unnamed.ambiguous)


def _gloo_call(
    trace: Trace, row: int, step: int, kinds: dict[int, str], described: dict[int, int], unnamed: _Unnamed
) -> Call:
    columns, collectives = trace.columns, trace.collectives
    kind = kinds.get(row) or kind_of(columns.name(row))
    at = described.get(row)
    dtype, total_bytes = (
        (None, None)
        if at is None
        else tensors_of(collectives.word(collectives.dims, at), collectives.word(collectives.types, at))
    )
    if total_bytes is not None and collective(kind).gathers:  # gloo lists what goes in; a gather's output is larger
        total_bytes = total_bytes * unnamed.group_size if unnamed.group_size else None
    start_ns, dur_ns = int(columns.ts_ns[row]), int(columns.dur_ns[row])
    size = None if total_bytes is None else size_of(total_bytes)
    return _of_unnamed(Call(step, kind, start_ns, dur_ns, dtype=dtype, message_bytes=size, row=row), unnamed)


def _unnamed(trace: Trace) -> _Unnamed:
    """The only group of a trace, if there is only one; of several, which it is matters unless all hold every rank."""
    listed = {name: group.size for name, group in trace.distributed.groups.items()}
    groups = dict(listed)
    collectives = trace.collectives
    for at in np.unique(collectives.group, return_index=True)[1].tolist():
        name = collectives.word(collectives.group, at)
        if name is not None:
            groups.setdefault(name, int(collectives.group_size[at]))
    if len(groups) == 1:
        return _Unnamed(*next(iter(listed.items()), (None, None)))
    return _Unnamed(ambiguous=any(size != trace.distributed.world_size for size in groups.values()))


def _of_unnamed(call: Call, unnamed: _Unnamed) -> Call:
    return replace(call, group=unnamed.group, group_size=unnamed.group_size, ambiguous=unnamed.ambiguous)


def _titles(columns: Columns, launch: Ints) -> list[str]:
    """For each launch the innermost range of its thread that calls a collective by name, "" where there is none."""
    ranges = collective_operators(columns)
    ranges = ranges[columns.named(lambda name: kind_of(name) != UNKNOWN, ranges)]
    around = Ranges.of_rows(columns, ranges).around(columns.thread[launch], columns.ts_ns[launch], columns.ends(launch))
    known = (launch != UNLAUNCHED) & (around != NOWHERE)
    return [columns.name(int(ranges[at])) if found else "" for at, found in zip(around, known.tolist(), strict=True)]


def _gloo_kinds(columns: Columns) -> dict[int, str]:
    """Kinds of gloo's events by the operators that asked for them: it runs FSDP's reduce_scatter as an all_reduce."""
    return {event: kind_of(columns.name(operator)) for event, operator in asked(columns).items()}


def asked(columns: Columns) -> dict[int, int]:
    """The rows of the `c10d::` operators that asked for gloo's events, by the rows of those; {} where they do not fit.

    Workers take calls in the order they were made, so both in order of time are the same sequence of kinds unless some
    were not recorded, or those of several process groups overtook each other.
    """
    events = columns.rows(named=lambda name: name.startswith("gloo:"))
    operators = columns.rows(named=lambda name: name.startswith("c10d::") and kind_of(name) != UNKNOWN)
    operators = operators[~columns.of_category(LAUNCH_CATEGORIES, operators)]
    if len(events) != len(operators):
        return {}
    events = events[np.argsort(columns.ts_ns[events], kind="stable")]
    operators = operators[np.argsort(columns.ts_ns[operators], kind="stable")]
    if (columns.ts_ns[operators] > columns.ts_ns[events]).any():
        return {}
    for event, operator in zip(events.tolist(), operators.tolist(), strict=True):
        called = kind_of(columns.name(operator))
        if kind_of(columns.name(event)) not in (called, _RUN_AS.get(called)):
            return {}
    return dict(zip(events.tolist(), operators.tolist(), strict=True))
