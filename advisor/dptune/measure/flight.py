"""Dumps of the flight recorder joined over ranks: who hangs, whose calls differ, how long calls take.

A collective has the same number in its process group on every rank. The rules by which sizes and types must agree are
those of `torch.distributed.flight_recorder`: inputs of a scatter and outputs of a gather differ between ranks, and so
do both of an all-to-all.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from statistics import median
from typing import cast

import numpy as np

from dptune.measure.communication.dtypes import bytes_of, dtype_of
from dptune.measure.flight_peers import unfinished_with_peers
from dptune.measure.views import RankView
from dptune.measured.collectives import UNKNOWN
from dptune.measured.flight import Culprit, Difference, FlightCalls, FlightFigures, Mismatch, StuckCollective
from dptune.trace.columns import NONE
from dptune.trace.flight.dump import Dump, Entry
from dptune.trace.kernels import DEVICE_CATEGORIES
from dptune.trace.run import Run

_MOST_CALLS = 200  # kinds of calls that are kept, the longest
_MOST_SHOWN = 200  # characters of a mismatch


@dataclass
class _Group:
    """One process group: its ranks, and by rank the calls of each number and the last number that was enqueued."""

    name: str
    description: str = ""
    members: set[int] = field(default_factory=set)
    calls: dict[int, dict[int, list[Entry]]] = field(default_factory=lambda: defaultdict(lambda: defaultdict(list)))
    last: dict[int, int] = field(default_factory=dict)


Durations = Mapping[tuple[int, str, int], float]


def flight_figures(dumps: Sequence[Dump], traced: Durations | None = None) -> FlightFigures:
    """The figures of the dumps of one job, each of another rank.

    `traced` are durations in traces of the same job, ms, by rank, process group and number (`traced_durations`): they
    count where a dump has none.
    """
    dumped = {dump.rank: dump for dump in dumps}
    groups = _groups(dumped.values())
    stuck = [found for group in groups if (found := _stuck(group, dumped)) is not None]
    stuck += unfinished_with_peers(dumped, _bytes)
    findings = []
    if not any(dump.entries for dump in dumps):
        findings.append("the dumps hold no calls: was TORCH_FR_BUFFER_SIZE (TORCH_NCCL_TRACE_BUFFER_SIZE) set?")
    if any(dump.entries for dump in dumps) and not any(dump.groups for dump in dumps):
        findings.append("the dumps do not list the ranks of process groups: those that called a collective are assumed")
    culprits = _culprits(stuck, dumped)
    if not culprits and any(each.missing for each in stuck):
        findings.append("ranks wait for each other in different groups: they call collectives in different orders")
    return FlightFigures(
        ranks=sorted(dumped),
        without_dump=sorted({rank for group in groups for rank in group.members} - dumped.keys()),
        entries=sum(len(dump.entries) for dump in dumps),
        stuck=stuck,
        culprits=culprits,
        mismatches=[differs for group in groups if (differs := _mismatch(group)) is not None],
        calls=_calls(groups, traced or {}),
        traced=sum(_in_traces(group, traced) for group in groups) if traced else None,
        findings=findings,
    )


def _groups(dumps: Iterable[Dump]) -> list[_Group]:
    """Every group that a dump lists or calls a collective in; of one name there may be several with other ranks."""
    found: dict[tuple[str, tuple[int, ...]], _Group] = {}
    for dump in dumps:
        for name, ranks in dump.groups.items():
            found.setdefault((name, ranks), _Group(name)).members.update(ranks)
        for entry in dump.entries:
            if entry.to_peer:
                continue
            group = found.setdefault((entry.group, dump.groups.get(entry.group, ())), _Group(entry.group))
            group.description = group.description or entry.description
            group.members.add(dump.rank)
            group.calls[dump.rank][entry.sequence].append(entry)
            group.last[dump.rank] = max(group.last.get(dump.rank, -1), entry.sequence)
    for dump in dumps:
        for name, number in dump.enqueued.items():
            group_of_rank = found.get((name, dump.groups.get(name, ())))
            if group_of_rank is not None and dump.rank in group_of_rank.members:
                group_of_rank.last[dump.rank] = max(group_of_rank.last.get(dump.rank, -1), number)
    return [found[key] for key in sorted(found)]


def _stuck(group: _Group, dumped: Mapping[int, Dump]) -> StuckCollective | None:
    """The first collective that is not over on a rank that called it; None where all are over."""
    open_calls = [
        number
        for by_number in group.calls.values()
        for number, entries in by_number.items()
        if not all(entry.done for entry in entries)
    ]
    if not open_calls:
        return None
    number = min(open_calls)
    called = {rank: by_number[number] for rank, by_number in group.calls.items() if number in by_number}
    first = next(entries[0] for _, entries in sorted(called.items()))
    known = sorted(group.members & dumped.keys())
    missing = [rank for rank in known if group.last.get(rank, -1) < number]
    done = [rank for rank in known if rank not in missing and all(entry.done for entry in called.get(rank, []))]
    waits = [rank for rank in known if rank not in missing and rank not in done]
    return StuckCollective(
        group=group.name,
        description=group.description,
        sequence=number,
        kind=_kind(first),
        message_bytes=_bytes(first),
        reached=[rank for rank in known if rank not in missing],
        missing=missing,
        without_dump=sorted(group.members - dumped.keys()),
        not_started=[rank for rank in waits if _not_started(called[rank])],
        done=done,
        at=next((entry.at for _, entries in sorted(called.items()) for entry in entries if entry.at), ""),
    )


def _not_started(entries: Sequence[Entry]) -> bool:
    """Whether none has started, as far as is known: gloo records no starts."""
    return all(entry.state == "scheduled" and not entry.started_ns and entry.backend != "gloo" for entry in entries)


def _culprits(stuck: Sequence[StuckCollective], dumped: Mapping[int, Dump]) -> list[Culprit]:
    """The ranks that others wait for and that wait in no collective themselves."""
    waiting = {rank for each in stuck for rank in each.reached if rank not in each.done}
    lacking = {rank for each in stuck for rank in (*each.missing, *each.without_dump)} - waiting
    return [_culprit(rank, stuck, dumped.get(rank)) for rank in sorted(lacking)]


def _culprit(rank: int, stuck: Sequence[StuckCollective], dump: Dump | None) -> Culprit:
    held: set[int] = set()
    fresh = {rank}
    while fresh:
        held_by = [each for each in stuck if fresh & {*each.missing, *each.without_dump}]
        fresh = {other for each in held_by for other in each.reached if other not in each.done} - held
        held |= fresh
    last = dump.entries[-1] if dump is not None and dump.entries else None
    return Culprit(
        rank=rank,
        dumped=dump is not None,
        holds_up=sorted(held),
        last_call="" if last is None else f"{_kind(last)} #{last.sequence} of {_group_name(last)}",
        at="" if last is None else last.at,
    )


def _mismatch(group: _Group) -> Mismatch | None:
    """The first number whose calls differ: all later ones may be paired wrongly."""
    numbers = sorted({number for by_number in group.calls.values() for number in by_number})
    for number in numbers:
        called = {rank: by_number[number] for rank, by_number in sorted(group.calls.items()) if number in by_number}
        for what, value in _COMPARED.items():
            values: dict[str, list[int]] = defaultdict(list)
            for rank, entries in called.items():
                values[", ".join(value(entry) for entry in entries)[:_MOST_SHOWN]].append(rank)
            if len(values) > 1:
                return Mismatch(
                    group=group.name, description=group.description, sequence=number, what=what, values=dict(values)
                )
    return None


def _kind(entry: Entry) -> str:
    return entry.name if entry.kind == UNKNOWN or entry.to_peer else entry.kind


def _sizes(entry: Entry) -> str:
    parts = []
    if entry.kind not in ("all_to_all", "scatter"):
        parts.append(f"in {_shapes(entry.input_sizes)}")
    if entry.kind not in ("all_to_all", "gather"):
        parts.append(f"out {_shapes(entry.output_sizes)}")
    return " ".join(parts)


def _types(entry: Entry) -> str:
    parts = []
    if entry.kind not in ("scatter", "broadcast") and any(entry.input_sizes):
        parts.append(f"in {' '.join(sorted(set(entry.input_dtypes)))}")
    if entry.kind != "gather" and any(entry.output_sizes):
        parts.append(f"out {' '.join(sorted(set(entry.output_dtypes)))}")
    return " ".join(parts)


_COMPARED: Mapping[Difference, Callable[[Entry], str]] = {"kind": _kind, "sizes": _sizes, "types": _types}


def _shapes(sizes: Sequence[Sequence[int]]) -> str:
    return " ".join("x".join(map(str, shape)) or "scalar" for shape in sizes) or "nothing"


def _group_name(entry: Entry) -> str:
    described = entry.description not in ("", "undefined")
    return f"group {entry.group}{f' ({entry.description})' if described else ''}"


def _bytes(entry: Entry) -> int | None:
    """The larger of input and output; None where a type is not known."""
    found = []
    for sizes, dtypes in ((entry.input_sizes, entry.input_dtypes), (entry.output_sizes, entry.output_dtypes)):
        known = [dtype_of(word) for word in dtypes]
        if not sizes or len(known) not in (1, len(sizes)):
            continue
        known = known * len(sizes) if len(known) == 1 else known
        if any(dtype is None for dtype in known):
            return None
        found.append(sum(prod(shape) * bytes_of(dtype) for shape, dtype in zip(sizes, known, strict=True) if dtype))
    largest = max(found, default=None)
    return largest if largest is not None and largest < 2**63 else None


def _in_traces(group: _Group, traced: Durations) -> int:
    """How many calls of a group are in the traces, over all ranks."""
    return sum((rank, group.name, number) in traced for rank, calls in group.calls.items() for number in calls)


def _calls(groups: Iterable[_Group], traced: Durations) -> list[FlightCalls]:
    """Collectives by kind, group and size, the longest in all first."""
    found = []
    for group in groups:
        by_kind: dict[tuple[str, int | None], dict[int, list[tuple[int, Entry]]]] = defaultdict(dict)
        for rank, by_number in group.calls.items():
            for number, entries in by_number.items():
                for entry in entries:
                    by_kind[_kind(entry), _bytes(entry)].setdefault(number, []).append((rank, entry))
        for (kind, message_bytes), by_call in by_kind.items():
            ms = [list(_durations_ms(calls, traced)) for calls in by_call.values()]
            shortest = [min(durations) for durations in ms if durations]
            found.append(
                FlightCalls(
                    kind=kind,
                    group=group.name,
                    description=group.description,
                    message_bytes=message_bytes,
                    ranks=len({rank for calls in by_call.values() for rank, _ in calls}),
                    calls=len(by_call),
                    duration_ms=median(shortest) if shortest else None,
                    longest_ms=max((max(durations) for durations in ms if durations), default=None),
                )
            )
    found.sort(key=lambda row: (-(row.duration_ms or 0) * row.calls, -(row.message_bytes or 0) * row.calls, row.kind))
    return found[:_MOST_CALLS]


def _durations_ms(calls: Iterable[tuple[int, Entry]], traced: Durations) -> Iterator[float]:
    """The known durations of one collective, of each rank."""
    for rank, entry in calls:
        own_ms = _duration_ms(entry)
        duration_ms = traced.get((rank, entry.group, entry.sequence)) if own_ms is None else own_ms
        if duration_ms is not None:
            yield duration_ms


def traced_durations(run: Run) -> Durations:
    """Durations of the collectives in traces and records that carry a sequence number: those of NCCL's kernels, ms."""
    found: dict[tuple[int, str, int], float] = {}
    for rank in run.ranks:
        collectives, columns = rank.light.collectives, rank.light.columns
        for at in np.flatnonzero(collectives.sequence != NONE).tolist():
            row, group = int(collectives.row[at]), collectives.word(collectives.group, at)
            if group is not None and columns.categories[columns.category_id[row]] in DEVICE_CATEGORIES:
                found[rank.rank, group, int(collectives.sequence[at])] = int(columns.dur_ns[row]) / 1e6
    for rank in run.digested:
        devices = [device for device in cast(RankView, rank.digest).devices if not device.operations.on_cpu]
        for call in (call for device in devices if device.record is not None for call in device.record.calls):
            if call.group is not None and call.sequence is not None:
                found[rank.rank, call.group, call.sequence] = call.dur_ns / 1e6
    return found


def _duration_ms(entry: Entry) -> float | None:
    """As timed on the device, else between the moments at which the recorder noticed start and end."""
    if entry.duration_ms is not None:
        return entry.duration_ms
    if entry.started_ns and entry.completed_ns and entry.completed_ns >= entry.started_ns:
        return (entry.completed_ns - entry.started_ns) / 1e6
    return None
